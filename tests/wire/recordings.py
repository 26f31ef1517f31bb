"""The recordings of RabbitMQ's frames, one for each version of AMQP: how to repeat them, and their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.wire import conversations10, wire
from tests.wire.conversations10 import CONVERSATIONS
from tests.wire.exchanges import EXCHANGES
from tests.wire.table import DIFFERENCES, DIFFERENCES_10, RABBITMQ, RABBITMQ_10, answers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path


class Ports(NamedTuple):
    amqp: int
    http: int


class Recording(NamedTuple):
    """The frames of a version of AMQP."""

    names: Collection[str]
    transcript: Callable[[Ports, str, Sequence[str] | None], list[str]]
    """Returns the lines of a broker. With the expected lines it waits for as many frames; without, for a pause."""
    compared: Callable[[Sequence[str]], list[str]]
    """Returns the lines of a transcript that brokers must have in common."""
    rabbitmq: Path
    differences: Path


def _exchange(ports: Ports, name: str, expected: Sequence[str] | None) -> list[str]:
    return wire.transcript(ports.amqp, EXCHANGES[name], expected)


def _conversation(ports: Ports, name: str, expected: Sequence[str] | None) -> list[str]:
    conversations10.declare(ports.http, name)
    return conversations10.transcript(ports.amqp, name, expected)


RECORDINGS = {
    "AMQP 0-9-1": Recording(EXCHANGES, _exchange, list, RABBITMQ, DIFFERENCES),
    "AMQP 1.0": Recording(CONVERSATIONS, _conversation, answers, RABBITMQ_10, DIFFERENCES_10),
}
