"""A replicated group on a single node: the turn, the wiring of its parts, and the inbox."""
