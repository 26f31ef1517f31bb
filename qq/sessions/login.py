"""Who may log in, and how long those wait who may not.

Three rules. A login that fails is looked at again when this node has applied all that the cluster has committed: the
user may just have been created through another node. The answer to a failure is held back, for longer with each from
the same address for the same user. And an address, and a user, get `LOOKS_PER_S` failures a second, on however many
connections and however soon those hang up: behind that many, the next login is looked at some moments later.

A right password is answered when it is looked at: at once, but behind a flood of failures of its address, or for its
user. Even then it waits for `LOOK_WAIT_MAX_S` at most; a login that would wait for longer is turned away at once, so
that another attempt may find a shorter wait. And who has logged in from an address before waits for nobody but those
who guess at that user from that address.

A password that is a token of OAuth 2 is judged by itself, if the node takes tokens. It is looked at again when the keys
of whoever issues tokens have been fetched anew, and its failures cost the same.

Invariant: no password is kept longer than it takes to answer, and none is ever part of a text.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.net.connection_slots import source_of
from cluster.net.log_throttle import Complaints
from qq.machine.catalog.permissions import SHA256, User
from qq.scopes import TokenUser
from qq.sessions.fair_queue import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cluster.runtime.ports import Runtime, Timer
    from qq.machine.machine import QueueMachine
    from qq.metrics.counters import Counters
    from qq.sessions.submissions import Submissions

log = logging.getLogger(__name__)

SALT_BYTES = 4
FIRST_DELAY_S = 0.1
"""How long the answer to a user's first failed login from an address is held back; each further one twice as long."""
DELAY_MAX_S = 5.0
"""The longest that an answer is held back: within the handshake timeout, so that the client still hears why."""
FAILURES_COUNTED_MAX = 16
"""How many failures make the delay longer; further ones do not."""
FORGOTTEN_AFTER_S = 300.0
"""After how long without a failure a user's earlier ones at an address no longer count."""
LOOKS_PER_S = 100
"""Failed logins of one address, and for one user, that are looked at."""
LOOK_WAIT_MAX_S = 3.5
"""The longest that a login waits for its look; one that would wait for longer is turned away. It is less than the time
for which its connection keeps its place, whatever comes (cluster/net/connection_slots.py)."""
LOOKS_AT_ONCE = 100
"""How many failed logins are looked at without a wait, after some quiet."""
BARRIER_INTERVAL_S = 0.05
"""How long to wait before the log is asked again: logins that fail meanwhile are asked about together."""
RECORDS_MAX = 30_000
"""How many addresses, users and users at addresses are remembered; the one quiet for longest makes room."""
USER_LENGTH_MAX = 255
"""How many characters of a user's name count for what is remembered: strangers choose what they send."""
_NOBODY = User("", bytes(SALT_BYTES), b"", [], SHA256)
"""The user that an unknown user's password is compared with: no password has an empty hash."""


class LoginsBusy(Exception):
    """A login would wait for too long for its look, because so many logins fail."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"too many logins from this address or of this user fail: the wait is {wait_s:.1f} s"
        )
        self.wait_s = wait_s


class InvalidToken(Exception):
    """A token is not good, for this reason."""


class TokenVerifier(Protocol):
    """Judges tokens of OAuth 2."""

    def is_token(self, password: bytes) -> bool:
        """Whether a password is meant as a token."""
        ...

    def verify(self, token: bytes) -> TokenUser:
        """Whom a token vouches for. Raises InvalidToken."""
        ...

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        """Have keys fetched, and `renewed` called then, if the token may be good by another key; else return False."""
        ...


Outcome = TokenUser | bool
"""What comes of a login: whether the user is admitted, or whom a token vouches for."""


class Login(NamedTuple):
    """The name and the password that a client gives, and the address that it comes from."""

    user: str
    password: bytes | None
    """The password; None if a certificate has vouched for the name."""
    peer_host: str
    proxy_host: str = ""
    """The address of the proxy that has told `peer_host`; empty if there was none."""
    protocol: str = "amqp091"
    """The protocol of the client, in RabbitMQ's words."""

    @property
    def is_local(self) -> bool:
        """Whether it comes from this machine: what a proxy elsewhere says of "its" loopback does not count."""
        return is_loopback(self.peer_host) and (not self.proxy_host or is_loopback(self.proxy_host))

    def __repr__(self) -> str:
        """Tell everything but the password."""
        return f"Login({self.user!r} from {self.peer_host})"


class Attempt:
    """A login under way, and what it waits for."""

    __slots__ = ("_logins", "answer", "budgets", "is_charged", "login", "timer", "wait_s")

    def __init__(
        self, logins: Logins, login: Login, budgets: Sequence[_Key], answer: Callable[[Outcome], None]
    ) -> None:
        self.login = login
        self.budgets = budgets
        """The records that pay for a look at this login if it fails."""
        self.is_charged = False
        """Whether the budgets have paid for this login."""
        self.answer: Callable[[Outcome], None] | None = answer
        self.wait_s = 0.0
        """How many seconds this login waits altogether, for its look or for its answer."""
        self.timer: Timer | None = None
        self._logins = logins

    def cancel(self) -> None:
        """Give the login up: nobody waits for the answer any more."""
        self._logins.cancel(self)


_Key = tuple[str | None, str | None]
"""An address and a user, of whom something is remembered; None stands for all addresses, or all users."""


class _Record:
    """What is remembered about an address, about a user, or about a user at an address."""

    __slots__ = ("failures", "is_known", "last_failure_s", "paid_until_s")

    def __init__(self) -> None:
        self.paid_until_s = 0.0
        """The (monotonic) time for which failed looks have paid, each for a `LOOKS_PER_S`-th of a second."""
        self.failures = 0
        self.last_failure_s = 0.0
        self.is_known = False
        """Whether the user has logged in from the address."""


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
        self.verifier: TokenVerifier | None = None
        """What judges tokens; None: there are no tokens, and each password is one."""
        self._complaints = Complaints(log)
        self._machine = machine
        self._submissions = submissions
        self._lane = Lane()
        self._runtime = runtime
        self._loopback_users = frozenset(loopback_users)
        self._counters = counters
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        """How many logins there were of each protocol that succeeded (True) and that failed. It may be cleared."""
        self._records: dict[_Key, _Record] = {}
        """The records of failed logins; those used latest are last."""
        self._waiting: dict[Attempt, None] = {}
        """Logins that have not been looked at yet."""
        self._unsure: dict[Attempt, None] = {}
        """Logins that fail as far as this node knows: it asks the log about them next."""
        self._is_asking = False

    def attempt(self, login: Login, answer: Callable[[Outcome], None]) -> Attempt | None:
        """Have `answer` called with the outcome; None is returned if that has happened already.

        A good login is answered at once, unless it has to wait because others fail. Raises LoginsBusy.
        """
        key = _key_of(login)
        attempt = Attempt(self, login, self._budgets(key), answer)
        wait_s = max(self._debt_s(budget) for budget in attempt.budgets) - LOOKS_AT_ONCE / LOOKS_PER_S
        if wait_s <= 0:
            self._look(attempt)
            return attempt if attempt.answer is not None else None
        if wait_s > LOOK_WAIT_MAX_S:
            raise LoginsBusy(wait_s)
        self._charge(attempt)
        self._waiting[attempt] = None
        attempt.wait_s = wait_s
        attempt.timer = self._runtime.call_later(wait_s, partial(self._look, attempt))
        return attempt

    def may_come_from(self, user: str, peer_host: str) -> bool:
        """Whether a user may be logged in from an address: some may be so from this machine only."""
        return self._may_come_from(user, is_local=is_loopback(peer_host))

    def _may_come_from(self, user: str, *, is_local: bool) -> bool:
        return is_local or user not in self._loopback_users

    def cancel(self, attempt: Attempt) -> None:
        """Give a login up. A look that was not made costs nothing; one that was made costs the same."""
        attempt.answer = None
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt in self._waiting:
            del self._waiting[attempt]
            self._give_back(attempt)
        self._unsure.pop(attempt, None)

    def verify(self, token: bytes, answer: Callable[[TokenUser | InvalidToken], None]) -> None:
        """Have `answer` called with whom another token of somebody who has logged in vouches for, or why for nobody."""
        verifier = self.verifier
        if verifier is None:
            answer(InvalidToken("this node takes no tokens"))
            return

        outcome = _judged(verifier, token)
        if isinstance(outcome, TokenUser) or not verifier.renew_keys(
            token, lambda: answer(_judged(verifier, token))
        ):
            answer(outcome)

    def _found(self, login: Login) -> Outcome:
        """Whether a login is good; whom its token vouches for, if it is one."""
        if not self._has_token(login):
            return self._admits(login)
        assert self.verifier is not None
        assert login.password is not None
        found = _judged(self.verifier, login.password)
        if isinstance(found, InvalidToken) or not self._may_come_from(found.name, is_local=login.is_local):
            return False
        return found

    def _has_token(self, login: Login) -> bool:
        password = login.password
        return self.verifier is not None and password is not None and self.verifier.is_token(password)

    def _admits(self, login: Login) -> bool:
        user, password, *_ = login
        known = self._machine.users.get(user)
        if password is None:
            right = known is not None
        else:
            # An unknown user costs the same time as a wrong password.
            compared = known or _NOBODY
            hashed = hash_password(compared.salt, password, compared.hashing)
            # Nobody logs in without a password, though it be the right one: as in RabbitMQ.
            right = hmac.compare_digest(hashed, compared.hash) and password != b""
        return right and self._may_come_from(user, is_local=login.is_local)

    # What failures cost

    def _budgets(self, key: _Key) -> Sequence[_Key]:
        record = self._records.get(key)
        address, user = key
        return (key,) if record is not None and record.is_known else ((address, None), (None, user))

    def _debt_s(self, key: _Key) -> float:
        record = self._records.get(key)
        return record.paid_until_s - self._runtime.monotonic() if record is not None else -1.0

    def _charge(self, attempt: Attempt) -> None:
        attempt.is_charged = True
        now_s = self._runtime.monotonic()
        for key in attempt.budgets:
            record = self._record(key)
            record.paid_until_s = max(record.paid_until_s, now_s) + 1 / LOOKS_PER_S

    def _give_back(self, attempt: Attempt) -> None:
        for key in attempt.budgets if attempt.is_charged else ():
            record = self._records.get(key)
            if record is not None:
                record.paid_until_s -= 1 / LOOKS_PER_S
        attempt.is_charged = False

    def _record(self, key: _Key) -> _Record:
        record = self._records[key] = self._records.pop(key, None) or _Record()
        if len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]
        return record

    # The way of a login

    def _look(self, attempt: Attempt) -> None:
        """Answer a login that is good; have any other one looked at again."""
        self._waiting.pop(attempt, None)
        if found := self._found(attempt.login):
            self._admit(attempt, found)
            return
        if not attempt.is_charged:
            self._charge(attempt)
        if self._has_token(attempt.login):
            self._look_with_new_keys(attempt)
            return
        self._unsure[attempt] = None
        if not self._is_asking:
            self._ask()

    def _look_with_new_keys(self, attempt: Attempt) -> None:
        token = attempt.login.password
        assert self.verifier is not None
        assert token is not None

        def renewed() -> None:
            if found := self._found(attempt.login):
                self._admit(attempt, found)
            else:
                self._refuse_token(attempt, token)

        if not self.verifier.renew_keys(token, renewed):
            self._refuse_token(attempt, token)

    def _refuse_token(self, attempt: Attempt, token: bytes) -> None:
        assert self.verifier is not None
        outcome = _judged(self.verifier, token)
        why = outcome if isinstance(outcome, InvalidToken) else "its user may not log in from there"
        self._complaints.about("token", f"a token from {attempt.login.peer_host} is refused: {why}")
        self._hold_back(attempt)

    def _admit(self, attempt: Attempt, found: Outcome) -> None:
        self._give_back(attempt)
        self._record(_key_of(attempt.login)).is_known = True
        self._counters.logins_succeeded += 1
        self.outcomes[attempt.login.protocol, True] += 1
        answer, attempt.answer = attempt.answer, None
        if answer is not None:
            answer(found)

    def _ask(self) -> None:
        unsure, self._unsure = self._unsure, {}
        self._is_asking = bool(unsure)
        if unsure:
            self._submissions.read_barrier(partial(self._heard, unsure), self._lane)

    def _heard(self, unsure: Collection[Attempt]) -> None:
        self._runtime.call_later(BARRIER_INTERVAL_S, self._ask)
        for attempt in unsure:
            if found := self._found(attempt.login):
                self._admit(attempt, found)
            else:
                self._hold_back(attempt)

    def _hold_back(self, attempt: Attempt) -> None:
        record = self._record(_key_of(attempt.login))
        now_s = self._runtime.monotonic()
        if now_s - record.last_failure_s > FORGOTTEN_AFTER_S:
            record.failures = 0
        attempt.wait_s = min(FIRST_DELAY_S * 2**record.failures, DELAY_MAX_S)
        record.failures = min(record.failures + 1, FAILURES_COUNTED_MAX)
        record.last_failure_s = now_s
        self._counters.logins_failed += 1
        self.outcomes[attempt.login.protocol, False] += 1
        if attempt.answer is not None:
            attempt.timer = self._runtime.call_later(attempt.wait_s, partial(attempt.answer, False))


def _judged(verifier: TokenVerifier, token: bytes) -> TokenUser | InvalidToken:
    try:
        return verifier.verify(token)
    except InvalidToken as invalid:
        return invalid


def hash_password(salt: bytes, password: bytes, hashing: str = SHA256) -> bytes:
    """Hash a salt and a password in RabbitMQ's way, so that users exported from it can be taken over."""
    # Where a policy of the machine forbids MD5, users that RabbitMQ has hashed with it can log in all the same.
    return hashlib.new(hashing, salt + password, usedforsecurity=False).digest()


def is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def _key_of(login: Login) -> _Key:
    return source_of(login.peer_host), login.user[:USER_LENGTH_MAX]
