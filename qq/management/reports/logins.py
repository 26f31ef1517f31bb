"""Logged-in users."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from qq.scopes import Scopes


class LoggedIn(NamedTuple):
    """A logged-in user."""

    user: str
    tags: Collection[str]
    scopes: Scopes | None = None
    """Scopes of the user's OAuth 2 token; None if the user is in the cluster's list."""
    expires_s: float = inf
    """When the token expires, in seconds since 1970; infinite without a token."""


class WebLogin(NamedTuple):
    """A valid web session: a login with the page."""

    token: str
    """Session token: the browser keeps it and sends it with each request."""
    user: str
    tags: Collection[str]
    csrf_token: str
    expires_s: int
    """When the session expires, in seconds since 1970."""
    scopes: Scopes | None = None
    """Scopes of the OAuth 2 token that began the session; None if the user is in the cluster's list."""
