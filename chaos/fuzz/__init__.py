"""Fuzzing: damaged or hostile AMQP clients against real nodes on real sockets."""
