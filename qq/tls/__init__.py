"""TLS contexts, certificates and names in them, and files that are read again when they change."""
