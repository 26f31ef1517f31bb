"""Members of a cluster as values, their majorities, and changes of the members (Raft paper, section 6). Pure."""
