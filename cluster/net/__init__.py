"""Sockets: accepting connections, the slots of connections without a login, name resolution and rate-limited
logging.
"""
