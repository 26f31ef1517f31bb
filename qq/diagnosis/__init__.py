"""What is wrong with a cluster, or what limits it: rules over facts that nodes gather about themselves.

Invariant: pure. The same facts at the same times make the same findings, and there are never more than a page holds.
"""
