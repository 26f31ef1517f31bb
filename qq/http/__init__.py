"""The node's HTTP interface: health, metrics, the state of the cluster, and a page to look at it."""
