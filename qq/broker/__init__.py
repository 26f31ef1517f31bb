"""The broker's shell: AMQP connections on one side, the replicated group on the other."""
