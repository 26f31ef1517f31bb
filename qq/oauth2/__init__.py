"""OAuth 2 tokens in place of passwords, as RabbitMQ's plugin rabbitmq_auth_backend_oauth2 understands them.

Invariant: only nodes that accept tokens import this package, and with it PyJWT and cryptography. Tokens never appear in
log lines or error texts.
"""
