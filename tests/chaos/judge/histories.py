"""Builds histories row by row. A story has queues, processes and a clock of its own; many stories make a history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos.history import CLOCK_OFFSET
from chaos.judge.verdict import Promise
from chaos.workloads.world import QUORUM, QueuePlan

STARTED_NS = 1_700_000_000_000_000_000
SECONDS = 300
"""How long each run lasts."""

Row = dict[str, Any]


class Judged(NamedTuple):
    """A history that was judged."""

    promises: Sequence[Promise]
    planted: Mapping[str, Mapping[str, Sequence[Row]]]
    """The rows to be found, by story and promise."""


class History:
    """Rows and queues of a run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.queues: dict[str, dict[str, Any]] = {}
        self.stories = 0

    def write(self, directory: Path) -> None:
        """As a run directory."""
        (directory / "history").mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.in_order())
        (directory / "history" / "clients.jsonl").write_text(lines)
        (directory / "meta.json").write_text(json.dumps(self.meta()))

    def in_order(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: row["time_ns"])

    def meta(self) -> dict[str, Any]:
        return {
            "format": 1,
            "started_ns": STARTED_NS,
            "heal_ns": STARTED_NS,
            "ended_ns": STARTED_NS + SECONDS * 10**9,
            "problems": [],
            "rows": len(self.rows),
            "queues": self.queues,
        }


class Story:
    """A part of a history. Each row is a millisecond after its predecessor, at a time that no other story uses.

    A client is named by its connection, "con-1#2"; its process is the part before the #. Messages are named by their
    numbers. Methods that add rows return the last row.
    """

    def __init__(self, history: History, name: str, start_s: float = 0.0) -> None:
        self.name = name
        self.now_ms = start_s * 1000
        self._history = history
        self._calls: Counter[str] = Counter()
        self._channel = 1
        history.stories += 1
        self._offset_ns = STARTED_NS + history.stories

    def queue(self, suffix: str = "", **settings: Any) -> str:
        """Declare a queue that is drained, with further settings if given."""
        name = self.name + suffix
        plain = QueuePlan(name, QUORUM).described("confirm", drained=True)
        self._history.queues[name] = plain | settings
        return name

    def wait(self, ms: float) -> None:
        self.now_ms += ms

    def row(self, type_: str, op: str, client: str, call: int | None = None, **fields: Any) -> Row:
        self.now_ms += 1
        process = f"{self.name}/{client.partition('#')[0]}"
        if call is None:
            self._calls[process] += 1
            call = self._calls[process]
        row = {
            "time_ns": self._offset_ns + round(self.now_ms * 1e6),
            "process": process,
            "call": call,
            "type": type_,
            "op": op,
            **{key: value for key, value in fields.items() if value is not None},
        }
        self._history.rows.append(row)
        return row

    def end(self, invoke: Row, outcome: str | None, **answer: Any) -> Row:
        """Add the end of a call with its outcome; None adds no row, for an unknown outcome."""
        if outcome is None:
            return invoke
        self.now_ms += 1
        row = {**invoke, "time_ns": self._offset_ns + round(self.now_ms * 1e6), "type": outcome, **answer}
        self._history.rows.append(row)
        return row

    def call(self, op: str, client: str, outcome: str | None = "ok", **fields: Any) -> Row:
        return self.end(self.row("invoke", op, client, **self.place(client), **fields), outcome)

    def connect(self, client: str, outcome: str = "ok", **fields: Any) -> Row:
        return self.call("connect", client, outcome, **fields)

    def publish(
        self,
        number: int,
        outcome: str | None = "ok",
        by: str = "pub#1",
        queue: str | None = None,
        **fields: Any,
    ) -> Row:
        where = {
            **self.place(by),
            "queue": queue or self.name,
            **self.message(number, by.partition("#")[0]),
        }
        where.setdefault("node", "n1")
        return self.end(self.row("invoke", "publish", by, **{**where, "attempt": 1, **fields}), outcome)

    def deliver(
        self, number: int, to: str = "con#1", by: str = "pub", queue: str | None = None, **fields: Any
    ) -> Row:
        delivered = {"redelivered": False, "delivery_count": 0, **fields}
        message = self.message(number, by)
        place = {**self.place(to), "queue": queue or self.name, "consumer": f"{to}.1"}
        return self.row("ok", "deliver", to, **{**place, **message, **delivered})

    def settle(
        self,
        number: int,
        op: str = "ack",
        to: str = "con#1",
        by: str = "pub",
        outcome: str | None = "ok",
        queue: str | None = None,
        **fields: Any,
    ) -> Row:
        message_id = self.message(number, by)["id"]
        return self.call(op, to, outcome, queue=queue or self.name, id=message_id, **fields)

    def take(self, number: int, to: str = "con#1", **fields: Any) -> Row:
        """A delivery that is acknowledged; returns the row of the delivery."""
        row = self.deliver(number, to, **fields)
        self.settle(number, "ack", to, by=fields.get("by", "pub"), queue=fields.get("queue"))
        return row

    def reader(
        self, op: str, reader: str, outcome: str | None = "ok", group: str = "g", **fields: Any
    ) -> Row:
        """A request of a reader; returns its last row."""
        answer = {key: fields.pop(key) for key in ("messages", "digest") if key in fields}
        return self.end(
            self.row("invoke", op, reader, queue=self.name, group=group, **fields), outcome, **answer
        )

    def lease(
        self, lease: int, *numbers: int, by: str = "reader", fence: int = 0, group: str = "g"
    ) -> list[Row]:
        """Take a lease with these messages, and read it for the first time; returns the rows of the messages."""
        self.reader("take_lease", by, group=group, fence=fence, lease=lease, messages=len(numbers))
        self.read(lease, *numbers, by=by, group=group)
        place = {"queue": self.name, "group": group, "lease": lease}
        return [
            self.row(
                "ok",
                "leased",
                by,
                place=at,
                redelivered=False,
                delivery_count=0,
                **place,
                **self.message(number, "pub"),
            )
            for at, number in enumerate(numbers)
        ]

    def read(self, lease: int, *numbers: int, by: str = "reader", group: str = "g") -> Row:
        """Read a lease with these messages; returns the last row."""
        answer = {"messages": len(numbers), "digest": str(numbers)}
        return self.reader("read_lease", by, group=group, lease=lease, **answer)

    def commit(self, lease: int, outcome: str | None = "ok", by: str = "reader", **fields: Any) -> Row:
        return self.reader("commit_leases", by, outcome, **{"fence": 0, "lease": lease, **fields})

    def release(self, lease: int, outcome: str | None = "ok", by: str = "reader", **fields: Any) -> Row:
        return self.reader("release_lease", by, outcome, **{"fence": 0, "lease": lease, **fields})

    def move_clocks(self, nodes: str, moved_ms: int) -> Row:
        detail = json.dumps({CLOCK_OFFSET: moved_ms})
        return self.row("ok", "fault", "nemesis", fault="clocks move", node=nodes, detail=detail)

    def place(self, client: str) -> Row:
        return {"connection": f"{self.name}/{client}", "channel": self._channel}

    def message(self, number: int, publisher: str) -> Row:
        return {
            "id": f"{self.name}/{publisher}:{number}",
            "publisher": f"{self.name}/{publisher}",
            "sequence": number,
        }


def died(queue: str, reason: str = "rejected", count: int = 1) -> Row:
    return {"queue": queue, "reason": reason, "count": count}
