"""Pure: the rules of consensus and the messages between nodes, without clock, I/O or pysyncobj."""
