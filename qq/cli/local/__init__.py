"""Commands that need no running cluster: they start nodes, or read and write data directories and backups."""
