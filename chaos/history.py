"""The history of a run: every request of each client, and its answer.

A history is any number of files `*.jsonl`, UTF-8, one JSON object a line, each file in the order of time. A key whose
value is null is left out. The keys:

    time_ns      int   wall clock of the harness's machine; rises from row to row of a file
    process      str   name of the client or nemesis: "confirm-pub-n1", "nemesis"
    call         int   number of the operation within its process; an invoke and its end have the same
    type         str   invoke | ok (it happened) | fail (it certainly did not) | unknown (it may have happened) | info
    op           str   one of OPERATIONS; `deliver`, `leased` and `cancelled` come without an invoke. A connection
                       that is lost is `info` of `connect`
    workload     str   name of the workload
    node         str   name of the node; of a fault: its targets, comma-separated
    connection   str   unique per AMQP connection
    channel      int
    queue        str   of a publish: the queue that it is meant for
    consumer     str   consumer tag
    id           str   of the message, unique in the run: publisher ":" sequence
    publisher    str   unique per process and queue
    sequence     int   per publisher, from 1 without gaps
    attempt      int   of a publish: 1, and more when a publish of unknown outcome is repeated with its id
    priority     int
    redelivered  bool
    delivery_count int header x-delivery-count, 0 if absent
    deaths       list  of {"queue": str, "reason": str, "count": int}, from x-death
    tx           str   the transaction that a publish or an ack belongs to
    dedup        bool  published with x-publisher-id and x-publish-seq
    ttl_ms       int   published with this expiration
    delay_ms     int   published with this x-delay
    group        str   of readers that lease messages
    fence        int   of a request that changes a group: the number of the owner that sent it
    lease        int   number of the lease in its group; of a commit: the highest number that is committed
    place        int   of a leased message: its number in the lease, from 0 on
    messages     int   of a lease that was taken or read
    digest       str   of a lease that was read: a hash of its messages in their order
    fault        str   name of the fault
    detail       str   the text of an error, the parameters of a fault, the protocol of a connection

An invoke without an end has an unknown outcome: the harness was ended, or the answer never came. The end of a call
repeats the fields of its invoke. `leased` is a message of a lease that was read, recorded when a reader reads the lease
for the first time. A publish that was refused with basic.nack is unknown, because a broker may send that
for a message that it keeps.

Invariant: rows are only ever appended, in the order of their times.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from itertools import count
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NotRequired,
    Protocol,
    Self,
    TypedDict,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLUSH_INTERVAL_S = 1.0
SUFFIX = ".jsonl"
CLOCK_OFFSET = "clock_offset_ms"
"""In the detail of a fault: the milliseconds by which it moved the wall clocks of its targets."""

Type = Literal["invoke", "ok", "fail", "unknown", "info"]
Operation = Literal[
    "connect",
    "declare",
    "delete",
    "purge",
    "publish",
    "deliver",
    "ack",
    "nack",
    "reject",
    "get",
    "cancel",
    "consume",
    "tx_commit",
    "tx_rollback",
    "cancelled",
    "open_group",
    "close_group",
    "take_lease",
    "read_lease",
    "commit_leases",
    "release_lease",
    "leased",
    "fault",
    "heal",
    "drain",
]
TYPES: tuple[Type, ...] = get_args(Type)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class HistoryError(OperatingError):
    """A history that cannot be read, in one line."""


class Death(TypedDict):
    """A death of a message in a queue: an entry of x-death."""

    queue: str
    reason: str
    count: int


class Where(TypedDict):
    """The connection and channel of an operation."""

    node: str
    connection: str
    channel: NotRequired[int]


class Published(TypedDict):
    """The fields of a row about a published message."""

    id: str
    publisher: str
    sequence: int
    attempt: int
    priority: NotRequired[int]
    dedup: NotRequired[bool]
    ttl_ms: NotRequired[int]
    delay_ms: NotRequired[int]


class Arrived(TypedDict):
    """The fields of a row about a delivered message."""

    id: str
    redelivered: bool
    delivery_count: int
    publisher: NotRequired[str]
    sequence: NotRequired[int]
    priority: NotRequired[int]
    deaths: NotRequired[list[Death]]


class Fields(TypedDict, total=False):
    """The optional fields of a row."""

    workload: str
    node: str | None
    connection: str
    channel: int
    queue: str
    consumer: str | None
    id: str
    publisher: str
    sequence: int
    attempt: int
    priority: int
    redelivered: bool
    delivery_count: int
    deaths: list[Death] | None
    tx: str | None
    dedup: bool
    ttl_ms: int
    delay_ms: int
    group: str
    fence: int
    lease: int
    place: int
    messages: int
    digest: str
    fault: str
    detail: str | None


class Row(Fields):
    """A line of a history."""

    time_ns: int
    process: str
    call: int
    type: Type
    op: Operation


REQUIRED = ("time_ns", "process", "call", "type", "op")


def _kind(hint: Any) -> type:
    """Return the type of a value that is not null; a choice among texts is a text."""
    if get_origin(hint) is Literal:
        return str
    of_value = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return get_origin(of_value) or of_value


_HINTS = get_type_hints(Row)
FIELD_TYPES = {name: _kind(_HINTS[name]) for name in (*REQUIRED, *Fields.__annotations__)}
"""The type of each key, in the order of display."""


class Clock(Protocol):
    def now_ns(self) -> int:
        """Return the time of a row in ns; it never goes back."""
        ...


class SteadyClock:
    """Wall-clock time that never goes back: the wall clock is read once, and then the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() + self._offset_ns


class Records(Protocol):
    """The receiver of a history's rows."""

    def record(self, process: str, call: int, type_: Type, op: Operation, fields: Fields) -> None:
        """Append a row. Keys whose value is None are left out."""
        ...


class KeptRows:
    """Rows in memory, for a history that is judged by the process that recorded it."""

    def __init__(self, clock: Clock) -> None:
        self.rows: list[Row] = []
        self._clock = clock

    def record(self, process: str, call: int, type_: Type, op: Operation, fields: Fields) -> None:
        last_ns = self.rows[-1]["time_ns"] if self.rows else 0
        time_ns = max(self._clock.now_ns(), last_ns + 1)
        self.rows.append(_new_row(time_ns, process, call, type_, op, fields))


def _new_row(time_ns: int, process: str, call: int, type_: Type, op: Operation, fields: Fields) -> Row:
    row: Any = {"time_ns": time_ns, "process": process, "call": call, "type": type_, "op": op}
    return row | {key: value for key, value in fields.items() if value is not None}


class Recorder:
    """Appends rows to a file, for all threads. If the harness is killed, the last second may be missing."""

    def __init__(self, file: Path, clock: Clock | None = None) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.clock = clock or SteadyClock()
        self.counts: Counter[tuple[str, str]] = Counter()
        """Rows so far, by operation and type."""
        self._file = file.open("a", encoding="utf-8")
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        self._lock = threading.Lock()
        self._last_ns = 0
        self._flushed_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def process(self, name: str, workload: str | None = None) -> Process:
        """Return a process that records here; its name must be unique."""
        return Process(self, name, workload)

    def record(self, process: str, call: int, type_: Type, op: Operation, fields: Fields) -> None:
        """Append a row; after `close`, do nothing."""
        with self._lock:
            if self._file.closed:
                return
            self._last_ns = max(self.clock.now_ns(), self._last_ns + 1)
            row = _new_row(self._last_ns, process, call, type_, op, fields)
            self._file.write(self._encode(row) + "\n")
            self.counts[op, type_] += 1
            if time.monotonic() - self._flushed_s > FLUSH_INTERVAL_S:
                self._flush()

    def flush(self) -> None:
        """Write buffered rows to the file; to be called every second if all clients may be waiting."""
        with self._lock:
            if not self._file.closed:
                self._flush()

    def _flush(self) -> None:
        self._file.flush()
        self._flushed_s = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Process:
    """A client or the nemesis: numbers its calls."""

    def __init__(self, records: Records, name: str, workload: str | None = None) -> None:
        self.name = name
        self._records = records
        self._numbers = count(1)
        self._always: Fields = {} if workload is None else {"workload": workload}

    def invoke(self, op: Operation, **fields: Unpack[Fields]) -> Call:
        """Record the begin of an operation; return a call that records its end."""
        fields = self._always | fields
        number = next(self._numbers)
        self._records.record(self.name, number, "invoke", op, fields)
        return Call(self._records, self.name, number, op, fields)

    def event(self, op: Operation, type_: Type = "ok", **fields: Unpack[Fields]) -> None:
        """Record an event without a request."""
        self._records.record(self.name, next(self._numbers), type_, op, self._always | fields)


class Call:
    """A pending operation. Only the first end counts."""

    def __init__(self, records: Records, process: str, number: int, op: Operation, fields: Fields) -> None:
        self._records = records
        self._process = process
        self._number = number
        self._op: Operation = op
        self._fields = fields
        self._is_over = False

    def ok(self, **more: Unpack[Fields]) -> None:
        self._end("ok", more)

    def fail(self, detail: str) -> None:
        """Record that the operation certainly did not happen."""
        self._end("fail", {"detail": detail})

    def unknown(self, detail: str) -> None:
        """Record that the operation may have happened, or may still happen."""
        self._end("unknown", {"detail": detail})

    def _end(self, type_: Type, more: Fields) -> None:
        if not self._is_over:
            self._is_over = True
            self._records.record(self._process, self._number, type_, self._op, self._fields | more)


def read(directory: Path) -> list[Row]:
    """Read all rows of the files in a directory, in the order of time.

    Raises HistoryError, with file and line, for a row that breaks the schema, or if there is no file.
    """
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if not files:
        raise HistoryError(f"{directory}: no history there (*{SUFFIX})")
    rows = [row for file in files for row in _read_file(file)]
    return sorted(rows, key=lambda row: row["time_ns"])


def _read_file(file: Path) -> Iterator[Row]:
    last_ns = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                raise HistoryError(f"{file}:{number}: the line is cut: {_shown(line)}")
            try:
                row = parse(line)
                if row["time_ns"] <= last_ns:
                    raise ValueError("time_ns does not rise")  # noqa: TRY301 -- the place is added to all alike
            except ValueError as error:
                raise HistoryError(f"{file}:{number}: {error}: {_shown(line)}") from None
            last_ns = row["time_ns"]
            yield row


def parse(line: str | bytes) -> Row:
    """Parse a line. Raises ValueError."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        raise ValueError("not JSON") from None
    if not isinstance(row, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- one family for whatever is wrong with a line
    for key in REQUIRED:
        if key not in row:
            raise ValueError(f"{key} is missing")
    for key, value in row.items():
        expected = FIELD_TYPES.get(key)
        if expected is None:
            raise ValueError(f"unknown key {key}")
        # In Python, true is an int.
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise ValueError(f"{key} is {value!r}, not {expected.__name__}")
    if row["type"] not in TYPES:
        raise ValueError(f"unknown type {row['type']!r}")
    if row["op"] not in OPERATIONS:
        raise ValueError(f"unknown op {row['op']!r}")
    for death in row.get("deaths", ()):
        if not isinstance(death, dict) or death.keys() != Death.__annotations__.keys():
            raise ValueError(f"deaths has {death!r}")
    return cast("Row", row)


_SHOWN_BYTES = 80


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\n")
    return text if len(text) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + "…"
