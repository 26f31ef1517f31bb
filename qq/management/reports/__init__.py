"""Reports of management, as plain data."""
