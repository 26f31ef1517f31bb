"""From a history to violations and tables: functions from DataFrames to DataFrames, nothing else.

Invariant: no transform runs a job, collects anything or calls Python for a row. So they cost the same code for ten
thousand rows and for a hundred million, and where they run is the business of the session.

`rows` is always a history (`schemas.HISTORY`), `messages` what `messages.messages` makes of it, `queues` the queues of
the run, `reach` where their messages may turn up, `asked` when consumers asked for them (`messages.asked`). What a
promise gives are its violations (`schemas.VIOLATION`).
"""
