"""AMQP 0-9-1 on sockets: turns clients' methods into session requests, and the log's effects into frames.

The protocol itself, without sockets and queues, is `qq.amqp`. Sessions and their requests to the log are `qq.sessions`.
"""
