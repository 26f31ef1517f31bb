"""The server's side of AMQP 1.0 without I/O: bytes in, frames out, and back.

conditions: error conditions; values: the type system; composites, performatives: described lists as named tuples;
framing: frames, and fast paths for transfers and dispositions; encoding: the server's output; sections: the parts of a
message; addresses: names of queues and exchanges in links.
"""
