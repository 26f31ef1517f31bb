"""The sockets of clients, for every client protocol: ports, proxies' headers, TLS, and back-pressure.

A protocol, such as `qq.amqp_server`, makes a connection for each accepted socket. The package knows no protocol.
"""
