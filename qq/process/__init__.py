"""The process of a node: descriptors, memory, garbage collection, and forked processes."""
