"""Tokens of OAuth 2 in place of passwords, as RabbitMQ's plugin rabbitmq_auth_backend_oauth2 understands them.

Lives here: whether a token is good and whom it vouches for (verifier.py), and the keys of whoever issues tokens
(keys.py). Not here: what scopes permit (qq/scopes.py), when a login is looked at (sessions/login.py).

Law: only a node that takes tokens loads this, and with it PyJWT and cryptography. No token is ever part of a text.
"""
