"""pysyncobj with its hazards closed. Only this package touches pysyncobj's private names."""
