"""The replicated state of a group: the machine, the members, and which batch of each node was applied last."""
