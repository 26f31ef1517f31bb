"""The requests of a command to a node: URL, context and login of the node, HTTP, and errors as advice.

Invariant: a password is never an argument of a command, because arguments appear in the list of processes.
"""
