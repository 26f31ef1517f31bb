"""Logins over HTTP and web sessions of the management page."""
