"""The options of the format `qq`. An error names the option."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from qq_spark.client import Access
from qq_spark.errors import QueueSourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE_MESSAGES_MAX = 1_000_000
"""Most messages of a lease."""
_NUMBER_MAX = 2**53
_ACCESS = ("url", "user", "password", "passwordFile", "caFile", "vhost", "retrySeconds")
_NAMES = (
    *_ACCESS,
    "queue",
    "queues",
    "queuePattern",
    "group",
    "order",
    "exclusive",
    "partitions",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "leases",
    "maxMessages",
    "holdSeconds",
)
_WRITER_NAMES = (*_ACCESS, "queue", "exchange", "routingKey", "guarantee", "sink", "epoch")
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_SPARKS_OWN = ("checkpointLocation", "path", "queryName")
"""Options that Spark itself adds for a writer."""
_STREAM_ONLY = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "queues", "queuePattern")
_BATCH_ONLY = ("leases", "maxMessages", "holdSeconds")
_SNAPSHOT_ONLY = ("maxMessages", "holdSeconds", "order", "exclusive")


class SourceOptions(NamedTuple):
    """Options of both kinds of readers."""

    access: Access
    group: str | None
    settings: dict[str, object]
    """Settings of the group."""
    partitions: int
    """Tasks that read a batch."""


class StreamOptions(NamedTuple):
    source: SourceOptions
    group: str
    queues: tuple[str, ...]
    pattern: re.Pattern[str] | None
    """Names of the queues to read, beside `queues`."""
    messages: int
    """Most messages of a trigger."""
    bytes: int
    """Most bytes of a trigger, except for a single larger message."""


class BatchOptions(NamedTuple):
    source: SourceOptions
    queue: str
    leases: tuple[int, int] | None
    """Numbers of the first and the last lease to read; `None` is a snapshot of the ready messages."""
    messages: int
    """Most messages of a snapshot."""
    hold_s: int
    """Seconds after which the messages of a snapshot return to the queue."""


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream. Raise QueueSourceError."""
    values = _Values(given)
    values.refuse(_BATCH_ONLY, "is for spark.read")
    queues = [name.strip() for name in values.text("queues", "").split(",") if name.strip()]
    pattern = values.text("queuePattern", "")
    if queue := values.text("queue", ""):
        queues.insert(0, queue)
    if not queues and not pattern:
        raise QueueSourceError(
            "option 'queue' is missing: the name of a queue, or use 'queues' or 'queuePattern'"
        )
    try:
        compiled = re.compile(pattern) if pattern else None
    except re.error as error:
        raise QueueSourceError(f"option 'queuePattern' is no regular expression: {error}") from None
    return StreamOptions(
        values.source(),
        values.text("group"),
        tuple(dict.fromkeys(queues)),
        compiled,
        values.number("maxMessagesPerTrigger", 100_000),
        values.number("maxBytesPerTrigger", 64 * 1024 * 1024),
    )


def batch_options(given: Mapping[str, str]) -> BatchOptions:
    """Return the options of a batch. Raise QueueSourceError."""
    values = _Values(given)
    values.refuse(_STREAM_ONLY, "is for spark.readStream")
    leases = values.text("leases", "")
    if leases:
        values.refuse(_SNAPSHOT_ONLY, "contradicts option 'leases'")
        values.text("group")
    return BatchOptions(
        values.source(),
        values.text("queue"),
        _lease_numbers(leases) if leases else None,
        values.number("maxMessages", LEASE_MESSAGES_MAX),
        values.number("holdSeconds", 300),
    )


class WriterOptions(NamedTuple):
    """Options of writers."""

    access: Access
    defaults: dict[str, str]
    """Exchange and routing key of rows without these columns."""
    is_exactly_once: bool
    sink: str | None
    """Name of the sink; `None` is a name for the query, or for the batch."""
    epoch: int | None
    """Number of a batch that is written to a named sink, such as in `foreachBatch`."""


def writer_options(given: Mapping[str, str], *, is_stream: bool) -> WriterOptions:
    """Return the options of a writer. Raise QueueSourceError."""
    values = _Values(given, _WRITER_NAMES, _SPARKS_OWN)
    queue = values.text("queue", "")
    if queue:
        values.refuse(("exchange", "routingKey"), "contradicts option 'queue'")
    guarantee = values.text("guarantee", EXACTLY_ONCE)
    if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise QueueSourceError(
            f"option 'guarantee' must be '{EXACTLY_ONCE}' or '{AT_LEAST_ONCE}': '{guarantee}'"
        )
    if guarantee == AT_LEAST_ONCE:
        values.refuse(("sink", "epoch"), f"contradicts option 'guarantee' ({AT_LEAST_ONCE})")
    sink, epoch = values.text("sink", "") or None, None
    if is_stream:
        values.refuse(("epoch",), "is for write: a stream has the numbers of its batches")
    elif sink is not None or values.text("epoch", ""):
        values.text("sink")
        epoch = values.number("epoch", None, 0)
    return WriterOptions(
        values.access(),
        {"exchange": values.text("exchange", ""), "routing_key": queue or values.text("routingKey", "")},
        guarantee == EXACTLY_ONCE,
        sink,
        epoch,
    )


def _lease_numbers(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise QueueSourceError(f"option 'leases' must be a number such as 3, or two such as 3-7: '{text}'")
    return int(found[1]), int(found[2] or found[1])


class _Values:
    """Options by their names in lower case."""

    def __init__(
        self, given: Mapping[str, str], names: tuple[str, ...] = _NAMES, ignored: tuple[str, ...] = ()
    ) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        known = {name.lower(): name for name in names}
        for name in self._given:
            if name not in known and name not in map(str.lower, ignored):
                near = get_close_matches(name, known, 1)
                hint = f" (is '{known[near[0]]}' meant?)" if near else ""
                raise QueueSourceError(
                    f"option '{name}' is unknown{hint}; the options are: {', '.join(names)}"
                )

    def refuse(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if name.lower() in self._given:
                raise QueueSourceError(f"option '{name}' {reason}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name.lower()) or default
        if value is None:
            raise QueueSourceError(f"option '{name}' is missing")
        return value

    def number(self, name: str, default: int | None, low: int = 1, high: int = _NUMBER_MAX) -> int:
        text = self.text(name, None if default is None else str(default))
        if not re.fullmatch(r"\d{1,16}", text) or not low <= int(text) <= high:
            raise QueueSourceError(f"option '{name}' must be a whole number from {low} to {high}: '{text}'")
        return int(text)

    def source(self) -> SourceOptions:
        settings: dict[str, object] = {}
        order = self.text("order", "ready")
        if order not in ("ready", "arrival"):
            raise QueueSourceError(f"option 'order' must be 'ready' or 'arrival': '{order}'")
        exclusive = self.text("exclusive", "false").lower()
        if exclusive not in ("true", "false"):
            raise QueueSourceError(f"option 'exclusive' must be 'true' or 'false': '{exclusive}'")
        settings = {"order": order, "exclusive": exclusive == "true"}
        return SourceOptions(
            self.access(),
            self.text("group", "") or None,
            settings,
            self.number("partitions", 4, high=10_000),
        )

    def access(self) -> Access:
        urls = tuple(url.strip() for url in self.text("url").split(",") if url.strip())
        for url in urls:
            try:
                split = urlsplit(url)
                valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
            except ValueError:
                valid = False
            if not valid:
                raise QueueSourceError(
                    f"option 'url' must be addresses such as http://host:15672, with commas between them: '{url}'"
                )
        if not urls:
            raise QueueSourceError("option 'url' is empty")
        return Access(
            urls,
            self.text("user", "guest"),
            self._password(),
            self.text("vhost", "/"),
            self.text("caFile", "") or None,
            self.number("retrySeconds", 120),
        )

    def _password(self) -> str:
        file = self.text("passwordFile", "")
        if not file:
            return self.text("password", "guest")
        self.refuse(("password",), "contradicts option 'passwordFile'")
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise QueueSourceError(
                f"option 'passwordFile' names a file that cannot be read: {error}"
            ) from None
