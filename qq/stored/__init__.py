"""What is stored of a message, and what is made of that: the one description that all protocols share.

A message is stored as the content header frame and the body frames of AMQP 0-9-1 (2.3.5), as its publisher sent them,
so that what comes and goes by that protocol is written as it is. A client of another protocol publishes what
`editing.make` makes, and is delivered what `editing.content` takes apart.

    layout.py    where things are in these octets       properties.py  what of them matters to exchanges and queues
    fields.py    tables and properties, decoded         content.py     what of them exchanges may look at
    editing.py   made, taken apart, with other headers, in other frames

Pure: no clock, no randomness, no I/O.
"""
