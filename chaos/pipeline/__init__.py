"""The checker: a PySpark job that reads the history of a run and decides whether a promise was broken."""
