"""The server's side of AMQP 0-9-1 without I/O: bytes in, events out, and back.

framing: frames and the hot methods; fields: arguments of methods; access: methods of class access; encoding: the
server's output; connection: handshake, channel numbers, closing. Messages and their properties are in qq/stored.
"""
