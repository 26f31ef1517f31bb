"""Rates, totals, histories and findings from samples every few seconds."""
