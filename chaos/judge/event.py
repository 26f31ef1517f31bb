"""A row of a history as a tuple, which is smaller and faster than a dictionary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.history import FIELD_TYPES

if TYPE_CHECKING:
    from chaos.history import Row

ANSWERS = ("ack", "nack", "reject")
OF_MESSAGES = frozenset(("publish", "deliver", "leased", *ANSWERS))
"""Operations with a row for each message."""
OF_CLIENTS = frozenset(("connect", "consume", "cancel", "cancelled", "purge", "delete", "fault", "heal"))
"""Operations with few rows, each about many messages."""
OF_LEASES = frozenset(
    ("open_group", "close_group", "take_lease", "read_lease", "commit_leases", "release_lease")
)
"""Operations of groups and their leases; each lease has some rows."""

Packed = tuple[Any, ...]
"""A named tuple as a plain tuple, as it goes from step to step."""
Death = tuple[str, str, int]
"""Queue, reason and count of an entry of x-death."""


class Event(NamedTuple):
    """A row; the fields are those of chaos/history.py."""

    time_ns: int
    process: str
    call: int
    type: str
    op: str
    workload: str | None = None
    node: str | None = None
    connection: str | None = None
    channel: int | None = None
    queue: str | None = None
    consumer: str | None = None
    id: str | None = None
    publisher: str | None = None
    sequence: int | None = None
    attempt: int | None = None
    priority: int | None = None
    redelivered: bool | None = None
    delivery_count: int | None = None
    deaths: tuple[Death, ...] | None = None
    tx: str | None = None
    dedup: bool | None = None
    ttl_ms: int | None = None
    delay_ms: int | None = None
    group: str | None = None
    fence: int | None = None
    lease: int | None = None
    place: int | None = None
    messages: int | None = None
    digest: str | None = None
    fault: str | None = None
    detail: str | None = None

    @property
    def consuming(self) -> Consumer:
        """The consumer of a delivery."""
        return self.process, self.connection, self.channel, self.consumer


Consumer = tuple[str, str | None, int | None, str | None]
"""Process, connection, channel and tag; the broker's order of deliveries to a consumer is the order of its rows."""

FIELDS = Event._fields
if tuple(FIELD_TYPES) != FIELDS:
    raise AssertionError(f"an event has {FIELDS}, a row {tuple(FIELD_TYPES)}")
DEATHS = FIELDS.index("deaths")
_REPEATED = tuple(
    FIELDS.index(name)
    for name in ("process", "workload", "node", "connection", "queue", "consumer", "publisher", "group")
)
"""Places of texts that many rows share."""


def packed(row: Row) -> tuple[Any, ...]:
    """Return the row as a plain tuple in the order of `Event`, and keep equal texts once."""
    values: list[Any] = list(map(row.get, FIELDS))
    for place in _REPEATED:
        if values[place] is not None:
            values[place] = sys.intern(values[place])
    if values[DEATHS] is not None:
        values[DEATHS] = tuple((death["queue"], death["reason"], death["count"]) for death in values[DEATHS])
    return tuple(values)


def row_of(event: Event) -> dict[str, Any]:
    """Return the row as it stands in the history."""
    row: dict[str, Any] = {
        name: value for name, value in zip(FIELDS, event, strict=True) if value is not None
    }
    if event.deaths is not None:
        row["deaths"] = [
            dict(zip(("queue", "reason", "count"), death, strict=True)) for death in event.deaths
        ]
    return row
