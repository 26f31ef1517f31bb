"""The commands of `qq`, one to a module, each with its options.

A module imports what its command does in the function that does it: the help, and the completion of a shell, load all
modules here.
"""
