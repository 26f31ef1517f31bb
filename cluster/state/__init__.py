"""The replicated state of a group: the machine, the members, and the last applied batch of each node."""
