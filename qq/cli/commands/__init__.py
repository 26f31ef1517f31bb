"""The commands of `qq`, each in a module of its own, with its options.

A command imports its implementation inside its function, because the help and the completion of a shell load all
modules of this package.
"""
