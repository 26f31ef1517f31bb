"""The stored form of a message, shared by all protocols, and functions to make, read and edit it.

A message is stored as its publisher sent it: the content header frame and the body frames of AMQP 0-9-1 (2.3.5), or the
sections of AMQP 1.0 without delivery annotations. Its first octet tells its kind. So a message that leaves by the
protocol by which it arrived is written as it is, and is converted when it leaves by the other protocol.

    kinds.py          which kind a message is            known.py        caches of functions of octets

    layout.py         offsets in frames                  properties.py   properties that matter to exchanges and queues
    fields.py         tables and properties, decoded     content.py      headers and properties for routing
    exact_tables.py   tables with every value that the log can hold, encoded and read
    editing.py        making messages, taking them apart, changing their headers or frames

    leading.py        header and message annotations     attributes10.py   those that matter to exchanges and queues
    publishing10.py   sections, checked before they are published

    to_frames.py      sections as frames                 to_sections.py   frames as sections
    similar.py        messages that differ in values     kept.py          attributes of dead or moved messages

    trace_context.py  the publisher's trace

Pure: no clock, no randomness, no I/O.
"""
