"""Who may log in, and how long those wait who may not.

Lives here: passwords and names from certificates against the users of the log; patience with those who guess. Not here:
how a client says who it is (qq/amqp/connection.py), what a user may do.

Two rules. A login that fails is looked at again when this node has applied all that the cluster has committed: the user
may just have been created through another node. And its answer is held back, for longer with each failure from the
same address; while many are held back, further logins from there wait. So whoever guesses gets few answers a
second on however many connections, and nobody else notices.

Law: no password is kept longer than it takes to answer, and none is ever part of a text.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.access import SHA256, User

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.ports import Runtime
    from qq.broker.submissions import Submissions
    from qq.machine.machine import QueueMachine
    from qq.metrics import Counters

SALT_BYTES = 4
FIRST_DELAY_S = 0.1
"""How long the answer to the first failed login from an address is held back; each further one twice as long ..."""
DELAY_MAX_S = 5.0
"""... up to this: within the handshake timeout, so that the client still hears why."""
FAILURES_COUNTED_MAX = 16
"""More do not make the delay any longer."""
FORGOTTEN_AFTER_S = 300.0
"""Without a failure for so long, an address is like any other again."""
HELD_BACK_MAX = 16
"""Failed logins of one address whose answers are held back at a time; further logins from there wait."""
SOURCES_MAX = 10_000
"""Addresses remembered; the one that was quiet for longest makes room."""
_IPV6_NETWORK_BITS = 64
"""What one customer has of IPv6, at least: single addresses are free to choose."""
_NOBODY = User("", bytes(SALT_BYTES), b"", [], SHA256)
"""Whom an unknown user is compared with: no password has an empty hash."""


class Login(NamedTuple):
    """Who somebody says to be, and from where."""

    user: str
    password: bytes | None
    """None: a certificate has vouched for the name."""
    peer_host: str

    def __repr__(self) -> str:
        """Tell everything but the password."""
        return f"Login({self.user!r} from {self.peer_host})"


class Attempt:
    """A login under way."""

    __slots__ = ("answer", "login", "source")

    def __init__(self, login: Login, source: _Source, answer: Callable[[bool], None]) -> None:
        self.login = login
        self.source = source
        self.answer: Callable[[bool], None] | None = answer

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self.answer = None
        self.source.waiting.pop(self, None)


class _Source:
    """An address that logins come from."""

    __slots__ = ("failures", "held_back", "last_failure_s", "waiting")

    def __init__(self) -> None:
        self.failures = 0
        self.held_back = 0
        """Failed logins that are not answered yet."""
        self.last_failure_s = 0.0
        self.waiting: dict[Attempt, None] = {}
        """Not looked at yet, in the order in which they came."""


class Logins:
    """The logins of one node."""

    def __init__(
        self,
        machine: QueueMachine,
        submissions: Submissions,
        runtime: Runtime,
        loopback_users: Collection[str],
        counters: Counters,
    ) -> None:
        self._machine = machine
        self._submissions = submissions
        self._runtime = runtime
        self._loopback_users = frozenset(loopback_users)
        self._counters = counters
        self._sources: dict[str, _Source] = {}
        """Those with failures, the latest last."""

    def attempt(self, login: Login, answer: Callable[[bool], None]) -> Attempt | None:
        """Have `answer` called with the outcome; None is returned if that has happened already.

        So it is with a good login, unless it has to wait because others from the same address fail.
        """
        attempt = Attempt(login, self._sources.get(_source_of(login.peer_host)) or _Source(), answer)
        if attempt.source.held_back >= HELD_BACK_MAX:
            attempt.source.waiting[attempt] = None
            return attempt
        return None if self._look(attempt) else attempt

    def _admits(self, login: Login) -> bool:
        user, password, peer_host = login
        known = self._machine.users.get(user)
        if password is None:
            right = known is not None
        else:
            # An unknown user costs the same time as a wrong password.
            compared = known or _NOBODY
            hashed = hash_password(compared.salt, password, compared.hashing)
            right = hmac.compare_digest(hashed, compared.hash)
        return right and (user not in self._loopback_users or is_loopback(peer_host))

    def _count(self, *, admitted: bool) -> None:
        if admitted:
            self._counters.logins_succeeded += 1
        else:
            self._counters.logins_failed += 1

    # The way of a login that fails

    def _look(self, attempt: Attempt) -> bool:
        """Answer a login that is good, or see to it that it is looked at again; return whether it is answered."""
        if self._admits(attempt.login):
            self._answer(attempt, admitted=True)
            return True
        source = attempt.source
        source.held_back += 1
        self._remember(_source_of(attempt.login.peer_host), source)
        self._submissions.barrier(partial(self._look_once_more, attempt))
        return False

    def _remember(self, address: str, source: _Source) -> None:
        self._sources.pop(address, None)
        self._sources[address] = source
        if len(self._sources) > SOURCES_MAX:
            del self._sources[next(iter(self._sources))]

    def _look_once_more(self, attempt: Attempt) -> None:
        source = attempt.source
        if self._admits(attempt.login):
            self._answer(attempt, admitted=True)
            self._let_go(source)
            return
        now_s = self._runtime.monotonic()
        if now_s - source.last_failure_s > FORGOTTEN_AFTER_S:
            source.failures = 0
        delay_s = min(FIRST_DELAY_S * 2**source.failures, DELAY_MAX_S)
        source.failures = min(source.failures + 1, FAILURES_COUNTED_MAX)
        source.last_failure_s = now_s
        self._runtime.call_later(delay_s, partial(self._refuse, attempt))

    def _refuse(self, attempt: Attempt) -> None:
        self._answer(attempt, admitted=False)
        self._let_go(attempt.source)

    def _let_go(self, source: _Source) -> None:
        source.held_back -= 1
        while source.waiting and source.held_back < HELD_BACK_MAX:
            attempt = next(iter(source.waiting))
            del source.waiting[attempt]
            self._look(attempt)

    def _answer(self, attempt: Attempt, *, admitted: bool) -> None:
        self._count(admitted=admitted)
        if attempt.answer is not None:
            attempt.answer(admitted)


def hash_password(salt: bytes, password: bytes, hashing: str = SHA256) -> bytes:
    """RabbitMQ's scheme, so that its exported users can be taken over: a hash of salt and password."""
    # Where a policy of the machine forbids MD5, users that RabbitMQ has hashed with it can log in all the same.
    return hashlib.new(hashing, salt + password, usedforsecurity=False).digest()


def is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def _source_of(host: str) -> str:
    """Return what counts as one address: with IPv6 a network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket that has no address
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
