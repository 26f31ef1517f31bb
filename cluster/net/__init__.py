"""Sockets: accepted connections, slots of connections without a login, host names, rate-limited logging."""
