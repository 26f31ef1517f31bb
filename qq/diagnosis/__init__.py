"""What is wrong with a cluster, or what limits it: rules over facts that nodes gather about themselves.

Lives here: findings and their codes (findings.py), what a node judges of itself (node_rules.py), of the members
(member_rules.py) and of queues (queue_watch.py), and what follows from all nodes together (limits.py). Not here: where
facts come from (management/diagnosis.py), HTTP (http/doctor.py).

Law: pure. The same facts at the same times make the same findings, and there are never more than a page holds.
"""
