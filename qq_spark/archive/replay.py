"""Publishes messages of an archive again, each once, in the order of the archive.

A replay has a name and a record in the archive: its options, the manifests that it publishes, and how many of these are
finished. Each message has the same publisher id and the same number in each attempt, so the cluster drops a message
that an earlier attempt has published. Replays of the same name in two archives have different publisher ids.

Invariant: a manifest counts as finished only after the cluster has committed all its messages.
"""

from __future__ import annotations

import hashlib
import re
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from qq_spark.archive.frames import messages_of
from qq_spark.archive.store import PACKAGES, ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Row, SparkSession

    from qq_spark.archive.frames import Selection
    from qq_spark.archive.store import Archive, Contents, Manifest
    from qq_spark.client import Access

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
BATCH_MESSAGES = 500
BATCH_BYTES = 4 * 2**20
"""Messages and bytes of bodies that are published in a transaction; a single larger message is a batch, too."""
ROW_BITS = 32
"""Bits of the row in a number; the bits above are the number of the manifest."""
_PAUSE_S = 0.5
_DROPPED = re.compile(r"x-death|x-(first|last)-death-.*|x-delivery-count|x-acquired-count")
"""Headers that the broker adds when a message dies or returns."""
_NO_ROOM = "partial tx completion"
"""Text with which a node refuses a transaction, if a queue has no room for all its messages."""


class Target(NamedTuple):
    """Where messages are published."""

    exchange: str
    routing_key: str | None
    """Routing key of all messages; `None` keeps their own."""


class Message(NamedTuple):
    """A message to publish, with its number."""

    number: int
    routing_key: str
    body: bytes
    octets: bytes
    """The properties, as AMQP 0-9-1 encodes them."""


class Replay:
    """A replay that has begun, now or earlier."""

    def __init__(self, archive: Archive, name: str, selection: Selection, target: Target) -> None:
        """Raise ArchiveError if the replay has begun with other options, or needs deleted files."""
        if not NAME.fullmatch(name):
            raise ArchiveError(f"'{name}' is no name of a replay: use letters, digits, and . _ -")
        self.name = name
        self.target = target
        self._archive = archive
        self._selection = selection
        self._contents: Contents = archive.contents()
        finished = self._contents.finished(selection.queues)
        options = {
            "exchange": target.exchange,
            "routing_key": target.routing_key,
            **{f"select_{key}": str(value) for key, value in selection._asdict().items()},
        }
        known: dict[str, Any] | None = archive.replay(name, ("options", "manifests", "finished"))
        if known is None:
            manifests = [each.name for each in finished]
            known = {
                "options": options,
                "manifests": manifests,
                "finished": 0,
                "publisher": _publisher_id(name, manifests),
            }
            archive.write_replay(name, known)
        elif known["options"] != options:
            changed = sorted(key for key in options if known["options"].get(key) != options[key])
            raise ArchiveError(
                f"replay '{name}' has begun with another {', '.join(changed)}: give the same options, or another --id"
            )
        by_name = {each.name: each for each in finished}
        for manifest in known["manifests"][known["finished"] :]:
            if manifest not in by_name:
                raise ArchiveError(
                    f"replay '{name}' needs {manifest}, which the archive does not have any more"
                )
        self._manifests: list[Manifest] = [by_name[each] for each in known["manifests"] if each in by_name]
        self._missing = len(known["manifests"]) - len(self._manifests)
        self._record: dict[str, Any] = known
        self.publisher_id: str = known.get("publisher", f"replay-{name}")
        """Records of earlier programs have none."""

    def run(self, spark: SparkSession, publisher: Publisher) -> int:
        """Publish the messages that are left, and return their number."""
        published = 0
        for number in range(self._record["finished"], len(self._record["manifests"])):
            manifest = self._manifests[number - self._missing]
            frame = messages_of(spark, self._archive, self._contents, [manifest], self._selection)
            columns = frame.select("row", "routing_key", "body", "octets").orderBy("row")
            messages = (_message(number, row, self.target) for row in columns.toLocalIterator())
            for batch in _batches(messages):
                publisher.publish(batch)
                published += len(batch)
            self._record["finished"] = number + 1
            self._archive.write_replay(self.name, self._record)
        return published


def _publisher_id(name: str, manifests: Sequence[str]) -> str:
    """Return the publisher id of a replay.

    It is the same for concurrent beginnings of the replay, and different for different archives, whose manifests have
    random names.
    """
    digest = hashlib.sha256("\n".join(manifests).encode())
    return f"replay-{name}-{digest.hexdigest()[:16]}"


def _message(manifest: int, row: Row, target: Target) -> Message:
    key = row["routing_key"] if target.routing_key is None else target.routing_key
    return Message((manifest << ROW_BITS) + row["row"] + 1, key, bytes(row["body"]), bytes(row["octets"]))


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(message.body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    if batch:
        yield batch


class Publisher:
    """Publishes batches in transactions over AMQP, at the next node if a node fails."""

    def __init__(self, urls: Sequence[str], access: Access, replay: Replay) -> None:
        """Raise ArchiveError if pika is missing, or an address is wrong."""
        try:
            self._pika: Any = import_module("pika")
        except ImportError:
            raise ArchiveError(f"a replay needs the package pika: {PACKAGES}") from None
        self._parameters = [self._parameters_of(url, access) for url in urls]
        self._access = access
        self._id = replay.publisher_id
        self._target = replay.target
        self._connection: Any = None
        self._channel: Any = None
        self._returned: list[str] = []

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    def publish(self, batch: Sequence[Message]) -> None:
        """Publish a batch, repeatedly until the cluster has committed it. Raise ArchiveError."""
        errors = self._pika.exceptions
        end = time.monotonic() + self._access.retry_s
        while True:
            try:
                self._publish(batch)
            except errors.ChannelClosedByBroker as error:
                reason = f"the cluster refuses the replay: {error.reply_text}"
                if _NO_ROOM in error.reply_text:
                    reason += (
                        f": a queue of exchange '{self._target.exchange}' refuses messages, for example because of its "
                        "limit with reject-publish. Make room, and run the replay again: it goes on"
                    )
                raise ArchiveError(reason) from None
            except (errors.ProbableAuthenticationError, errors.ProbableAccessDeniedError) as error:
                raise ArchiveError(f"the cluster refuses user '{self._access.user}': {error}") from None
            except (errors.AMQPError, OSError) as error:
                self._channel = None
                if time.monotonic() > end:
                    raise ArchiveError(
                        f"no node took messages for {self._access.retry_s:g} s: {error!r}"
                    ) from None
                time.sleep(_PAUSE_S)
            else:
                return

    def _publish(self, batch: Sequence[Message]) -> None:
        if self._channel is None:
            self.close()
            self._connection = self._pika.BlockingConnection(self._parameters)
            self._channel = self._connection.channel()
            if self._target.exchange:
                self._channel.exchange_declare(self._target.exchange, passive=True)
            self._channel.add_on_return_callback(self._note_returned)
            self._channel.tx_select()
        self._returned.clear()
        for message in batch:
            properties = self._properties(message)
            self._channel.basic_publish(
                self._target.exchange, message.routing_key, message.body, properties, mandatory=True
            )
        self._channel.tx_commit()
        self._connection.process_data_events(0)
        if self._returned:
            raise ArchiveError(
                f"exchange '{self._target.exchange}' has no queue for routing key '{self._returned[0]}': bind a queue, "
                "and run the replay again"
            )

    def _note_returned(self, _channel: Any, method: Any, _properties: Any, _body: Any) -> None:
        self._returned.append(method.routing_key)

    def _properties(self, message: Message) -> Any:
        """Return the properties as the first publisher gave them, with the id and number of the replay."""
        properties = self._pika.BasicProperties()
        properties.decode(message.octets)
        kept = {
            name: value for name, value in (properties.headers or {}).items() if not _DROPPED.fullmatch(name)
        }
        properties.headers = kept | {"x-publisher-id": self._id, "x-publish-seq": message.number}
        properties.user_id = None  # the broker compares it with the user of the connection
        return properties

    def _parameters_of(self, url: str, access: Access) -> Any:
        if not url.startswith(("amqp://", "amqps://")):
            raise ArchiveError(f"'{url}' is no address such as amqp://host:5672")
        try:
            parameters = self._pika.URLParameters(url)
        except ValueError as error:
            raise ArchiveError(f"'{url}' is no address such as amqp://host:5672: {error}") from None
        parameters.virtual_host = access.vhost
        parameters.credentials = self._pika.PlainCredentials(access.user, access.password)
        return parameters
