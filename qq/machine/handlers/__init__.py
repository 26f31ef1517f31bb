"""What each command of the log does."""
