"""The whole state as rows: frozen, dumped and loaded."""
