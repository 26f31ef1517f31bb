"""A command's output on a terminal or into a file: tables, progress, escaped names, signals."""
