"""Write the tables of frames that the tests compare nodes with.

    python -m tests.wire.record rabbitmq AMQP_PORT HTTP_PORT [NAME...]
    python -m tests.wire.record differences

The first command records the frames of a RabbitMQ into rabbitmq.txt and rabbitmq_amqp10.txt. The RabbitMQ must run on
this machine, with the management plugin and the user guest. The command deletes and makes its virtual host `octets`.
Names restrict the command to exchanges and conversations whose names contain a given text; the rest stays.

The second command starts a node and writes its frames into differences.txt and differences_amqp10.txt, for each listed
exchange that still differs. To allow a new difference, add the name in brackets and a line `# reason` below it, and run
the command.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from qq.testing import LocalCluster
from tests.wire import conversations10
from tests.wire.conversations10 import CONVERSATIONS
from tests.wire.exchanges import EXCHANGES
from tests.wire.table import DIFFERENCES, DIFFERENCES_10, RABBITMQ, RABBITMQ_10, read, reasons, written
from tests.wire.wire import set_up, transcript

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path


class Ports(NamedTuple):
    amqp: int
    http: int


class Recording(NamedTuple):
    """The frames of a protocol."""

    names: Collection[str]
    transcript: Callable[[Ports, str], list[str]]
    rabbitmq: Path
    differences: Path


def _exchange(ports: Ports, name: str) -> list[str]:
    return transcript(ports.amqp, EXCHANGES[name])


def _conversation(ports: Ports, name: str) -> list[str]:
    conversations10.declare(ports.http, name)
    return conversations10.transcript(ports.amqp, name)


RECORDINGS = (
    Recording(EXCHANGES, _exchange, RABBITMQ, DIFFERENCES),
    Recording(CONVERSATIONS, _conversation, RABBITMQ_10, DIFFERENCES_10),
)


def record(ports: Ports, parts: list[str]) -> None:
    set_up(ports.http)
    for recording in RECORDINGS:
        known = read(recording.rabbitmq)
        table: dict[str, list[str]] = {}
        for name in recording.names:
            if name in known and parts and not any(part in name for part in parts):
                table[name] = known[name]
            else:
                print(name, flush=True)
                table[name] = recording.transcript(ports, name)
        recording.rabbitmq.write_text(written(table))


def record_differences() -> None:
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        ports = Ports(node.amqp_port, node.http_port)
        set_up(ports.http)
        for recording in RECORDINGS:
            right, listed = read(recording.rabbitmq), read(recording.differences)
            table: dict[str, list[str]] = {}
            for name in recording.names:
                if name in listed:
                    lines = recording.transcript(ports, name)
                    if lines != right[name]:
                        table[name] = [*reasons(listed[name]), *lines]
            recording.differences.write_text(written(table))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["rabbitmq", amqp_port, http_port, *names]:
            record(Ports(int(amqp_port), int(http_port)), names)
        case ["differences"]:
            record_differences()
        case _:
            sys.exit(__doc__)
