"""AMQP 0-9-1, the server's side, without I/O: bytes in, events out, and back.

framing: frames and the hot methods; fields: arguments of methods; access: methods of class access; encoding: what the
server sends; connection: handshake, channel numbers, closing. Messages and their properties are in qq/stored.
"""
