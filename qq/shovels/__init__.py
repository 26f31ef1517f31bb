"""Shovels to other brokers: messages are consumed at one broker and published to another, as long as somebody wants it.

Invariant: a message is acknowledged at its source after its target has confirmed it, and no sooner, unless the shovel's
`ack-mode` wants it so. No password is ever part of a text.
"""
