"""Start of each Python process of a query: import PySpark from its installed files, which have byte code.

Spark puts archives of the same sources first. Their sources would be compiled in each worker, and each task would read
the lists of their files: 0.5 s of processor time for a worker.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith((".jar", "/pyspark.zip", "-src.zip"))]
