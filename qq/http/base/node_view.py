"""Interfaces of the HTTP port to its node and to the issuer of tokens that logs users in to the management page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.management.reports.logins import LoggedIn
    from qq.management.reports.members import ClusterStatus


class LoginRound(NamedTuple):
    """A login at the issuer's page, from its beginning until the browser returns."""

    redirect_uri: str
    """URL of this node; the issuer sends the browser back there."""
    state: str
    nonce: str
    verifier: str
    """The `code_verifier` of PKCE (RFC 7636)."""


class LoginRefused(Exception):
    """A login failed, for this reason."""


class LoginProvider(Protocol):
    """An issuer of tokens with a login page (OpenID Connect)."""

    @property
    def client_id(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    async def login_address(self, login: LoginRound, /) -> str:
        """Return the URL of the issuer's login page. Raises Unavailable."""
        ...

    async def redeem(self, code: str, login: LoginRound, /) -> str:
        """Exchange the code that the browser brought back for an access token. Raises LoginRefused, Unavailable."""
        ...


class NodeView(Protocol):
    """The node behind the HTTP interface."""

    def cluster_status(self) -> ClusterStatus: ...

    def ready(self) -> str | None:
        """Return why the node does not serve clients (under repair, no leader, no listener), or None if it does."""
        ...

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        """Return text and labels of the info metrics that identify this node, by their names after `rabbitmq_`.

        `endpoint` is RabbitMQ's name for the scraped path.
        """
        ...

    async def authenticate(self, user: str, password: str, peer_host: str) -> LoggedIn | None:
        """Return the user, or None if the password or token is invalid.

        It may take seconds, to slow down guessing. Raises LoginThrottled, Unavailable.
        """
        ...

    def account(self, user: str) -> object:
        """Return a user's account: it changes with the password and the tags, and is None for an unknown user."""
        ...

    @property
    def takes_tokens(self) -> bool:
        """Return whether logins with OAuth 2 tokens are possible."""
        ...

    @property
    def login_provider(self) -> LoginProvider | None:
        """Return the issuer of tokens that logs users in to the management page, or None."""
        ...
