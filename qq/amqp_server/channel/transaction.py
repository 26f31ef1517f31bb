"""An open transaction: a channel's publishes and settlements since the last tx.commit.

RabbitMQ's transactions are atomic for a single queue at most. In qq a transaction is a single command of the log, so it
is applied as a whole. So its size in the log, and its cost for every node, are bounded while it grows: a publish or an
acknowledgement that would exceed a limit is refused.
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
    """The open transaction of a channel in tx mode."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._begin()

    def publish(
        self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool, looked_into: bool = False
    ) -> None:
        """Add messages to `run`, which `is_new` if it is not part of the transaction yet.

        `looked_into` says that their content decides their routes. Raises ChannelError if the transaction becomes too
        large.
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
        """Add settlements of delivery tags. Raises ChannelError if the transaction becomes too large."""
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
        """Messages to be published."""
        return self._messages

    @property
    def acknowledgements(self) -> int:
        """Messages to be settled."""
        return sum(piece.count for piece in self._pieces)

    @property
    def settles(self) -> bool:
        return bool(self._pieces)

    def take(self) -> list[OpenEnqueue | Settlement]:
        """Return the content to be committed, publishes before settlements, and begin a new transaction."""
        content = [*self._runs, *self._settlements]
        self._begin()
        return content

    def roll_back(self) -> list[Piece[Tagged]]:
        """Discard the content, and return the delivery tags that the client holds again."""
        for run in self._runs:
            run.messages = []  # so that the channel adds no messages to it
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
