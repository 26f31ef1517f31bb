"""Routing: the matching rules of each exchange type, from a message to queue names. Pure: it has no queues."""
