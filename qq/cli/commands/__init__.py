"""The commands of `qq` with their options, one module for each subject.

Every module is loaded for the command line of its own commands only. A command with a large implementation, such as
`serve`, imports it inside its function, so that help and mistakes are answered quickly.
"""
