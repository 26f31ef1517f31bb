"""What all endpoints share: logins, errors, quotas, and large bodies in pieces."""
