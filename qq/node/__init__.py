"""One node: the composition root, which puts all the rest together."""

from qq.node.node import Node, run, start

__all__ = ["Node", "run", "start"]
