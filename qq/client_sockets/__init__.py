"""The sockets of clients, for every client protocol: ports, connections, and messages on their way to clients.

A port (`listener`) accepts sockets, and the first octets choose a protocol (`protocol_choice`). A connection of the
protocol, such as `qq.amqp_server`, inherits from `client_connection`. The package knows no protocol.
"""
