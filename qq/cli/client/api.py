"""Paths and content types of the management API."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

ARCHIVE, JSON = "application/x-tar", "application/json"
"""Content types."""
DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
"""Statuses of an answer to a successful request."""


def path_of(*parts: str) -> str:
    """Make a path below /api from names, which may contain any characters."""
    return "/".join(["/api", *map(_segment, parts)])


def _segment(name: str) -> str:
    # Dots would be taken for path segments; to a node they are ordinary names.
    return {".": "%2E", "..": "%2E%2E"}.get(name, quote(name, safe=""))
