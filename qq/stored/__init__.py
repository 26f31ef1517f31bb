"""The stored form of a message, shared by all protocols, and functions to make, read and edit it.

A message is stored as the content header frame and the body frames of AMQP 0-9-1 (2.3.5), as its publisher sent them.
So a message that arrives and leaves by AMQP 0-9-1 is written as it is. For a client of a different protocol,
`editing.make` makes the stored form at publishing, and `editing.content` takes it apart at delivery.

    layout.py         offsets in these octets           properties.py   properties that matter to exchanges and queues
    fields.py         tables and properties, decoded    content.py      headers and properties for routing
    trace_context.py  the publisher's trace
    exact_tables.py   tables with every value that the log can hold, encoded and read
    editing.py        making messages, taking them apart, changing their headers or frames

Pure: no clock, no randomness, no I/O.
"""
