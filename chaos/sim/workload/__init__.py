"""The load of a simulated run: clients, their commands and their messages."""
