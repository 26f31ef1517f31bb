"""Handlers: the effect of each command of the log on the state."""
