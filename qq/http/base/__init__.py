"""Shared parts of all endpoints: logins, errors, quotas, long work in slices, large bodies in pieces."""
