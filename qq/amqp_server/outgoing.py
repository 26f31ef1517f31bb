"""The output of a channel: answers, confirms, returned messages and deliveries, with their delivery tags.

Invariant: deliveries and confirms do not count as answers, because a client that publishes first and reads later must
be able to publish.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pamqp.commands import Basic

from qq.amqp.encoding import ack_frame, deliveries, encode, get_ok, refusal_frame, returned
from qq.client_sockets.message_output import CONVERTED_MAX, MessageOutput
from qq.errors import ChannelError, ConnectionFault, ReplyCode
from qq.machine.protocol.commands import Settle
from qq.ranges import Range, RangeMap
from qq.sessions.direct_replies import divided
from qq.sessions.entries import Messages, MessagesGone
from qq.sessions.headers import delivered, in_frames, is_redelivered, published_to
from qq.sessions.submissions import Urgency
from qq.stored.editing import reframe, with_headers
from qq.stored.kinds import SECTIONS_CHANNEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp_server.ports import Carrier
    from qq.machine.protocol.death_history import History
    from qq.machine.protocol.effects import CountContract, Deliver, DirectReply, Got, Returned
    from qq.ranges import Piece
    from qq.sessions.broker import Broker
    from qq.sessions.ports import Replies
    from qq.sessions.session_info import SessionCounts

REPLIES_WAITING_MAX = 50_000
"""Runs of direct replies that may wait for a client that does not read. Further replies are lost, and so are replies
that wait until the log no longer holds them. RabbitMQ promises delivery at most once, and the log need not be kept for
such a client. So many runs take some 15 MB, and are more than clients request before they read."""
WRITTEN_AT_EASE = 200
"""Messages written to a channel up to which their settlement or credit is submitted without urgency. A consumer without
a prefetch limit has some 2000 messages on their way, so it does not wait for that."""


@dataclass(slots=True, eq=False)
class OutgoingConsumer:
    """A consumer of a channel: the `SessionConsumer` of its session."""

    id: int
    tag: str
    no_ack: bool
    """Whether the messages of this consumer are settled when they are written (`no_ack` of basic.consume)."""
    paced: bool
    """Whether the consumer has no prefetch limit: it gets credit for more messages as earlier ones are written."""
    cancel_on_failover: bool
    live_prefetch: bool
    """Whether a later basic.qos changes the prefetch of this consumer."""
    started: bool = False
    """Whether the log has confirmed that the consumer exists."""
    next_id: int = 0
    """The message id of the first message that has not been delivered to this consumer yet."""


class Tagged(NamedTuple):
    """The value of consecutive delivery tags: consecutive message ids of a consumer."""

    consumer: int
    first_id: int


@dataclass(slots=True, eq=False)
class _Delivery:
    """Messages checked out to a consumer and not yet written. `next_id` is the message id of the first."""

    consumer: OutgoingConsumer
    next_id: int
    ranges: deque[Range]
    histories: dict[int, History]
    count_contract: CountContract | None


class _Confirm(NamedTuple):
    published: int
    refused: bool


@dataclass(slots=True, eq=False)
class _Got:
    """Messages that basic.get has fetched and that are not yet written, each an answer of its own.

    `next_id` is the message id of the first. After the last, `remaining` messages are ready in the queue.
    """

    consumer: int
    no_ack: bool
    ranges: deque[Range]
    remaining: int
    histories: dict[int, History]
    count_contract: CountContract | None
    next_id: int = 0


class _Return(NamedTuple):
    effect: Returned


@dataclass(slots=True, eq=False)
class _DirectReply:
    """Replies in the log that are not yet written."""

    tag: str
    ranges: deque[Range]


class _Replies(NamedTuple):
    tag: str
    replies: Replies
    size: int
    """Octets of memory."""


_Answer = bytes | _Got | _Return
_Item = _Answer | _Delivery | _Confirm | _DirectReply | _Replies


class Outgoing(MessageOutput[_Item, "Carrier"]):
    """The frames on their way out of a channel, in order."""

    ANSWERS = frozenset((bytes, _Got, _Return))

    def __init__(self, broker: Broker, connection: Carrier, number: int, counts: SessionCounts) -> None:
        super().__init__(broker.entries, connection)
        self._broker = broker
        self._counts = counts
        self._number = number
        self._replies_waiting = 0
        self._reply_bytes = 0
        """Octets of the waiting replies that came without the log."""
        self._written = 0
        """Messages written since the connection's lane last had no requests."""
        self._next_tag = 1
        self._confirmed = 0
        self._unacked: RangeMap[Tagged] = RangeMap()

    # Adding output

    def send(self, frame: bytes) -> None:
        """Send a method frame.

        It need not wait for room, because the connection limits methods by reading fewer requests.
        """
        if self._closed:
            return
        if self._waiting:
            self._put_answer(frame)
        else:
            self._connection.write((frame,))

    def deliver(self, consumer: OutgoingConsumer, effect: Deliver) -> None:
        last = self._waiting[-1] if self._waiting else None
        if type(last) is _Delivery and last.consumer is consumer:
            last.ranges.extend(effect.ranges)
            last.histories.update(effect.histories)
            last.count_contract = effect.count_contract
        else:
            ranges = deque(effect.ranges)
            histories = dict(effect.histories)
            self._put(_Delivery(consumer, effect.first_id, ranges, histories, effect.count_contract))

    def direct_reply(self, tag: str, effect: DirectReply) -> None:
        """Send messages to the consumer of direct replies."""
        if self._replies_waiting >= REPLIES_WAITING_MAX:
            self._broker.counters.replies_dropped += effect.count
            return
        self._replies_waiting += 1
        self._put(_DirectReply(tag, deque((Range(effect.index, effect.first_slot, effect.count),))))

    def replies(self, tag: str, replies: Replies) -> None:
        """Send messages that came without the log to the consumer of direct replies."""
        direct_replies = self._broker.direct_replies
        size = direct_replies.size(replies)
        if self._waiting and not direct_replies.has_room(self._reply_bytes, size):
            self._broker.counters.replies_dropped += len(replies.messages)
            return
        for step in divided(replies, CONVERTED_MAX):
            step_size = direct_replies.size(step)
            self._count_reply_bytes(step_size)
            self._put(_Replies(tag, step, step_size))

    def _count_reply_bytes(self, size: int) -> None:
        self._reply_bytes += size
        self._broker.direct_replies.waiting_bytes += size

    def got(self, result: Got, *, no_ack: bool) -> None:
        """Send the messages, at least one, that basic.get has fetched."""
        consumer, ranges, remaining, histories, count_contract = result
        self._put_answer(_Got(consumer, no_ack, deque(ranges), remaining, histories, count_contract))

    def unroutable(self, effect: Returned) -> None:
        self._put_answer(_Return(effect))

    def confirm(self, published: int, *, refused: bool = False) -> None:
        """Confirm, or refuse, all up to a publish sequence number.

        A later confirm replaces a waiting one of the same kind.
        """
        last = self._waiting[-1] if self._waiting else None
        if type(last) is _Confirm and last.refused == refused:
            self._waiting[-1] = _Confirm(published, refused)
        else:
            self._put(_Confirm(published, refused))

    # Acknowledgements

    @property
    def unacked(self) -> int:
        """Messages that the client holds unacknowledged."""
        return len(self._unacked)

    def take(self, tag: int, *, multiple: bool, method: tuple[int, int]) -> list[Piece[Tagged]]:
        """Remove and return a delivery tag, or all up to it; raises ChannelError if the client does not hold it.

        AMQP 0-9-1 1.8.3.13: multiple with tag 0 means all outstanding.
        """
        if not multiple:
            pieces = self._unacked.take(tag, tag)
        elif tag:
            pieces = self._unacked.take_through(tag)
        else:
            return self._unacked.take_all()
        if not pieces or pieces[-1].last != tag:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", *method)
        return pieces

    def hold_again(self, pieces: Sequence[Piece[Tagged]]) -> None:
        """Undo `take`: the client holds these delivery tags again."""
        if not pieces:
            return
        for piece in sorted([*pieces, *self._unacked.take_all()], key=_first_tag):
            tagged = piece.value
            first = tagged._replace(first_id=tagged.first_id + piece.offset)
            self._unacked.append(piece.first, piece.count, first)

    def tag_of(self, consumer: int, message_id: int) -> int | None:
        """Return the delivery tag of a consumer's message, or None if the client does not hold it."""
        for piece in self._unacked.pieces():
            offset = message_id - piece.value.first_id
            if piece.value.consumer == consumer and piece.offset <= offset < piece.offset + piece.count:
                return piece.first + offset - piece.offset
        return None

    def begin_recovery(self) -> None:
        """Stop writing until `end_recovery`, because all unacknowledged messages are about to return to a queue."""
        self._is_held = True

    def end_recovery(self) -> None:
        """Discard all deliveries and delivery tags, because their messages have returned. Then continue writing."""
        self._is_held = False
        self._unacked.take_all()
        kept: deque[_Item] = deque()
        for item in self._waiting:
            if type(item) is not _Delivery:
                kept.append(item)
            elif item.consumer.paced:
                count = sum(part.count for part in item.ranges)
                self._broker.submissions.credit(item.consumer.id, count, self._connection.lane)
        self._waiting = kept
        self.pump()

    def needed_from(self) -> int | None:
        """Return the lowest log index with a message that waits here and is in no queue now, or None."""
        if not self._answers_waiting:
            return None
        return min((index for index in map(_needed_index, self._waiting) if index is not None), default=None)

    # Ends

    def hurry_answers(self) -> None:
        """Write the waiting answers without the deliveries, because the client closes the channel: close-ok is next."""
        self._connection.write([item for item in self._waiting if type(item) is bytes])

    def close(self) -> None:
        """Discard the waiting items. The channel writes no more."""
        self._closed = True
        self._waiting.clear()
        if self._reply_bytes:
            self._count_reply_bytes(-self._reply_bytes)
        self._connection.resume_for(self)

    # Writing

    def _write(self, item: _Item) -> bool:
        match item:
            case bytes():
                self._connection.write((item,))
                return True
            case _Confirm():
                # RabbitMQ sets `multiple` of basic.ack only for several messages, and some clients do not count any
                # other confirm.
                multiple, self._confirmed = item.published > self._confirmed + 1, item.published
                frame = (
                    refusal_frame(self._number, item.published)
                    if item.refused
                    else ack_frame(self._number, item.published, multiple)
                )
                self._connection.write((frame,))
                return True
            case _Delivery():
                return self._write_delivery(item)
            case _Got():
                return self._write_got(item)
            case _Return():
                return self._write_return(item.effect)
            case _DirectReply():
                return self._write_direct_reply(item)
            case _Replies():
                _, _, name, _, _, _, frames_channel, messages = item.replies
                stored = Messages("", name, frames_channel, messages)
                if frames_channel == SECTIONS_CHANNEL:
                    stored = self._timed_frames(stored)
                self._write_replies(item.tag, stored)
                self._count_reply_bytes(-item.size)
                return True

    def _write_delivery(self, delivery: _Delivery) -> bool:
        consumer, ranges = delivery.consumer, delivery.ranges
        while ranges:
            part = self._next_portion(ranges)
            try:
                stored = self._stored(part, ranges)
            except MessagesGone:
                # The queue was deleted while these messages waited; its consumers are notified separately.
                delivery.next_id += part.count
                ranges.popleft()
                continue
            if stored is None:
                return False
            for messages in stored:
                if messages.frames_channel == SECTIONS_CHANNEL:
                    stored = self._converted(ranges, stored)
                    break
            if not stored:
                continue
            out: list[bytes] = []
            tag = self._next_tag
            history = delivery.histories.get(part.history)
            redelivered = is_redelivered(part, history, delivery.count_contract)
            for messages in stored:
                deliveries(
                    self._number,
                    consumer.tag,
                    tag,
                    redelivered,
                    *published_to(messages, history),
                    self._framed(messages, part, history, delivery.count_contract),
                    out,
                )
                tag += len(messages.messages)
            self._connection.write(out)
            self._count_written(consumer, delivery.next_id, part.count, redelivered=redelivered)
            delivery.next_id += part.count
            ranges.popleft()
            if ranges and not self._connection.has_room:
                self._connection.pump_later(self)
                return False
        return True

    def _count_written(
        self, consumer: OutgoingConsumer, first_id: int, count: int, *, redelivered: bool
    ) -> None:
        submissions, counters, counts = self._broker.submissions, self._broker.counters.amqp091, self._counts
        lane = self._connection.lane
        self._written = count if not lane.is_waiting else self._written + count
        is_urgent = self._written > WRITTEN_AT_EASE
        urgency = Urgency.AT_ONCE if is_urgent else Urgency.WITH_NEXT_REQUEST
        if redelivered:
            counters.messages_redelivered += count
            counts.redelivered += count
        if consumer.no_ack:
            counters.messages_delivered_auto_ack += count
            counts.delivered_no_ack += count
            last_id = first_id + count - 1
            submissions.settle(Settle, consumer.id, first_id, last_id, lane, urgency)
        else:
            counters.messages_delivered_manual_ack += count
            counts.delivered += count
            self._unacked.append(self._next_tag, count, Tagged(consumer.id, first_id))
            if consumer.paced:
                submissions.credit(consumer.id, count, lane, is_urgent=is_urgent)
        self._next_tag += count

    def _write_got(self, item: _Got) -> bool:
        ranges = item.ranges
        while ranges:
            part = self._next_portion(ranges)
            try:
                stored = self._stored(part, ranges)
            except MessagesGone:
                if item.no_ack:
                    return self._write_lost()
                self._write_get_empty(part.count)
            else:
                if stored is None:
                    return False
                stored = self._converted(ranges, stored)
                if not stored:
                    continue
                self._write_got_range(item, part, stored)
            item.next_id += part.count
            ranges.popleft()
            if ranges and not self._connection.has_room:
                self._connection.pump_later(self)
                return False
        return True

    def _write_got_range(self, item: _Got, part: Range, stored: list[Messages]) -> None:
        """Write the first range of the messages that basic.get has fetched."""
        out: list[bytes] = []
        behind = item.remaining + sum(each.count for each in item.ranges)
        history = item.histories.get(part.history)
        tag, redelivered = self._next_tag, is_redelivered(part, history, item.count_contract)
        for messages in stored:
            exchange, routing_key = published_to(messages, history)
            for message in self._framed(messages, part, history, item.count_contract):
                behind -= 1
                out.append(get_ok(self._number, tag, redelivered, exchange, routing_key, behind, message))
                tag += 1
        self._connection.write(out)
        counters, counts, count = self._broker.counters.amqp091, self._counts, part.count
        if redelivered:
            counters.messages_redelivered += count
            counts.redelivered += count
        if item.no_ack:
            counters.messages_got_auto_ack += count
            counts.got_no_ack += count
        else:
            counters.messages_got_manual_ack += count
            counts.got += count
            self._unacked.append(self._next_tag, count, Tagged(item.consumer, item.next_id))
        self._next_tag = tag

    def _write_get_empty(self, count: int) -> None:
        """Answer basic.get with get-empty, because the queue was deleted with its messages."""
        self._broker.counters.amqp091.get_empty += count
        self._counts.get_empty += count
        self._connection.write((encode(self._number, Basic.GetEmpty()),) * count)

    def _write_lost(self) -> bool:
        """Fail the connection: a snapshot replaced the log while the last copy of a message waited here."""
        text = "a message for this client was lost while the node was away from its cluster"
        self._connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, text))
        return False

    def _write_return(self, effect: Returned) -> bool:
        part = Range(effect.index, effect.first_slot, effect.count)
        try:
            stored = self._stored(part, (part,))
        except MessagesGone:
            return self._write_lost()
        if stored is None:
            return False
        self._broker.counters.amqp091.messages_unroutable_returned += effect.count
        self._counts.returned += effect.count
        names = (ReplyCode.NO_ROUTE, ReplyCode.NO_ROUTE.name, effect.exchange, effect.routing_key)
        framed = [
            message
            for messages in stored
            for message in self._framed(messages, part, None, count_contract=None)
        ]
        if effect.delay_ms:
            framed = with_headers(framed, additions={"x-delay": effect.delay_ms})
        self._connection.write(returned(self._number, *names, framed))
        return True

    def _write_direct_reply(self, item: _DirectReply) -> bool:
        ranges, connection = item.ranges, self._connection
        while ranges:
            if not connection.has_room:
                connection.pump_later(self)
                return False
            part = self._next_portion(ranges)
            try:
                stored = self._stored(part, ranges)
            except MessagesGone:
                self._broker.counters.replies_dropped += part.count
                ranges.popleft()
                continue
            if stored is None:
                return False
            stored = self._converted(ranges, stored)
            if not stored:
                continue
            for messages in stored:
                self._write_replies(item.tag, messages)
            ranges.popleft()
        self._replies_waiting -= 1
        return True

    def _write_replies(self, tag: str, messages: Messages) -> None:
        count = len(messages.messages)
        framed = self._framed(messages, Range(0, 0, count), None, count_contract=None)
        out: list[bytes] = []
        deliveries(
            self._number, tag, self._next_tag, False, messages.exchange, messages.routing_key, framed, out
        )
        self._next_tag += count
        self._connection.write(out)
        self._broker.counters.amqp091.replies_delivered += count

    def _converted(self, ranges: deque[Range], stored: list[Messages]) -> list[Messages]:
        """Return the messages of the first range as frames of this channel.

        The result is empty if the range had to be divided, because some of them consist of sections.
        """
        if all(messages.frames_channel != SECTIONS_CHANNEL for messages in stored):
            return stored
        if self._divide_conversion(ranges, stored):
            return []
        return list(map(self._timed_frames, stored))

    def _timed_frames(self, stored: Messages) -> Messages:
        """Return messages as frames of this channel, and count the time of their conversion."""
        number, connection = self._number, self._connection
        return connection.timed(lambda: in_frames(stored, number, connection.frame_max))

    def _framed(
        self, stored: Messages, part: Range, history: History | None, count_contract: CountContract | None
    ) -> Sequence[bytes]:
        """Return the messages as frames of this channel. Usually these are the stored frames unchanged."""
        frame_max = self._connection.frame_max
        if stored.frames_channel == SECTIONS_CHANNEL:
            stored = in_frames(stored, self._number, frame_max)
        messages: Sequence[bytes] = stored.messages
        if part.deliveries or history is not None:
            messages = delivered(messages, part, history, count_contract=count_contract)
        if stored.frames_channel == self._number and max(map(len, messages)) <= frame_max:
            return messages
        return [reframe(message, self._number, frame_max) for message in messages]


def _first_tag(piece: Piece[Tagged]) -> int:
    return piece.first


def _needed_index(item: _Item) -> int | None:
    match item:
        case _Return():
            return item.effect.index
        case _Got(no_ack=True):
            return min(part.index for part in item.ranges)
        case _:
            return None
