"""A link on which the client publishes: credit, settle modes, and deliveries in several transfers.

The shell settles deliveries in their order (`settle`). Credit is given anew when half of it is used, unless too many
deliveries are unsettled: so a client waits for the queues.

Invariant: an incomplete delivery takes at most `message_bytes_max` octets and a frame, with any number of parts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.amqp10.conditions import Condition, LinkFailure, SessionFailure
from qq.amqp10.encoding import ACCEPTED, ID_MASK, RELEASED, outcome_frame
from qq.amqp10.link import Link10, LinkFault, LinkState
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DispositionFrame,
    ReceiverSettleMode,
    ReleasedState,
    SenderSettleMode,
)

if TYPE_CHECKING:
    from qq.amqp10.framing import Transfers
    from qq.amqp10.link import DetachRequested
    from qq.amqp10.performatives import DeliveryState, TargetTerminus, TransferFrame
    from qq.amqp10.values import Value
    from qq.amqp10.windows import SessionWindows

_ENCODED: dict[type, bytes] = {AcceptedState: ACCEPTED, ReleasedState: RELEASED}
"""The usual outcomes."""


class ReceivingLimits(NamedTuple):
    """The limits of a client that publishes."""

    link_credit: int
    """Deliveries that a client may send on a link after a flow. A link has at most twice as many unsettled ones."""
    message_bytes_max: int
    frame_max: int
    """The largest frame of the client, in octets."""


class Deliveries(NamedTuple):
    """Complete deliveries of a client. Answer each with `ReceivingLink.settle`, in their order."""

    link: ReceivingLink
    is_settled: bool
    """Whether the client has settled them, and wants no outcome."""
    ids: list[int]
    tags: list[bytes]
    messages: list[bytes]


class _Run(NamedTuple):
    """Unsettled deliveries with consecutive ids."""

    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    is_settled: bool


class _Incomplete:
    """A delivery of which transfers have arrived."""

    __slots__ = ("delivery_id", "is_settled", "parts", "tag")

    def __init__(self, delivery_id: int, tag: bytes) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.is_settled = False
        self.parts = bytearray()


class ReceivingLink(Link10):
    """A link from a client."""

    __slots__ = (
        "_credit",
        "_delivery_count",
        "_failure",
        "_incomplete",
        "_limits",
        "_settle_mode",
        "_unsettled",
        "unsettled_count",
    )

    def __init__(
        self, attach: AttachFrame, windows: SessionWindows, links: dict[int, Link10], limits: ReceivingLimits
    ) -> None:
        super().__init__(attach, windows, links)
        self._credit = 0
        """Deliveries that the client may still begin."""
        self._limits = limits
        self._settle_mode = attach.snd_settle_mode
        self._delivery_count = attach.initial_delivery_count or 0
        self._failure: LinkFailure | None = None
        """The error of a client that has sent deliveries before its attach was answered."""
        self._incomplete: _Incomplete | None = None
        self._unsettled: deque[_Run] = deque()
        """Deliveries that the shell has not settled yet, in their order."""
        self.unsettled_count = 0
        """Deliveries that the shell has not settled yet."""

    @property
    def partial_bytes(self) -> int:
        """Octets of the incomplete delivery."""
        return len(self._incomplete.parts) if self._incomplete is not None else 0

    @property
    def credit(self) -> int:
        """Deliveries that the client may still begin."""
        return self._credit

    @property
    def delivery_count(self) -> int:
        return self._delivery_count

    @property
    def message_bytes_max(self) -> int:
        return self._limits.message_bytes_max

    # --- from the shell

    def accept(
        self, target: TargetTerminus | None = None, properties: dict[Value, Value] | None = None
    ) -> list[DetachRequested | LinkFault]:
        """Attach the link, and give credit. Return the events of frames that the client has sent ahead.

        `target` replaces the target of the client's attach. No effect if the session has ended.
        """
        if self.state is not LinkState.ATTACHING:
            return []
        attach = self.attach
        answer = AttachFrame(
            self.name,
            self.handle,
            True,
            attach.snd_settle_mode,
            ReceiverSettleMode.FIRST,
            attach.source,
            target or attach.target,
            max_message_size=self._limits.message_bytes_max,
            properties=properties,
        )
        if (fault := self._answered(answer)) is not None:
            return [fault]
        self.state = LinkState.ATTACHED
        self._give_credit()
        if self._failure is not None:
            self.state = LinkState.FAULTY
            return [LinkFault(self, self._failure)]
        event = self._detach_requested()
        return [] if event is None else [event]

    def limit(self, link_credit: int, message_bytes_max: int) -> None:
        """Lower the limits of the link, before it is accepted."""
        limits = self._limits
        self._limits = limits._replace(
            link_credit=min(limits.link_credit, link_credit),
            message_bytes_max=min(limits.message_bytes_max, message_bytes_max),
        )

    def settle(self, count: int, outcome: DeliveryState) -> None:
        """Settle the oldest `count` deliveries with an outcome, and give credit. No effect if the link has ended."""
        if not self.is_open and self.state is not LinkState.DETACH_REQUESTED:
            return
        self.unsettled_count -= count
        frames: list[bytes] = []
        first, last = 0, -1
        """The ids of the disposition that is not written yet."""
        for run_first, run_last in self._take(count):
            if last < 0:
                first = run_first
            elif run_first != (last + 1) & ID_MASK:
                frames.append(self._disposition(first, last, outcome))
                first = run_first
            last = run_last
        if last >= 0:
            frames.append(self._disposition(first, last, outcome))
        self._windows.write_encoded(frames)
        if self._credit <= self._limits.link_credit // 2:
            self._give_credit()

    def _take(self, count: int) -> list[tuple[int, int]]:
        """Remove the oldest `count` deliveries. Return the first and last ids of those that want an outcome."""
        unsettled, ranges = self._unsettled, list[tuple[int, int]]()
        while count:
            first, run_count, is_settled = unsettled[0]
            taken = min(count, run_count)
            if taken < run_count:
                unsettled[0] = _Run((first + taken) & ID_MASK, run_count - taken, is_settled)
            else:
                unsettled.popleft()
            count -= taken
            if not is_settled:
                ranges.append((first, (first + taken - 1) & ID_MASK))
        return ranges

    def _disposition(self, first: int, last: int, outcome: DeliveryState) -> bytes:
        encoded = _ENCODED.get(type(outcome))
        if encoded is not None:
            return outcome_frame(self._windows.channel, first, last, encoded)
        disposition = DispositionFrame(True, first, last, settled=True, state=outcome)
        return self._windows.encode(disposition)

    def _give_credit(self) -> None:
        if self.unsettled_count < self._limits.link_credit and self.state is LinkState.ATTACHED:
            self._credit = self._limits.link_credit
            self.send_state()

    def send_state(self) -> None:
        """Send a flow with the credit of the link."""
        self._windows.send_flow(self.handle, self._delivery_count, self._credit)

    # --- from the client

    def receive(self, transfers: Transfers, events: list[Any]) -> None:
        """Take complete deliveries.

        Raises `LinkFailure` or `SessionFailure`, after which the client's frames for the link must be dropped.
        """
        _, transfer, ids, tags, messages = transfers
        if self._incomplete is not None:
            for delivery_id, tag, message in zip(ids, tags, messages, strict=True):
                part = transfer._replace(delivery_id=delivery_id, delivery_tag=tag)
                self.receive_part(part, message, events)
            return
        is_settled = bool(transfer.settled)
        self._check_modes(transfer, is_settled)
        limits = self._limits
        if limits.message_bytes_max < limits.frame_max:
            self._check_size(max(map(len, messages)))
        credit = self._credit
        if credit >= len(ids):
            events.append(self._delivered(is_settled, ids, tags, messages))
            return
        if credit:
            events.append(self._delivered(is_settled, ids[:credit], tags[:credit], messages[:credit]))
        raise self._beyond_credit()

    def receive_early(self) -> None:
        """Take a transfer while the link is not attached: before, it has no credit, and afterwards it is dropped."""
        if self.state is LinkState.ATTACHING:
            self._failure = self._beyond_credit()

    def receive_part(self, transfer: TransferFrame, payload: bytes, events: list[Any]) -> None:
        """Take a transfer that is perhaps a part of a delivery. Raises `LinkFailure` or `SessionFailure`."""
        before = self.partial_bytes
        try:
            self._take_part(transfer, payload, events)
        finally:
            self._windows.partial_bytes += self.partial_bytes - before

    def _take_part(self, transfer: TransferFrame, payload: bytes, events: list[Any]) -> None:
        incomplete = self._incomplete
        if incomplete is None:
            incomplete = self._begun(transfer)
        elif transfer.delivery_id not in (None, incomplete.delivery_id):
            raise _disagrees("delivery-id", transfer.delivery_id, incomplete.delivery_id)
        elif transfer.delivery_tag not in (None, incomplete.tag):
            raise _disagrees("delivery-tag", transfer.delivery_tag, incomplete.tag)
        if transfer.aborted:
            self._incomplete = None
            self._count(1)
            return
        incomplete.is_settled = incomplete.is_settled or bool(transfer.settled)
        self._check_size(len(incomplete.parts) + len(payload))
        incomplete.parts += payload
        if transfer.more:
            self._incomplete = incomplete
            return
        self._incomplete = None
        self._check_modes(transfer, incomplete.is_settled)
        delivery = [incomplete.delivery_id], [incomplete.tag], [bytes(incomplete.parts)]
        events.append(self._delivered(incomplete.is_settled, *delivery))

    def _begun(self, transfer: TransferFrame) -> _Incomplete:
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            raise LinkFailure(Condition.INVALID_FIELD, "a delivery without delivery-id or delivery-tag")
        if not self._credit:
            raise self._beyond_credit()
        return _Incomplete(transfer.delivery_id, transfer.delivery_tag)

    def _delivered(
        self, is_settled: bool, ids: list[int], tags: list[bytes], messages: list[bytes]
    ) -> Deliveries:
        count, first = len(ids), ids[0]
        self.unsettled_count += count
        self._count(count)
        if (ids[-1] - first) & ID_MASK == count - 1:
            self._unsettled.append(_Run(first, count, is_settled))
        else:
            self._unsettled += [_Run(delivery_id, 1, is_settled) for delivery_id in ids]
        return Deliveries(self, is_settled, ids, tags, messages)

    def _count(self, count: int) -> None:
        """Count deliveries that have taken credit."""
        self._delivery_count = (self._delivery_count + count) & ID_MASK
        self._credit -= count
        if self._credit <= self._limits.link_credit // 2:
            self._give_credit()

    def _end(self) -> None:
        self._windows.partial_bytes -= self.partial_bytes
        self._incomplete = None

    def _check_modes(self, transfer: TransferFrame, is_settled: bool) -> None:
        mode = self._settle_mode
        if mode is not SenderSettleMode.MIXED and is_settled != (mode is SenderSettleMode.SETTLED):
            text = f"snd-settle-mode is {mode.name.lower()}, and settled of a transfer is {str(is_settled).lower()}"
            raise LinkFailure(Condition.INVALID_FIELD, text)
        if transfer.rcv_settle_mode is ReceiverSettleMode.SECOND and not is_settled:
            raise LinkFailure(
                Condition.NOT_IMPLEMENTED, "rcv-settle-mode second of a transfer is not supported"
            )

    def _check_size(self, size: int) -> None:
        limit = self._limits.message_bytes_max
        if size > limit:
            raise SessionFailure(
                Condition.MESSAGE_SIZE_EXCEEDED,
                f"message size ({size} bytes) > maximum message size ({limit} bytes)",
            )

    def _beyond_credit(self) -> LinkFailure:
        text = f"more deliveries than credit on link '{self.name}'"
        return LinkFailure(Condition.TRANSFER_LIMIT_EXCEEDED, text)


def _disagrees(field: str, value: object, first: object) -> LinkFailure:
    return LinkFailure(Condition.INVALID_FIELD, f"{field} {value} of a delivery that began with {first}")
