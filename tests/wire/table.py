"""The tables of transcripts: the frames of RabbitMQ, and the allowed differences of a node.

Each transcript stands below its name in brackets. In the table of the differences, lines that begin with `#` say why.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RABBITMQ = Path(__file__).with_name("rabbitmq.txt")
DIFFERENCES = Path(__file__).with_name("differences.txt")
RABBITMQ_10 = Path(__file__).with_name("rabbitmq_amqp10.txt")
DIFFERENCES_10 = Path(__file__).with_name("differences_amqp10.txt")


def read(file: Path) -> dict[str, list[str]]:
    """Return the lines below each name, with those that give a reason."""
    table: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("["):
            lines = table[line[1:-1]] = []
        elif line:
            lines.append(line)
    return table


def reasons(lines: Sequence[str]) -> list[str]:
    """Return the lines that give a reason."""
    return [line for line in lines if line.startswith("#")]


def frames(lines: Sequence[str]) -> list[str]:
    """Return the lines that show a frame."""
    return [line for line in lines if not line.startswith("#")]


def written(table: Mapping[str, Sequence[str]]) -> str:
    return "\n".join("\n".join((f"[{name}]", *lines, "")) for name, lines in table.items())


def answers(lines: Sequence[str]) -> list[str]:
    """Return the frames of the broker, by the steps of a client of AMQP 1.0.

    When the client's engine answers depends on how the broker's frames are divided into packets. A refused link is
    shown alike, whether the broker ends the session, as RabbitMQ 4.0 does, or attaches the link without its terminus
    and detaches it, as a node and RabbitMQ 4.1 do.
    """
    shown: list[str] = []
    for line in lines:
        detached = re.match(r"< \d+ detach handle=\S+ closed=True, (error=.*)", line)
        ended = re.match(r"< \d+ end (error=.*)", line)
        if line.startswith("> "):
            continue
        if detached and shown and " attach " in shown[-1]:
            shown[-1] = f"< refused {detached[1]}"
        elif ended:
            shown.append(f"< refused {ended[1]}")
        else:
            shown.append(line)
    return shown
