"""The broker as operators see it."""
