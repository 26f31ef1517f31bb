"""AMQP 1.0 on sockets: the protocol of `qq/amqp10` in front of the sessions of the broker.

    ports.py            the connection, as its links see it
    connection.py       the connection: login, virtual host, sessions, closing
    link_session.py     the part that links of both directions share: a session of the log, checks, errors
    publishing_link.py  a link on which a client publishes
    consuming_link.py   a link on which a client consumes
    link_output.py      deliveries and states on their way out of such a link
    attaching.py        the source and the properties of a link on which a client consumes
    server.py           the parts that the connections of a node share
    delivering_link.py  the part that links share on which a client receives messages
    reply_link.py       a link on which a client gets direct replies
    temporary_queues.py the queues of links with a dynamic terminus
    management_node.py  pairs of links with requests and answers: their order, credit and limits
    management_requests.py, management_answers.py   both as values, without I/O
    management_execution.py   rights, commands and statuses of a request
    command_session.py  a session of the log for commands that belong to no link
    errors.py           errors of the broker as conditions of AMQP 1.0

Invariant: each link that publishes or consumes has a session of the log of its own. So a command that the log refuses
ends its link only, and the end of a link returns its messages.
"""
