"""Changes and operations of users; each goes through the log."""
