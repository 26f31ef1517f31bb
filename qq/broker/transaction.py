"""What a channel has published and settled since the last tx.commit.

Lives here: the content of a transaction, in order, until it is committed or rolled back. Not here: how it is carried
out in one step (machine/publishing.py).

RabbitMQ's transactions are atomic for one queue at most. Ours become one command of the log: all of it happens, or
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.broker.submissions import OpenEnqueue
from qq.errors import ChannelError, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.broker.outgoing import Tagged
    from qq.machine.commands import Settlement
    from qq.ranges import Piece


class Transaction:
    """The transaction that is open on a channel in tx mode; there is always one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._content: list[OpenEnqueue | Settlement] = []
        self._pieces: list[Piece[Tagged]] = []

    def publish(self, run: OpenEnqueue, messages: list[bytes], *, is_new: bool) -> None:
        """Add messages to `run`, which is `is_new` if it is not in here. Raises ChannelError when it gets too large."""
        self._bytes += sum(map(len, messages))
        if self._bytes > self._bytes_max:
            text = f"a transaction of more than {self._bytes_max} bytes"
            raise ChannelError(Reply.PRECONDITION_FAILED, text, 60, 40)
        if is_new:
            self._content.append(run)
        run.messages += messages

    def settle(self, kind: type[Settlement], pieces: Sequence[Piece[Tagged]]) -> None:
        """Add acknowledgements of delivery tags that the client held."""
        self._pieces.extend(pieces)
        for piece in pieces:
            first = piece.value.first_id + piece.offset
            self._content.append(kind(piece.value.consumer, first, first + piece.count - 1))

    @property
    def settles(self) -> bool:
        return bool(self._pieces)

    def take(self) -> list[OpenEnqueue | Settlement]:
        """Begin anew; returns what is to be committed."""
        content = self._content
        self._begin()
        return content

    def roll_back(self) -> list[Piece[Tagged]]:
        """Forget everything; returns the delivery tags that are held again."""
        for part in self._content:
            if isinstance(part, OpenEnqueue):
                part.messages = []  # the channel must not add to it
        pieces = self._pieces
        self._begin()
        return pieces

    def _begin(self) -> None:
        self._bytes, self._content, self._pieces = 0, [], []
