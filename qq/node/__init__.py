"""One node: the composition root, which puts all the rest together.

Lives here: when parts come up and go (node.py), what they are told of the configuration (parts.py, reread.py), what
ends a node (failure.py), why it does not serve (readiness.py), what HTTP sees of it (shown.py). Not here: what belongs
to the process, such as signals and the format of its log (qq/cli/serve.py).
"""

from qq.node.node import Node, run, start

__all__ = ["Node", "run", "start"]
