"""Client sessions of a node, independent of the client protocol.

The package sits between the log and the protocols. A protocol's package (qq/amqp_server; for operators' HTTP requests,
qq/management) implements the ports of ports.py and passes its clients' requests to `broker.Broker`.

Invariant: this package knows no sockets, frames or methods of a protocol. It does I/O and reads the time only through
the ports of cluster/runtime/ports.py, so the simulation runs all of it.
"""
