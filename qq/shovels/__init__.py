"""Shovels to other brokers: messages are consumed at a source broker and published to a target broker.

Invariant: a message is acknowledged at its source only after its target has confirmed it, unless the shovel's
`ack-mode` says otherwise. Error texts and reports never contain a password.
"""
