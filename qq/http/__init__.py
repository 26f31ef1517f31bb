"""HTTP interface of a node: health, metrics, the management API, and the management page."""
