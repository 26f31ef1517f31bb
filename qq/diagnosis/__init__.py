"""Diagnosis: pure rules that find faults and bottlenecks of a cluster in facts that its nodes gather about themselves.

Invariant: pure. The same facts at the same times give the same findings. Their number is bounded by what a page can
show.
"""
