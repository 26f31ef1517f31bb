"""Tokens of OAuth 2 in place of passwords, as RabbitMQ's plugin rabbitmq_auth_backend_oauth2 understands them.

Invariant: only a node that takes tokens loads this, and with it PyJWT and cryptography. No token is ever part of a
text.
"""
