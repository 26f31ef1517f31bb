"""The faults of a run: nemesis, operators, restored backups, upgrades."""
