"""What goes wrong in a run: faults, operators, restored backups, upgrades."""
