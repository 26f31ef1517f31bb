"""Accepts HTTP connections on a thread of its own, which answers health checks itself.

These are the checks of orchestrators, and those that clients repeat (repeated_checks.py). So a busy event loop holds up
no health check, and a hung event loop is reported. All other connections go to the event loop, one in a pass. Over TLS,
the thread begins the connections of addresses that check regularly, and hands over those with other requests.

Invariant: the thread holds at most 2 * PLACES sockets, takes a fifth of a processor, and never touches a connection
after handing it over.
"""

from __future__ import annotations

import json
import logging
import re
import selectors
import socket
import ssl
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.net.acceptor import PAUSE_S
from cluster.net.connection_slots import source_of
from cluster.net.log_throttle import ThrottledLog
from qq.http.base.repeated_checks import RepeatedChecks
from qq.tls.handshakes import TLS_HANDSHAKE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from qq.tls.begun import BegunTls
    from qq.tls.handshakes import TlsHandshakes

    Take = Callable[[socket.socket, Any, BegunTls | None], None]

PLACES = 32
"""Connections that wait for their first bytes, and connections that wait for the event loop."""
FIRST_BYTES_S = 0.2
"""Seconds that the thread waits for the first bytes of a connection."""
TLS_REQUEST_S = 1.0
"""Seconds that the thread waits for a TLS handshake and the first bytes after it."""
FULL_S = 0.25
"""Seconds without an accept while PLACES connections wait for the event loop. After these, excess ones are closed."""
HEARTBEAT_S = 0.25
"""Seconds between two updates of the state by the event loop."""
STATE_AGE_MAX_S = 5.0
"""Seconds without an update after which the node counts as not ready."""
HANG_S = 60.0
"""Seconds without an update after which the process counts as hung, so that it is restarted."""
READING = "the node reads its log"
"""The reason given while the node cannot answer yet."""
_REST = 4
"""The thread rests for this multiple of the processor time that it has taken."""
_STEP_MAX_S = 1.0
"""Seconds that a pass of the thread adds to the age of the state at most: the whole process may have been stopped."""
_PEEK_BYTES = 4096
_CHECK = re.compile(rb"(GET|HEAD) /(livez|healthz)(?:\?\S*)? HTTP/1\.[01]\r\n")
_REPEATED = re.compile(
    rb"(GET|HEAD) (/api/(?:health|aliveness-test/)[!-~]+) HTTP/1\.[01]\r\n((?:[!-9;-~]+:[ -~]*\r\n)*)\r\n"
)
"""A complete request that may be a repeated health check: method, target, header fields."""
_AUTHORIZATION = b"authorization"
_NOT_PLAIN = frozenset(
    (b"cookie", b"x-requested-with", b"content-length", b"transfer-encoding", b"expect", b"upgrade")
)
"""Header fields of requests that only the event loop understands."""
_END = b"\r\n\r\n"


class HealthAnswers:
    """The state of the node as the event loop last reported it."""

    def __init__(self) -> None:
        self.updates = 0
        """Number of updates by the event loop."""
        self.reason: str | None = READING
        """Why the node does not serve clients; None if it does."""
        self._seen = 0
        self._age_s = 0.0

    def update(self, reason: str | None) -> None:
        self.reason = reason
        self.updates += 1

    def grow_older(self, seconds: float) -> None:
        if self._seen != self.updates:
            self._seen, self._age_s = self.updates, 0.0
        else:
            self._age_s += min(seconds, _STEP_MAX_S)

    def answer(self, path: bytes) -> tuple[int, bytes]:
        """Return the status and the document of the answer to /livez or /healthz."""
        reason = self.reason if path == b"healthz" else None
        return self.why_old(HANG_S if path == b"livez" else STATE_AGE_MAX_S) or (
            (200, b'{"status": "ok"}') if reason is None else _failed(reason)
        )

    def why_old(self, age_max_s: float) -> tuple[int, bytes] | None:
        """Return the answer in place of a state that is too old; None if the state is new enough."""
        if self._age_s <= age_max_s:
            return None
        return _failed(f"the event loop has not run for {self._age_s:.0f} s")


def _failed(reason: str) -> tuple[int, bytes]:
    return 503, json.dumps({"status": "failed", "reason": reason}).encode()


class _Accepted(NamedTuple):
    sock: socket.socket
    address: Any
    until_s: float
    """Time at which the thread stops waiting for the first bytes."""
    tls: BegunTls | None = None
    """The TLS that the thread has begun."""


class Door:
    """The thread, and the connections that it has accepted for the event loop."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        loop: asyncio.AbstractEventLoop,
        handshakes: TlsHandshakes | None = None,
    ) -> None:
        """Create the thread. With `handshakes`, clients may speak TLS."""
        self._handshakes = handshakes
        self.health = HealthAnswers()
        self.repeated = RepeatedChecks()
        self._loop = loop
        self._listeners = listeners
        self._throttled_log = ThrottledLog(logging.getLogger(__name__))
        self._take: Take | None = None
        self._waiting: deque[_Accepted] = deque()
        """Connections that wait for the event loop. Both threads use it, with `_lock`."""
        self._lock = threading.Lock()
        self._is_delivering = False
        self._is_full_since_s: float | None = None
        self._silent: dict[int, _Accepted] = {}
        """Connections without first bytes, by file descriptor. The oldest come first."""
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._end, self._wake = socket.socketpair()
        """`close` closes `_wake`, which the thread notices at `_end` at once."""
        self._thread = threading.Thread(target=self._run, name="http door", daemon=True)

    def open(self) -> None:
        """Accept connections from now on; those for the event loop wait until `begin`."""
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._end, selectors.EVENT_READ)
        self._thread.start()

    # On the event loop

    def begin(self, take: Take) -> None:
        """Call `take` with socket, address and begun TLS of each connection, one in a pass of the event loop."""
        self._take = take
        self._deliver()

    def close(self) -> None:
        """End the thread, and close the connections that wait."""
        self._is_ending = True
        self._take = None
        self._wake.close()
        self._thread.join()
        self._end.close()
        for accepted in self._silent.values():
            accepted.sock.close()
        for accepted in self._waiting:
            accepted.sock.close()
        self._selector.close()

    def _deliver(self) -> None:
        with self._lock:
            self._is_delivering = bool(self._waiting) and self._take is not None
            if not self._is_delivering:
                return
            sock, address, _, tls = self._waiting.popleft()
        self._loop.call_soon(self._deliver)
        assert self._take is not None
        self._take(sock, address, tls)

    # On the thread

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._is_ending:
            ready = self._selector.select(FIRST_BYTES_S / 4 if self._silent else HEARTBEAT_S)
            began_s, now_s = time.thread_time(), time.monotonic()
            self.health.grow_older(now_s - last_s)
            last_s = now_s
            for key, _ in ready:
                if key.fileobj in self._listeners:
                    self._accept(key.fileobj, now_s)
                elif (accepted := self._silent.get(key.fd)) is not None:  # else an accept has handed it over
                    self._answer_or_hand_over(accepted)
            for accepted in [each for each in self._silent.values() if each.until_s <= now_s]:
                self._hand_over(accepted)
            time.sleep(min((time.thread_time() - began_s) * _REST, HEARTBEAT_S))

    def _accept(self, listener: Any, now_s: float) -> None:
        if self._has_to_wait(now_s):
            return
        try:
            sock, address = listener.accept()
        except BlockingIOError:  # the client has left again
            return
        except OSError as error:  # no file descriptors left, or the client has left the queue
            self._throttled_log.warning("accept", f"cannot accept an HTTP connection: {error}")
            time.sleep(PAUSE_S)
            return
        sock.setblocking(False)
        accepted = _Accepted(sock, address, now_s + FIRST_BYTES_S)
        if len(self._silent) >= PLACES:
            self._hand_over(next(iter(self._silent.values())))
        self._silent[sock.fileno()] = accepted
        self._selector.register(sock, selectors.EVENT_READ)
        self._answer_or_hand_over(accepted)

    def _has_to_wait(self, now_s: float) -> bool:
        """Return whether clients stay in the kernel's queue, because the event loop will soon have room for more."""
        if len(self._waiting) < PLACES:
            self._is_full_since_s = None
            return False
        if self._is_full_since_s is None:
            self._is_full_since_s = now_s
        return now_s - self._is_full_since_s < FULL_S

    def _answer_or_hand_over(self, accepted: _Accepted) -> None:
        """Answer a health check. A connection that has sent anything else goes to the event loop."""
        if accepted.tls is not None:
            self._continue_tls(accepted, accepted.tls)
            return
        sock = accepted.sock
        try:
            first = sock.recv(_PEEK_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if first.startswith(TLS_HANDSHAKE) and self._begins_tls(accepted):
            return
        answer = self._answer(first, accepted.address[0])
        if first and answer is None:
            self._hand_over(accepted)
            return
        self._forget(accepted)
        with suppress(OSError):
            if answer is not None:
                sock.recv(len(first))  # a close with unread data would reset the connection
                sock.send(answer)
        sock.close()

    def _begins_tls(self, accepted: _Accepted) -> bool:
        """Begin TLS with a client that probably makes a health check. Return False for all others."""
        if self._handshakes is None or not self.repeated.expects_tls(accepted.address[0]):
            return False
        tls = self._handshakes.begin()
        begun = accepted._replace(tls=tls, until_s=time.monotonic() + TLS_REQUEST_S)
        self._silent[accepted.sock.fileno()] = begun
        self._continue_tls(begun, tls)
        return True

    def _continue_tls(self, accepted: _Accepted, tls: BegunTls) -> None:
        """Continue the handshake, or answer a health check. A connection with a different request is handed over."""
        sock, (host, port, *_) = accepted.sock, accepted.address
        try:
            data = sock.recv(_PEEK_BYTES)
            if data:
                tls.receive(data)
                sock.send(tls.output())
        except BlockingIOError:
            return
        except ssl.SSLError as error:
            text = f"the TLS handshake with {host}:{port} (HTTP) failed: {error}"
            self._throttled_log.warning("handshake", text)
            self._end_tls(accepted, tls)
            return
        except OSError:
            data = b""
        if not data:
            self._end_tls(accepted, tls)
        elif tls.received:
            answer = self._answer(tls.received, host, has_tls=True)
            if answer is None:
                self._hand_over(accepted)
                return
            self.repeated.expect_tls(host)
            tls.write_last(answer)
            self._end_tls(accepted, tls)

    def _end_tls(self, accepted: _Accepted, tls: BegunTls) -> None:
        """Send what is left to send, and close the connection."""
        self._forget(accepted)
        with suppress(OSError):
            accepted.sock.send(tls.output())
        accepted.sock.close()

    def _answer(self, first: bytes, host: str, *, has_tls: bool = False) -> bytes | None:
        """Return the answer to the first octets of a client at `host`; None if the event loop must answer."""
        if not first.endswith(_END):
            return None
        if (check := _CHECK.match(first)) is not None:
            answer = self.health.answer(check[2])
        else:
            check = _REPEATED.fullmatch(first)
            answer = check and self._repeated_answer(check, host, has_tls)
        if check is None or answer is None:
            return None
        status, body = answer
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if check[1] == b"HEAD" else body)

    def _repeated_answer(
        self,
        request: re.Match[bytes],
        host: str,
        has_tls: bool,
    ) -> tuple[int, bytes] | None:
        authorization = b""
        for line in request[3].splitlines():
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in _NOT_PLAIN or (name == _AUTHORIZATION and authorization):
                return None
            if name == _AUTHORIZATION:
                authorization = value.strip()
        found = self.repeated.find(host, request[2].decode(), authorization.decode(), has_tls=has_tls)
        return found and (self.health.why_old(STATE_AGE_MAX_S) or found)

    def _forget(self, accepted: _Accepted) -> None:
        self._selector.unregister(accepted.sock)
        del self._silent[accepted.sock.fileno()]

    def _hand_over(self, accepted: _Accepted) -> None:
        self._forget(accepted)
        with self._lock:
            self._waiting.append(accepted)
            if len(self._waiting) > PLACES:
                self._drop_one()
            needs_wake = not self._is_delivering and self._take is not None
            self._is_delivering |= needs_wake
        if needs_wake:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._deliver)

    def _drop_one(self) -> None:
        """Close the newest waiting connection of the address that has most."""
        sources = [source_of(accepted.address[0]) for accepted in self._waiting]
        [(crowded, _)] = Counter(sources).most_common(1)
        newest = len(sources) - 1 - sources[::-1].index(crowded)
        self._waiting[newest].sock.close()
        del self._waiting[newest]
        self._throttled_log.warning(
            "full", f"HTTP connection from {crowded} closed: {PLACES} wait for the event loop"
        )
