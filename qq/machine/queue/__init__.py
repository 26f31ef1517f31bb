"""A queue: its backlog, its consumers, its timers and what leaves it."""
