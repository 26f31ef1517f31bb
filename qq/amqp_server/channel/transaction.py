"""What a channel has published and settled since the last tx.commit.

RabbitMQ's transactions are atomic for one queue at most. Ours become one command of the log: all of it happens, or
nothing. So its size in the log, and what it costs every node to carry it out, are bounded while it grows: the publish
or the acknowledgement that would be too much is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.amqp_server.methods import PUBLISH
from qq.errors import ChannelError, ReplyCode
from qq.machine.catalog.limits import TRANSACTION_COMMANDS_MAX, TRANSACTION_MESSAGES_MAX
from qq.sessions.pending_requests import COMMAND_BYTES, OpenEnqueue, bytes_of_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.amqp_server.outgoing import Tagged
    from qq.machine.protocol.commands import Settlement
    from qq.ranges import Piece


class Transaction:
    """The transaction that is open on a channel in tx mode; there is always one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._begin()

    def publish(
        self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool, looked_into: bool = False
    ) -> None:
        """Add messages to `run`, which is `is_new` if it is not in here; `looked_into` if their content routes them.

        Raises ChannelError when the transaction gets too large.
        """
        self._messages += len(messages)
        self._bytes += bytes_of_messages(messages)
        if is_new:
            self._bytes += run.size
        if is_new or looked_into:
            self._commands += (len(messages) if looked_into else 1) * run.keys
        self._check(PUBLISH)
        if is_new:
            self._runs.append(run)
        run.add(messages)

    def settle(
        self, kind: type[Settlement], pieces: Sequence[Piece[Tagged]], method: tuple[int, int]
    ) -> None:
        """Add acknowledgements of delivery tags. Raises ChannelError when the transaction gets too large."""
        self._pieces.extend(pieces)
        settlements = self._settlements
        for piece in pieces:
            consumer, first = piece.value.consumer, piece.value.first_id + piece.offset
            last = first + piece.count - 1
            known = settlements[-1] if settlements else None
            if isinstance(known, kind) and known.consumer == consumer and known.last + 1 == first:
                settlements[-1] = kind(consumer, known.first, last)
                continue
            settlements.append(kind(consumer, first, last))
            self._commands += 1
            self._bytes += COMMAND_BYTES
            self._check(method)

    @property
    def messages(self) -> int:
        """How many messages are to be published."""
        return self._messages

    @property
    def acknowledgements(self) -> int:
        """How many messages are to be settled."""
        return sum(piece.count for piece in self._pieces)

    @property
    def settles(self) -> bool:
        return bool(self._pieces)

    def take(self) -> list[OpenEnqueue | Settlement]:
        """Begin anew; returns what is to be committed, in this order: first what is published, then what is settled."""
        content = [*self._runs, *self._settlements]
        self._begin()
        return content

    def roll_back(self) -> list[Piece[Tagged]]:
        """Forget everything; returns the delivery tags that are held again."""
        for run in self._runs:
            run.messages = []  # the channel must not add to it
        pieces = self._pieces
        self._begin()
        return pieces

    def _begin(self) -> None:
        self._bytes = self._messages = self._commands = 0
        self._runs: list[OpenEnqueue] = []
        self._settlements: list[Settlement] = []
        self._pieces: list[Piece[Tagged]] = []

    def _check(self, method: tuple[int, int]) -> None:
        for count, limit, unit in (
            (self._bytes, self._bytes_max, "bytes"),
            (self._messages, TRANSACTION_MESSAGES_MAX, "messages"),
            (self._commands, TRANSACTION_COMMANDS_MAX, "commands"),
        ):
            if count > limit:
                text = f"a transaction of more than {limit} {unit} (limit transaction_{unit})"
                raise ChannelError(ReplyCode.PRECONDITION_FAILED, text, *method)
