"""A broker node: the composition root, which builds all parts and starts and stops them."""

from qq.node.node import Node, run, start

__all__ = ["Node", "run", "start"]
