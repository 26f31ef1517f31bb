"""The data directory of a node: its identity, its files, and when the node stops because of them."""
