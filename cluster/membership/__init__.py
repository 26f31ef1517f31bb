"""The members as a running node sees them: their status, who leads, who joins and who is evicted."""
