"""Limits of publishing for messages that come over HTTP in large requests.

A request waits some seconds until the limits let its messages pass. If that is too short, the client repeats it later
at the same node, and the messages that have passed need not pass again.

Invariant: memory is bounded: a request without waiting messages is remembered for a minute, and at most `WRITERS_MAX`
of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.management.errors import NOT_CARRIED_OUT, PublishersWait

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from qq.sessions.broker import Broker
    from qq.sessions.throttle import Throttle

PASS_WAIT_S = 5.0
"""Seconds for which a request waits until its messages may pass: less than a client waits for an answer."""
RETRY_S = 1.0
"""Seconds after which the client should try again. An unused limit is saved up for as long."""
KEPT_S = 60.0
"""Seconds for which a writer is remembered after its last request."""
WRITERS_MAX = 10_000
"""Writers that are remembered, of about 1 KiB each. The writer whose last request is longest ago is forgotten first."""


class _WriterConnection(NamedTuple):
    id: int
    vhost: str
    user: str


class _Writer:
    """A writer whose messages pass the limits in their order."""

    def __init__(self, session: int, connection: _WriterConnection, throttle: Throttle) -> None:
        self.session = session
        self.connection = connection
        self.used_s = 0.0
        """Monotonic time, in seconds, of the last request."""
        self.one_at_a_time = asyncio.Lock()
        self._throttle = throttle
        self._messages: Sequence[bytes] = ()
        self._passed = 0
        """Messages that have passed of those that the client still sends."""
        self._have_passed = asyncio.Event()

    async def let_pass(self, messages: Sequence[bytes]) -> None:
        """Return when all messages have passed, those of earlier calls included that did not end."""
        self._messages = messages
        self._have_passed.clear()
        try:
            self.resume()
            await self._have_passed.wait()
        finally:
            self._throttle.remove(self)
        self._passed = 0

    def resume(self) -> None:
        """Let messages pass as far as the limits have room now, and wait again with the rest."""
        rest = self._messages[self._passed :]
        passing = self._throttle.count_passing(self, rest)
        self._throttle.charge(self, rest, passing)
        self._passed += passing
        if passing < len(rest):
            self._throttle.wait(self)
        else:
            self._have_passed.set()


class SinkPace:
    """The writers of a node that limits of publishing hold up."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._writers: OrderedDict[Hashable, _Writer] = OrderedDict()

    def is_limited(self, vhost: str, user: str) -> bool:
        """Return whether a limit may apply to the messages of a user."""
        return self._broker.throttle.may_limit(_WriterConnection(0, vhost, user))

    async def let_pass(self, key: Hashable, vhost: str, user: str, messages: Sequence[bytes]) -> None:
        """Return when the limits have let messages pass. Raise PublishersWait after some seconds.

        A call with the same key and messages goes on where an earlier call has ended.
        """
        writer = self._writer(key, vhost, user)
        try:
            async with asyncio.timeout(PASS_WAIT_S), writer.one_at_a_time:
                await writer.let_pass(messages)
        except TimeoutError:
            text = (
                f"a limit of publishing of vhost '{vhost}' or of user '{user}' is used up; {NOT_CARRIED_OUT}"
            )
            raise PublishersWait(text, RETRY_S, is_limited=True) from None

    def _writer(self, key: Hashable, vhost: str, user: str) -> _Writer:
        broker, now_s = self._broker, self._broker.runtime.monotonic()
        writer = self._writers.get(key)
        if writer is None:
            connection = _WriterConnection(broker.new_id(), vhost, user)
            writer = self._writers[key] = _Writer(broker.new_id(), connection, broker.throttle)
        self._writers.move_to_end(key)
        writer.used_s = now_s
        self._forget_some(now_s)
        return writer

    def _forget_some(self, now_s: float) -> None:
        """Forget the writers that were unused for longest, at most two: more than a call adds."""
        for key, writer in list(islice(self._writers.items(), 2)):
            if writer.one_at_a_time.locked():
                self._writers.move_to_end(key)
            elif writer.used_s + KEPT_S <= now_s or len(self._writers) > WRITERS_MAX:
                del self._writers[key]
                self._broker.throttle.connection_left(writer.connection)
