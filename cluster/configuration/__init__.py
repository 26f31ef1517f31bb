"""Pure: the members of a cluster as values, their majorities, and changes of them (Raft paper, section 6)."""
