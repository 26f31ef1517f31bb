"""What simulated clients ask for."""
