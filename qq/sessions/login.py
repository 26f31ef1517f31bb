"""Logins of clients: passwords, certificates and tokens, with delays that slow down guessing.

Three rules limit failures. A failed login is checked again when this node has applied all that the cluster has
committed, because the user may just have been created through a different node. The answer to a failure is delayed,
longer with each failure of the same user from the same address. An address, and a user, get `CHECKS_PER_S` failed
checks a second, on however many connections and however soon those close. Above that rate, the next login is checked
some moments later.

A right password is answered as soon as it is checked. It waits only during a flood of failures of its address or its
user, and even then `CHECK_WAIT_MAX_S` at most. A login that would wait longer is refused at once, so that a later
attempt may find a shorter wait. A user who has logged in from an address before waits only for failures of that user
from that address.

If the node takes tokens, a password that is an OAuth 2 token is verified by itself. A token that fails is verified
again after the keys of its issuer have been fetched anew. Its failures cost the same.

Invariant: a password is kept no longer than its login takes, and is never part of a log line or an error text.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cluster.net.connection_slots import source_of
from cluster.net.log_throttle import ThrottledLog
from qq.machine.catalog.permissions import SHA256, User
from qq.scopes import TokenUser
from qq.sessions.lanes import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cluster.runtime.ports import Runtime, Timer
    from qq.machine.machine import QueueMachine
    from qq.metrics.counters import Counters
    from qq.sessions.submissions import Submissions

log = logging.getLogger(__name__)

SALT_BYTES = 4
FIRST_DELAY_S = 0.1
"""Seconds of the delay after a user's first failed login from an address. Each further failure doubles the delay."""
DELAY_MAX_S = 5.0
"""Seconds of the longest delay. It is below the handshake timeout, so the client still gets the reason."""
FAILURES_COUNTED_MAX = 16
"""Failures that lengthen the delay. Further failures do not."""
FORGOTTEN_AFTER_S = 300.0
"""Seconds without a failure after which a user's earlier failures at an address no longer count."""
CHECKS_PER_S = 100
"""Checks of failed logins, per second, for each address and for each user."""
CHECK_WAIT_MAX_S = 3.5
"""Seconds that a login waits for its check, at most; a login that would wait longer is refused. The value is below the
time that a connection keeps its slot in any case (cluster/net/connection_slots.py)."""
CHECKS_AT_ONCE = 100
"""Failed logins that are checked without a wait after a quiet time."""
BARRIER_INTERVAL_S = 0.05
"""Seconds between two read barriers. Logins that fail meanwhile share the next barrier."""
RECORDS_MAX = 30_000
"""Remembered addresses, users, and users at addresses. The least recently used record makes room."""
USER_LENGTH_MAX = 255
"""Characters of a user name that count in a record, because unauthenticated clients choose the names."""
SHOWN_NAME_MAX = 64
"""Characters of a user name in a log line."""
LOG_LINES_PER_S = 10
"""Log lines about refused logins, per second and kind."""
_NOBODY = User("", bytes(SALT_BYTES), b"", [], SHA256)
"""The user to compare with if the given name is unknown. No password has an empty hash."""


class LoginsBusy(Exception):
    """A login would wait too long for its check, because so many logins fail."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"too many logins from this address or of this user fail: the wait is {wait_s:.1f} s"
        )
        self.wait_s = wait_s


class InvalidToken(Exception):
    """A token is invalid. The text is the reason."""


class TokenVerifier(Protocol):
    """Verifies OAuth 2 tokens."""

    def is_token(self, password: bytes) -> bool:
        """Return whether a password is meant as a token."""
        ...

    def verify(self, token: bytes) -> TokenUser:
        """Return the user that a token vouches for. Raise InvalidToken if the token is invalid."""
        ...

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        """Fetch keys and then call `renewed`, if another key may verify the token; otherwise return False."""
        ...


Outcome = TokenUser | bool
"""The result of a login: the user of a valid token, or whether the user is admitted."""


class Login(NamedTuple):
    """The name and the password that a client gives, and the client's address."""

    user: str
    password: bytes | None
    """The password; None if a certificate has vouched for the name."""
    peer_host: str
    proxy_host: str = ""
    """Address of the proxy that has sent `peer_host`; empty without a proxy."""
    protocol: str = "amqp091"
    """The client's protocol, in RabbitMQ's spelling."""
    mechanism: str = "PLAIN"
    """The name of the authentication mechanism in log lines."""
    client: str = ""
    """The name of the client's connection in log lines; empty without a name."""

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine.

        A loopback address sent by a proxy on another machine does not count.
        """
        return is_loopback(self.peer_host) and (not self.proxy_host or is_loopback(self.proxy_host))

    def __repr__(self) -> str:
        """Show everything except the password."""
        return f"Login({self.user!r} from {self.peer_host})"


class Attempt:
    """A login under way."""

    __slots__ = ("_logins", "answer", "budgets", "is_charged", "login", "timer", "wait_s")

    def __init__(
        self, logins: Logins, login: Login, budgets: Sequence[_Key], answer: Callable[[Outcome], None]
    ) -> None:
        self.login = login
        self.budgets = budgets
        """Keys of the records that are charged for a check of this login if it fails."""
        self.is_charged = False
        """Whether the records in `budgets` have been charged for this login."""
        self.answer: Callable[[Outcome], None] | None = answer
        self.wait_s = 0.0
        """Seconds that this login waits, for its check or for its answer."""
        self.timer: Timer | None = None
        self._logins = logins

    def cancel(self) -> None:
        """Cancel the login: its answer is no longer needed."""
        self._logins.cancel(self)


_Key = tuple[str | None, str | None]
"""Key of a record: an address and a user. None stands for all addresses, or for all users."""


class _Record:
    """Failures of an address, of a user, or of a user at an address."""

    __slots__ = ("failures", "is_known", "last_failure_s", "paid_until_s")

    def __init__(self) -> None:
        self.paid_until_s = 0.0
        """Monotonic time, in seconds, up to which failed checks have used up the rate: each adds 1 / `CHECKS_PER_S`
        seconds."""
        self.failures = 0
        self.last_failure_s = 0.0
        self.is_known = False
        """Whether the user has logged in from the address."""


class Logins:
    """The logins of a node."""

    def __init__(
        self,
        machine: QueueMachine,
        submissions: Submissions,
        runtime: Runtime,
        loopback_users: Collection[str],
        counters: Counters,
    ) -> None:
        self.verifier: TokenVerifier | None = None
        """The verifier of tokens; None if the node takes no tokens, and treats every password as a password."""
        self._throttled_log = ThrottledLog(log, LOG_LINES_PER_S)
        self._machine = machine
        self._submissions = submissions
        self._lane = Lane()
        self._runtime = runtime
        self._loopback_users = frozenset(loopback_users)
        self._counters = counters
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        """Logins by protocol and success (True or False). The reader may clear it."""
        self._records: dict[_Key, _Record] = {}
        """The records of failed logins. The most recently used are last."""
        self._waiting: dict[Attempt, None] = {}
        """Logins that wait for their first check."""
        self._unsure: dict[Attempt, None] = {}
        """Logins that fail on this node's present state. The next read barrier decides about them."""
        self._is_rechecking = False

    def attempt(self, login: Login, answer: Callable[[Outcome], None]) -> Attempt | None:
        """Check a login and call `answer` with the outcome. Return None if `answer` has already been called.

        A valid login is answered at once, unless failures of its address or user make it wait. Raises LoginsBusy.
        """
        key = _key_of(login)
        attempt = Attempt(self, login, self._budgets(key), answer)
        wait_s = max(self._debt_s(budget) for budget in attempt.budgets) - CHECKS_AT_ONCE / CHECKS_PER_S
        if wait_s <= 0:
            self._check(attempt)
            return attempt if attempt.answer is not None else None
        if wait_s > CHECK_WAIT_MAX_S:
            busy = LoginsBusy(wait_s)
            self._throttled_log.warning("busy", f"{self._described(login)} not checked: {busy}")
            raise busy
        self._charge(attempt)
        self._waiting[attempt] = None
        attempt.wait_s = wait_s
        attempt.timer = self._runtime.call_later(wait_s, partial(self._check, attempt))
        return attempt

    def may_come_from(self, user: str, peer_host: str) -> bool:
        """Return whether a user may log in from an address: some users may do so from this machine only."""
        return self._may_come_from(user, is_local=is_loopback(peer_host))

    def _may_come_from(self, user: str, *, is_local: bool) -> bool:
        return is_local or user not in self._loopback_users

    def cancel(self, attempt: Attempt) -> None:
        """Cancel a login. It is charged only if its check has been made."""
        attempt.answer = None
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt in self._waiting:
            del self._waiting[attempt]
            self._refund(attempt)
        if attempt in self._unsure:
            # A valid login would have been answered by now, so the client has learned that this login is refused.
            del self._unsure[attempt]
            self._count_failure(attempt.login)

    def verify(self, token: bytes, answer: Callable[[TokenUser | InvalidToken], None]) -> None:
        """Verify a newer token of a logged-in user. Call `answer` with the token's user or the reason to refuse it."""
        verifier = self.verifier
        if verifier is None:
            answer(InvalidToken("this node takes no tokens"))
            return

        outcome = _verify(verifier, token)
        if isinstance(outcome, TokenUser) or not verifier.renew_keys(
            token, lambda: answer(_verify(verifier, token))
        ):
            answer(outcome)

    def _outcome(self, login: Login) -> Outcome:
        """Return whether a login is valid, or the user that its token vouches for."""
        if not self._has_token(login):
            return self._admits(login)
        assert self.verifier is not None
        assert login.password is not None
        found = _verify(self.verifier, login.password)
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
            # As in RabbitMQ, an empty password is refused even if it is the right password.
            right = hmac.compare_digest(hashed, compared.hash) and password != b""
        return right and self._may_come_from(user, is_local=login.is_local)

    # The cost of failures

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
            record.paid_until_s = max(record.paid_until_s, now_s) + 1 / CHECKS_PER_S

    def _refund(self, attempt: Attempt) -> None:
        for key in attempt.budgets if attempt.is_charged else ():
            record = self._records.get(key)
            if record is not None:
                record.paid_until_s -= 1 / CHECKS_PER_S
        attempt.is_charged = False

    def _record(self, key: _Key) -> _Record:
        record = self._records[key] = self._records.pop(key, None) or _Record()
        if len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]
        return record

    # The course of a login

    def _check(self, attempt: Attempt) -> None:
        """Answer a valid login. Otherwise arrange a second check."""
        self._waiting.pop(attempt, None)
        if found := self._outcome(attempt.login):
            self._admit(attempt, found)
            return
        if not attempt.is_charged:
            self._charge(attempt)
        if self._has_token(attempt.login):
            self._check_with_new_keys(attempt)
            return
        self._unsure[attempt] = None
        if not self._is_rechecking:
            self._recheck_unsure()

    def _check_with_new_keys(self, attempt: Attempt) -> None:
        token = attempt.login.password
        assert self.verifier is not None
        assert token is not None

        def renewed() -> None:
            if found := self._outcome(attempt.login):
                self._admit(attempt, found)
            else:
                self._refuse_token(attempt, token)

        if not self.verifier.renew_keys(token, renewed):
            self._refuse_token(attempt, token)

    def _refuse_token(self, attempt: Attempt, token: bytes) -> None:
        assert self.verifier is not None
        outcome = _verify(self.verifier, token)
        why = str(outcome) if isinstance(outcome, InvalidToken) else "its user may not log in from there"
        self._delay_refusal(attempt, f"invalid token: {why}")

    def _admit(self, attempt: Attempt, found: Outcome) -> None:
        self._refund(attempt)
        self._record(_key_of(attempt.login)).is_known = True
        self._counters.logins_succeeded += 1
        self.outcomes[attempt.login.protocol, True] += 1
        answer, attempt.answer = attempt.answer, None
        if answer is not None:
            answer(found)

    def _recheck_unsure(self) -> None:
        unsure, self._unsure = self._unsure, {}
        self._is_rechecking = bool(unsure)
        if unsure:
            self._submissions.read(partial(self._rechecked, unsure), self._lane)

    def _rechecked(self, unsure: Collection[Attempt]) -> None:
        self._runtime.call_later(BARRIER_INTERVAL_S, self._recheck_unsure)
        for attempt in unsure:
            if found := self._outcome(attempt.login):
                self._admit(attempt, found)
            else:
                self._delay_refusal(attempt)

    def _delay_refusal(self, attempt: Attempt, why: str = "") -> None:
        """Delay the answer to a refused login. `why` is the reason if it is known already."""
        record = self._record(_key_of(attempt.login))
        now_s = self._runtime.monotonic()
        if now_s - record.last_failure_s > FORGOTTEN_AFTER_S:
            record.failures = 0
        attempt.wait_s = min(FIRST_DELAY_S * 2**record.failures, DELAY_MAX_S)
        record.failures = min(record.failures + 1, FAILURES_COUNTED_MAX)
        record.last_failure_s = now_s
        self._count_failure(attempt.login, why)
        if attempt.answer is not None:
            attempt.timer = self._runtime.call_later(attempt.wait_s, partial(attempt.answer, False))

    def _count_failure(self, login: Login, why: str = "") -> None:
        """Count and log a refused login. The reason goes to the log only, because the client could use it to guess."""
        self._counters.logins_failed += 1
        self.outcomes[login.protocol, False] += 1
        why = why or self._why_refused(login)
        text = f"{self._described(login)} refused"
        self._throttled_log.warning("refused", f"{text}: {why}" if why else text)

    def _why_refused(self, login: Login) -> str:
        """Return the reason of a refusal for the log; "" if it needs the level debug."""
        if not self._may_come_from(login.user, is_local=login.is_local):
            return "this user may log in only from the node's own machine (loopback_users)"
        if not log.isEnabledFor(logging.DEBUG):
            return ""
        return "wrong password" if login.user in self._machine.users else "no such user"

    def _described(self, login: Login) -> str:
        user = login.user
        shown = user if len(user) <= SHOWN_NAME_MAX else user[:SHOWN_NAME_MAX] + "..."
        connection = f"{login.client}: " if login.client else ""
        subject = f"login of user {shown!r}" if user or not self._has_token(login) else "login with a token"
        return f"{connection}{subject} from {login.peer_host} ({login.mechanism})"


def _verify(verifier: TokenVerifier, token: bytes) -> TokenUser | InvalidToken:
    try:
        return verifier.verify(token)
    except InvalidToken as invalid:
        return invalid


def hash_password(salt: bytes, password: bytes, hashing: str = SHA256) -> bytes:
    """Return the hash of a salt and a password as RabbitMQ computes it, so that its exported users can log in."""
    # With `usedforsecurity=False`, users with MD5 hashes from RabbitMQ can log in where the machine's policy forbids
    # MD5.
    return hashlib.new(hashing, salt + password, usedforsecurity=False).digest()


def is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def _key_of(login: Login) -> _Key:
    return source_of(login.peer_host), login.user[:USER_LENGTH_MAX]
