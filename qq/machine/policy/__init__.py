"""Policies, and the settings of a queue that follow from its arguments and policies."""
