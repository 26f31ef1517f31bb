"""A node's data directory: its identity and files, how a node starts from it, and when a failure stops the node."""
