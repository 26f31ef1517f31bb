"""A queue: its backlog, its consumers, its timers, and the settlement of its messages."""
