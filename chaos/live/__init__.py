"""A real cluster hurt for real: node processes, Toxiproxy between them and in front of them, and a seeded nemesis."""
