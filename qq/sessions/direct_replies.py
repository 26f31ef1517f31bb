"""Direct replies between nodes, without the log (https://www.rabbitmq.com/docs/direct-reply-to).

A reply is promised at most once and is not stored, so it goes over the link to the requester's node. The publisher
uses the log if this is not possible. A message between nodes is msgpack:

    [session, consumer, name, after index, sent index, publisher, channel of the frames, [message...]]

Invariant: replies of a channel to a requester keep their order. A reply that follows replies in the log names the log
index after which the requester's node must deliver it. A reply that later replies in the log have overtaken, on a slow
link, is lost (`LoggedReplies`). A pass of the event loop delivers about `PASS_BYTES` of peers' replies.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import msgpack

from cluster.runtime.ports import pack
from qq.sessions.ports import Replies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.runtime.ports import Runtime
    from qq.machine.catalog.reply_names import Requester
    from qq.metrics.counters import Counters
    from qq.sessions.dispatch import Dispatcher
    from qq.sessions.ports import Log, Publisher

log = logging.getLogger(__name__)

REPLY_BYTES_MAX = 64 * 1024
"""Octets of replies in a message between nodes; larger replies go through the log, which shares the links fairly."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Octets of replies that may wait at a node for clients that do not read. Further replies are lost.

A channel has CHANNEL_BYTES_MAX at most, and no more than is left for all other channels. So clients that never read do
not take the room of a client that reads slowly for a moment."""
CHANNEL_BYTES_MAX = 4 * 1024 * 1024
RUN_BYTES, MESSAGE_BYTES = 500, 48
"""Octets of memory for replies that wait together and for each reply, beside the octets of their messages."""
PASS_BYTES = 64 * 1024
"""Octets of memory of peers' replies that a pass of the event loop delivers: a millisecond of work.

Further replies wait for the next pass, so that flooding responders leave time for all clients of this node."""
RECEIVED_BYTES_MAX = 16 * 1024 * 1024
"""Octets of peers' replies that may wait for a pass. Further replies are lost."""
EARLY_MAX = 1_000
"""Messages that may wait until this node has applied an index. Further messages are lost: the node is far behind."""


RESPONDERS_MAX = 1_000
"""Responders' channels whose last reply through the log is known for each requester."""


def divided(replies: Replies, count: int) -> Iterator[Replies]:
    """Yield the replies in parts of at most `count` messages."""
    for at in range(0, len(replies.messages), count):
        yield replies._replace(messages=replies.messages[at : at + count])


class LoggedReplies:
    """The last reply that a requester has got through the log from each channel of a responder."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[str, int], int] = {}
        """Node and session of the responder -> log index, in the order of the indexes."""
        self._forgotten = 0
        """The largest log index that was forgotten."""

    def record(self, node: str, publisher: int, index: int) -> None:
        """Record that a reply of this responder was in the entry at `index`."""
        self._indexes.pop((node, publisher), None)
        self._indexes[node, publisher] = index
        if len(self._indexes) > RESPONDERS_MAX:
            self._forgotten = self._indexes.pop(next(iter(self._indexes)))

    def have_overtaken(self, node: str, replies: Replies) -> bool:
        """Return whether the requester has got a reply that the responder published after these."""
        return replies.sent_index < self._indexes.get((node, replies.publisher), self._forgotten)


class DirectReplies:
    """Sends the replies of this node's publishers, and delivers the replies to its requesters."""

    def __init__(
        self, node: str, log_: Log, dispatcher: Dispatcher, counters: Counters, runtime: Runtime
    ) -> None:
        self.waiting_bytes = 0
        """Octets of replies that wait at this node for clients that do not read."""
        self._node = node
        self._log = log_
        self._dispatcher = dispatcher
        self._counters = counters
        self._call_soon = runtime.call_soon
        self._begun_index = 0
        self._room = PASS_BYTES
        """Octets that this pass of the event loop may still deliver."""
        self._is_scheduled = False
        self._received: deque[tuple[str, bytes]] = deque()
        """Peers and their messages that wait for a later pass."""
        self._received_bytes = 0
        self.early: deque[tuple[str, Replies]] = deque()
        """Replies that wait until this node has applied an index, and all replies behind them, with the responder's
        node."""
        log_.receive_messages(self.received)

    @property
    def applied_index(self) -> int:
        """The log index up to which this node has applied all entries, including the entry whose effects it handles."""
        return max(self._begun_index, self._log.applied_index)

    def begin(self, index: int) -> None:
        """Record that this node handles the effects of this entry now."""
        self._begun_index = index

    def send(
        self, requester: Requester, after_index: int, publisher: Publisher, messages: list[bytes]
    ) -> bool:
        """Send replies to a requester. Return False if the log must be used instead."""
        if sum(map(len, messages)) > REPLY_BYTES_MAX:
            return False
        node, session, consumer, name = requester
        sent = (after_index, self.applied_index, publisher.session, publisher.number)
        replies = Replies(session, consumer, name, *sent, messages)
        if node == self._node:
            self._take(node, replies)
            return True
        return self._log.send_message(node, [pack(replies)])

    def received(self, peer: str, data: bytes) -> None:
        """Deliver replies that a peer has sent, in this pass of the event loop or a later pass."""
        size = RUN_BYTES + len(data)
        if self._room > 0:
            self._read(peer, data)
        elif self._received_bytes + size <= RECEIVED_BYTES_MAX:
            self._received.append((peer, data))
            self._received_bytes += size
        else:
            self._counters.replies_dropped += 1  # at least: reading them would take as long as a delivery
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_scheduled = False
        self._room = PASS_BYTES
        while self._received and self._room > 0:
            peer, data = self._received.popleft()
            self._received_bytes -= RUN_BYTES + len(data)
            self._read(peer, data)
        if self._received:
            self._schedule()

    def _read(self, peer: str, data: bytes) -> None:
        """Deliver a peer's replies as soon as this node has applied the index that they follow."""
        try:
            replies = _read(data)
        except (ValueError, TypeError, msgpack.UnpackException):
            log.exception("a peer sends replies that cannot be read; ignored")
            return
        self._room -= self.size(replies)
        self._take(peer, replies)

    def _take(self, node: str, replies: Replies) -> None:
        if not self.early and replies.after_index <= self._log.applied_index:
            self._deliver(node, replies)
        elif len(self.early) < EARLY_MAX:
            self.early.append((node, replies))
        else:
            self._counters.replies_dropped += len(replies.messages)

    def deliver_applied(self, index: int) -> None:
        """Deliver the replies that waited for this log index."""
        while self.early and self.early[0][1].after_index <= index:
            self._deliver(*self.early.popleft())

    @staticmethod
    def size(replies: Replies) -> int:
        """Return the octets of memory that the replies take while they wait."""
        messages = replies.messages
        return RUN_BYTES + MESSAGE_BYTES * len(messages) + sum(map(len, messages))

    def has_room(self, waiting_bytes: int, size: int) -> bool:
        """Return whether `size` octets may wait for a channel for which `waiting_bytes` wait already."""
        left = WAITING_BYTES_MAX - self.waiting_bytes
        return waiting_bytes + size <= min(CHANNEL_BYTES_MAX, left)

    def _deliver(self, node: str, replies: Replies) -> None:
        session = self._dispatcher.sessions.get(replies.session)
        if session is None or session.consumers is None:
            self._counters.replies_dropped += len(replies.messages)
        else:
            session.consumers.replies(node, replies)


def _read(data: bytes) -> Replies:
    """Return the replies in a message of a peer. Raise ValueError, TypeError or UnpackException."""
    session, consumer, name, *numbers, messages = msgpack.unpackb(data)
    after_index, sent_index, publisher, frames_channel = numbers
    if not (
        all(type(number) is int for number in (session, consumer, *numbers))
        and isinstance(name, str)
        and isinstance(messages, list)
        and all(isinstance(message, bytes) for message in messages)
    ):
        raise TypeError("replies with fields of other types")
    return Replies(session, consumer, name, after_index, sent_index, publisher, frames_channel, messages)
