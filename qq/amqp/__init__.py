"""AMQP 0-9-1, the server's side, without I/O: bytes in, events out, and back.

framing: frames and the hot methods; fields: field tables, properties and methods; stored: the layout of a message;
properties: what the broker must know of it; encoding: what the server sends; connection: handshake, channel numbers,
closing.
"""
