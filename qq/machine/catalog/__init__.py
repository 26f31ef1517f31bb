"""Virtual hosts, users, permissions, limits, and the queues, exchanges and bindings in them."""
