"""AMQP 1.0 on sockets: the protocol of `qq/amqp10` in front of the sessions of the broker.

    ports.py            the connection, as its links see it
    connection.py       the connection: login, virtual host, sessions, closing
    link_session.py     the part that links of both directions share: a session of the log, checks, errors
    publishing_link.py  a link on which a client publishes
    consuming_link.py   a link on which a client consumes
    link_output.py      deliveries and states on their way out of such a link
    attaching.py        the source and the properties of a link on which a client consumes
    server.py           the parts that the connections of a node share
    errors.py           errors of the broker as conditions of AMQP 1.0

Invariant: each link has a session of the log of its own. So a command that the log refuses ends its link only, and the
end of a link returns its messages.
"""
