"""What clients' sessions are to a node, whatever protocol they speak: the log on one side, protocols on the other.

A protocol's package (qq/amqp_server; what operators do over HTTP, in qq/management) implements the ports of ports.py
and asks `broker.Broker` for what its clients want. Nothing here knows of sockets, frames or methods, and nothing here
does I/O or knows the time but through the ports of cluster/runtime/ports.py: so the simulation runs all of it.
"""
