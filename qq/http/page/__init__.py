"""The management page: its live views and its login."""
