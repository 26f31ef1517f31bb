"""Pure: the members of a cluster as values, their majorities, and the changes that may be made to them (Raft paper,
section 6).
"""
