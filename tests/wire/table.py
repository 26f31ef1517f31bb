"""The tables of transcripts: the frames of RabbitMQ, and the allowed differences of a node.

Each transcript stands below its name in brackets. In the table of the differences, lines that begin with `#` say why.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RABBITMQ = Path(__file__).with_name("rabbitmq.txt")
DIFFERENCES = Path(__file__).with_name("differences.txt")


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
