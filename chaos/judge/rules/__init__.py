"""The rules about a single message: functions of its life that add their findings.

Each module has the causes by which a message may break a promise, and the rules that find them.
"""
