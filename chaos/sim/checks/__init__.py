"""The checks and oracles of a simulated run."""
