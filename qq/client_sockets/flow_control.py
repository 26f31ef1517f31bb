"""Flow control of a client's socket, both ways, for every client protocol.

In: the socket is read while no reason to pause holds. Out: output is written at the end of a pass of the event loop, in
portions, so that other connections are served in between. A source of output continues when the socket has room.

Invariant: output leaves in order. A client that reads nothing is not read either, once too much output waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from fcntl import ioctl
from termios import FIONREAD, TIOCOUTQ
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from qq.sessions.session_info import Traffic

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Runtime

T = TypeVar("T")

BULK_BYTES = 64 * 1024
"""Octets of a read that is likely to be followed by more. The event loop would read up to 32 times in a row, 8 MiB in
all, before it serves any other socket. So the connection is not read again until the other sockets were served."""
TLS_PAUSE_BYTES = 1
"""Encrypted octets in memory at which the socket of a paused TLS connection is not read any more.

With more, uvloop would go on reading a paused connection, and drop what it has read if the client then hangs up."""
UNJOINED_BYTES = 1024 * 1024
"""Octets of a message above which it is written by itself, without a copy that joins it to its neighbours."""
PORTION_BYTES = 128 * 1024
"""Octets, about, written to a client in a pass of the event loop. Meanwhile other clients wait for their confirms. With
1 MiB they waited twice as long beside six clients that consume a backlog at some 400 MB/s."""
WORK_BYTES_PER_S = 25_000_000
"""Octets of output for which a second of work on output counts: a connection works for some 5 ms in a pass."""
UNREAD_BYTES_MAX = 16 * 1024
"""Unread octets in the socket at which an unread client counts as alive: even heartbeats may find no more room
there."""
_UNREAD_OUTPUT = "the client does not read its output"
_OTHER_SOCKETS = "other sockets are served after a large read"


class Pumped(Protocol):
    """A source of output that waits for room in the socket."""

    def pump(self) -> None:
        """Continue writing to the socket."""
        ...


class FlowControlledProtocol(asyncio.Protocol):
    """The flow control of a connection. A client protocol inherits from it, and appends its output to `_out`."""

    __slots__ = (
        "_buffer_bytes",
        "_flush_scheduled",
        "_has_read",
        "_holds_output",
        "_out",
        "_out_bytes",
        "_portion_bytes",
        "_pumping",
        "_read_bytes",
        "_reads",
        "_reasons_to_pause",
        "_runtime",
        "_stalled_at",
        "_transport",
        "_writes",
        "_writing_paused",
        "_written_bytes",
        "_written_s",
    )

    def __init__(self, runtime: Runtime, buffer_bytes: int) -> None:
        """Create the flow control. The transport may buffer `buffer_bytes` octets of output before it pauses it."""
        self._runtime = runtime
        self._buffer_bytes = buffer_bytes
        self._portion_bytes = min(PORTION_BYTES, buffer_bytes)
        self._out: list[bytes] = []
        """Output in order that is not written yet."""
        self._out_bytes = 0
        """Octets in `_out` that `write` has appended, and those for which work on output counts (`timed`)."""
        self._flush_scheduled = False
        self._holds_output = False
        """Whether all output waits until `_release_output`."""
        self._writing_paused = False
        self._pumping: dict[Pumped, None] = {}
        self._reasons_to_pause: dict[object, None] = {}
        self._has_read = False
        """Whether the client was read since the last `_is_alive` check began."""
        self._stalled_at = 0, 0
        """Octets not taken by the client, and octets not read from it, at the last check."""
        self._read_bytes = self._reads = self._written_bytes = self._writes = 0
        self._written_s = 0.0
        """Monotonic time, in seconds, of the last write."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        transport.set_write_buffer_limits(high=self._buffer_bytes, low=self._buffer_bytes // 4)
        if transport.get_extra_info("ssl_object") is not None:
            transport.set_read_buffer_limits(TLS_PAUSE_BYTES)

    @property
    def _traffic(self) -> Traffic:
        return Traffic(self._read_bytes, self._reads, self._written_bytes, self._writes, self.unsent_bytes)

    @property
    def unsent_bytes(self) -> int:
        """Octets written to the transport that the system has not taken yet."""
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    # Out

    @property
    def has_room(self) -> bool:
        """Whether the socket takes more bytes in this pass of the event loop."""
        return not self._writing_paused and self._out_bytes < self._portion_bytes

    def write(self, buffers: Sequence[bytes]) -> None:
        """Queue bytes for the socket. They are written together at the end of this pass of the event loop."""
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        self._schedule_flush()

    def timed(self, work: Callable[[], T]) -> T:
        """Do work on output, and count its time as octets of this pass of the event loop."""
        began_s = self._runtime.monotonic()
        done = work()
        self._out_bytes += int((self._runtime.monotonic() - began_s) * WORK_BYTES_PER_S)
        return done

    def pump_later(self, waiting: Pumped) -> None:
        """Call `pump` of a source of output when the socket has room."""
        self._pumping[waiting] = None

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._resume_pumps()
        self.resume_for(_UNREAD_OUTPUT)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._out:
            self._flush_scheduled = True
            self._runtime.call_soon(self._flush)

    def _flush(self) -> None:
        """Write the output. A large buffer is written without a copy."""
        self._flush_scheduled = False
        if self._holds_output:
            return
        out, is_large = self._out, self._out_bytes >= UNJOINED_BYTES and self._has_large_buffer()
        self._out_bytes = 0
        if not out:
            return
        buffers = out.copy() if is_large else [b"".join(out)]
        out.clear()
        if self._transport.is_closing():
            return
        self._written_s = self._runtime.monotonic()
        self._writes += 1
        if is_large:
            self._written_bytes += sum(map(len, buffers))
            self._transport.writelines(buffers)
        else:
            self._written_bytes += len(buffers[0])
            self._transport.write(buffers[0])
        if self._writing_paused:
            if self._transport.get_write_buffer_size() > 4 * self._buffer_bytes:
                self.pause_for(_UNREAD_OUTPUT)
        else:
            self._resume_pumps()

    def _has_large_buffer(self) -> bool:
        return max(map(len, self._out), default=0) >= UNJOINED_BYTES

    def _resume_pumps(self) -> None:
        waiting, self._pumping = self._pumping, {}
        for each in list(waiting):
            if not self.has_room:
                break
            del waiting[each]
            each.pump()
        # Sources that had no turn go before those that have more to write.
        self._pumping = waiting | self._pumping

    def _release_output(self) -> None:
        """Write the output that was held."""
        if self._holds_output:
            self._holds_output = False
            self._flush()

    # In

    def _count_read(self, size: int) -> None:
        """Count a read of `size` octets, and let the other sockets be served after a large read."""
        self._has_read = True
        self._read_bytes += size
        self._reads += 1
        if size >= BULK_BYTES:
            self.pause_for(_OTHER_SOCKETS)
            self._runtime.call_soon(self._resume_after_others)

    def _resume_after_others(self) -> None:
        self.resume_for(_OTHER_SOCKETS)

    @property
    def is_read(self) -> bool:
        return not self._reasons_to_pause

    def pause_for(self, reason: object) -> None:
        """Stop reading from the client for this reason. Several reasons may hold at a time."""
        if not self._reasons_to_pause and not self._transport.is_closing():
            self._transport.pause_reading()
        self._reasons_to_pause[reason] = None

    def resume_for(self, reason: object) -> None:
        if self._reasons_to_pause:
            self._reasons_to_pause.pop(reason, None)
            if not self._reasons_to_pause and not self._transport.is_closing():
                self._transport.resume_reading()

    def _is_alive(self) -> bool:
        """Return whether the client has shown a sign of life since the last check.

        A client may be unread because it does not read itself. It is alive while it takes output, or while the system
        receives more of its input, such as heartbeats. A client that is unread for any other reason is waiting, and not
        blamed.
        """
        if self._has_read or not self._reasons_to_pause:
            return self._has_read
        client: socket.socket | None = self._transport.get_extra_info("socket")
        if client is None or self._reasons_to_pause.keys() != {_UNREAD_OUTPUT}:
            return True
        # The system, too, buffers output, and takes more of it only after the client has taken much of that.
        untaken = self._transport.get_write_buffer_size() + _queued_bytes(client, TIOCOUTQ)
        unread = _queued_bytes(client, FIONREAD)
        before, self._stalled_at = self._stalled_at, (untaken, unread)
        return untaken < before[0] or unread > before[1] or unread >= UNREAD_BYTES_MAX


def _queued_bytes(client: socket.socket, request: int) -> int:
    """Return the octets that the system holds unread (FIONREAD), or not yet taken by the client (TIOCOUTQ)."""
    return int.from_bytes(ioctl(client.fileno(), request, bytes(4)), sys.byteorder)
