"""Clients that say almost what AMQP clients say, against a real node on real sockets."""
