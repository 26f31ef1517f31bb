"""Live chaos: real node processes behind Toxiproxy, and a seeded nemesis that hurts them."""
