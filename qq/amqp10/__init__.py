"""The server's side of AMQP 1.0 without I/O: bytes in, events out; decisions in, frames out.

conditions: error conditions; values: the type system; composites, performatives: described lists as named tuples;
framing: frames, and fast paths for transfers and dispositions; encoding: the server's output; sections: the parts of a
message; addresses: names of queues and exchanges in links.

connection: login, open and close; session: links and their frames; windows: transfers that each side may send; link:
attaching and detaching; receiving_link: publishing; sending_link: consuming.
"""
