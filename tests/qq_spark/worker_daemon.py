"""Spark's daemon, which forks the workers of executors, with the workers' imports done before the fork.

Invariant: the daemon forks while no further thread runs Python. Pyarrow's thread of its own only waits for signals.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark import daemon

if __name__ == "__main__":
    for module in ("pyspark.worker", "qq_spark.source", "qq_spark.sink"):
        import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()
