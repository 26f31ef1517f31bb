"""Live updates of the management page: a single stream of server-sent events for each open page.

Invariants:

- Viewers do not cost the broker. A view of several viewers is made once, and few views are made at a time. All views
  together take a tenth (1 / SHARE) of the time at most, with any number of viewers.
- Viewers do not cost each other: all users have equal parts of that tenth. So a user with many or costly views sees
  them updated less often, and other users are unaffected.
- A slow client gets the newest state without those before it. A client that stops reading is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from math import inf, isinf
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import hdrs, web

from qq.http.base.error_responses import Refusal, bad_request, has_left
from qq.http.base.login import ADMINISTRATOR, login_of
from qq.http.base.user_quota import UserShares, counted
from qq.management.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping
    from contextlib import AbstractContextManager

    View = Callable[[web.Request], Awaitable[bytes]]
    MaySee = Callable[[web.Request], Awaitable[bool]]
    """Returns whether the user of a stream may still see it."""

log = logging.getLogger(__name__)

STREAM_PATH = "/api/stream"
INTERVAL_S = 2.0
"""Minimum seconds between two updates of a view."""
SHARE = 10
"""A view rests for this multiple of the time that making it took, times the viewing users, times the user's views."""
AT_ONCE = 4
"""Views made at a time at most."""
STREAM_S = 120.0
"""Seconds of a stream. Then the page opens another, and permissions are checked again. A web session's stream ends with
the session. A stream that was opened with an OAuth 2 token lasts as long as the token is valid.
"""
QUIET_S = 3.0
"""Seconds without an event after which an empty line shows the page that the node is alive. The page gives a node up
after a few times as long.
"""
LOOK_S = 1.0
"""Seconds between checks whether the client is connected and still has permission, and of the verdict on the cluster,
while no event is sent.
"""
READ_WAIT_S = 10.0
"""Seconds that sent data may wait for the client when the connection's buffer is full."""
FAILED = b"an error of this node: see its log"
_NOTHING = b":\n\n"


class NumberedEvent(NamedTuple):
    """State of a view as an event; the number rises with each change."""

    number: int
    event: bytes


class Spent(Generator[Any, Any, bytes]):
    """An awaitable that measures how long it keeps the event loop busy. Waiting times are excluded."""

    def __init__(self, work: Awaitable[bytes]) -> None:
        self._steps = work.__await__()
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, bytes]:
        return self

    def send(self, value: Any, /) -> Any:
        return self._timed(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._timed(self._steps.throw, *error)

    def _timed(self, step: Callable[..., Any], *arguments: Any) -> Any:
        began_s = monotonic()
        try:
            return step(*arguments)
        finally:
            self.seconds += monotonic() - began_s


class ViewTurns:
    """Limits the views that are made at a time, and computes the rest of each view.

    Several may be made at a time, because some wait for other nodes, and a view must not wait for a node that is down.
    """

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self._views: Counter[Hashable] = Counter()
        """Number of views of each viewing user."""

    def view_of(self, who: Hashable) -> AbstractContextManager[None]:
        """Count a view of a user until the end of the block."""
        return counted(self._views, who)

    def rest_s(self, who: Hashable, busy_s: float) -> float:
        """Return the seconds that a view rests after keeping the event loop busy for `busy_s` seconds."""
        return busy_s * SHARE * max(len(self._views), 1) * max(self._views[who], 1)


class Feed:
    """A view, made once for all its viewers."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], turns: ViewTurns, who: Hashable) -> None:
        """`who` is the user whose share of rendering time this feed uses."""
        self._make = make
        self._turns = turns
        self._who = who
        self._rest_s = 0.0
        self._newest: NumberedEvent | None = None
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Lock()
        self.viewers = 0

    async def first(self) -> NumberedEvent:
        """Return the current state. Raises Refusal, Unavailable."""
        async with self._first:
            if self._newest is None:
                self._newest = NumberedEvent(1, _event(await self._made()))
                self._task = asyncio.get_running_loop().create_task(self._go_on(self._newest))
        return self._newest

    async def newer_than(self, last: NumberedEvent) -> NumberedEvent:
        """Wait for a change, and return the new state."""
        async with self._changed:
            while self._newest is None or self._newest.number == last.number:
                await self._changed.wait()
            return self._newest

    async def _made(self) -> bytes:
        spent = Spent(self._make())
        try:
            return await spent
        finally:
            self._rest_s = self._turns.rest_s(self._who, spent.seconds)

    async def _go_on(self, newest: NumberedEvent) -> None:
        with self._turns.view_of(self._who):
            await self._keep_up(newest)

    async def _keep_up(self, newest: NumberedEvent) -> None:
        while True:
            await asyncio.sleep(max(INTERVAL_S, self._rest_s))
            try:
                async with self._turns.places:
                    event = _event(await self._made())
            except Refusal as refused:
                event = _event(str(refused).encode(), "gone")
            except Unavailable as unavailable:
                event = _event(str(unavailable).encode(), "unavailable")
            except Exception:
                event = _event(FAILED, "unavailable")
                if event != newest.event:
                    log.exception("a view of the page cannot be made")
            if event == newest.event:
                continue
            newest = NumberedEvent(newest.number + 1, event)
            async with self._changed:
                self._newest = newest
                self._changed.notify_all()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


class LiveEndpoint:
    """Handler for streams."""

    def __init__(
        self, views: Mapping[str, View], streams_max: int, may_see: MaySee, health: Callable[[], bytes]
    ) -> None:
        """At most `streams_max` streams run at a time, shared by the users.

        A stream ends when `may_see` returns False. Each stream also sends the changes of `health`, the verdict on the
        cluster.
        """
        self._health = health
        self._views = views
        self._may_see = may_see
        self._streams = UserShares(streams_max, "streams", "half of http_request_max")
        self._turns = ViewTurns()
        self._feeds: dict[Hashable, Feed] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.get(STREAM_PATH, self.stream, allow_head=False)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        view = self._views.get(request.query.get("view", ""))
        if view is None:
            raise bad_request(f"view must be one of {', '.join(sorted(self._views))}")
        with self._streams.place(login_of(request).user):
            return await self._share(request, view)

    async def _share(self, request: web.Request, view: View) -> web.StreamResponse:
        key = who, _ = _what(request)
        feed = self._feeds.setdefault(key, Feed(partial(view, request), self._turns, who))
        feed.viewers += 1
        try:
            return await self._stream(request, feed)
        finally:
            feed.viewers -= 1
            if not feed.viewers:
                del self._feeds[key]
                await feed.close()

    async def _stream(self, request: web.Request, feed: Feed) -> web.StreamResponse:
        newest = await feed.first()
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            await self._send_all(request, response, feed, newest)
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _send_all(
        self, request: web.Request, response: web.StreamResponse, feed: Feed, newest: NumberedEvent
    ) -> None:
        """Send the view and the verdict on the cluster, and their changes, until the stream ends."""
        health = self._health()
        await _send(response, _event(health, "health") + newest.event)
        until_s = monotonic() + _length_s(request)
        sent_s = monotonic()
        while monotonic() < until_s and not has_left(request):
            parts = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    newest = await feed.newer_than(newest)
                parts = newest.event
            if not await self._may_see(request):
                break
            if (now := self._health()) != health:
                health = now
                parts = _event(health, "health") + parts
            if not parts and monotonic() - sent_s >= QUIET_S:
                parts = _NOTHING
            if parts:
                await _send(response, parts)
                sent_s = monotonic()


def _length_s(request: web.Request) -> float:
    expires_s = login_of(request).expires_s
    return STREAM_S if isinf(expires_s) else max(expires_s - time(), 0.0)


async def _send(response: web.StreamResponse, event: bytes) -> None:
    async with asyncio.timeout(READ_WAIT_S):
        await response.write(event)


def _event(body: bytes, name: str = "view") -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), body.replace(b"\n", b" "))


def _what(request: web.Request) -> tuple[Hashable, Hashable]:
    """Return the user whose view it is, and the requested view. All administrators share a view."""
    login = login_of(request)
    who = ADMINISTRATOR if ADMINISTRATOR in login.tags else login._replace(expires_s=inf)
    return who, tuple(sorted(request.query.items()))
