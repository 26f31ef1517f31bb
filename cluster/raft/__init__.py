"""Rules of consensus and messages between peers. Pure: no clock, I/O or pysyncobj."""
