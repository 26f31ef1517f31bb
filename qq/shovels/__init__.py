"""Shovels to other brokers: messages are consumed at one broker and published to another, as long as somebody wants it.

Lives here: what a shovel's value says (definition.py, uris.py), an AMQP client (client.py, frames.py) and how it
connects (connecting.py), what a message is given on its way (outbound.py), the numbers by which a target knows it again
(ledger.py), one run of a shovel (run.py), and which of them this node carries out (carrier.py). Not here: shovels
that are moves in the log, because both of their ends are queues of one virtual host (sessions/shovels.py); HTTP
(http/shovels.py).

Law: a message is acknowledged at its source after its target has confirmed it, and no sooner, unless the shovel's
`ack-mode` wants it so. No password is ever part of a text.
"""
