"""Transforms from a history to violations and tables: pure functions from DataFrames to DataFrames.

Invariant: no transform runs a job, collects rows or calls Python for a row. So the same code serves ten thousand rows
and a hundred million, and the session decides where it runs.

Names of arguments: `rows` is a history (`schemas.HISTORY`), `messages` the result of `messages.messages`, `queues` the
queues of the run, `reach` the queues that their messages may reach, `requested` when each consumer was requested
(`messages.requested`). The transform of a promise returns its violations (`schemas.VIOLATION`).
"""
