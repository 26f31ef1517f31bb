"""Reports on queues, consumers, clients, shovels and the other objects of the broker."""
