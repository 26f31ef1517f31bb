"""pysyncobj with its hazards closed: the only package that touches its private names."""
