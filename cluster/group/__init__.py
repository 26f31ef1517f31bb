"""One replicated group on one node: the turn, the wiring of its parts, and the inbox."""
