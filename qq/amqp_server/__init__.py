"""AMQP 0-9-1 on sockets: what turns clients' methods into what sessions ask the log for, and its effects into frames.

The protocol itself, without sockets and without queues, is `qq.amqp`; what sessions are to the log is `qq.sessions`.
"""
