"""The arguments, properties and headers that a broker accepts, each with values of every AMQP type.

    python -m tests.wire.arguments AMQP_PORT HTTP_PORT >tests/wire/arguments.json

records the outcomes of a RabbitMQ on this machine, with its management plugin. The command makes the virtual host
`octets` anew. An outcome is "ok", or the code of the error that a broker answers.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.wire.exchanges import NO_NAME, QUORUM, bits, headers
from tests.wire.wire import (
    BODY,
    CONTENT_HEADER,
    END,
    IDS,
    METHOD,
    Exchange,
    Peer,
    Table,
    Value,
    array,
    call,
    frame,
    long,
    open_channel,
    open_on,
    part,
    set_up,
    short,
    table,
    u16,
    u32,
    u64,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Outcomes = dict[str, str]
"""Place -> outcome. A place is a subject, such as an argument of a type of queue, and a value."""
OF = " | "
"""Between the subject and the value of a place."""
RECORDED = Path(__file__).with_name("arguments.json")

VALUES: Table = {
    "t true": True,
    "t false": False,
    "b -1": b"b\xff",
    "b 1": b"b\1",
    "B 1": b"B\1",
    "B 255": b"B\xff",
    "s -1": b"s\xff\xff",
    "s 1": b"s\0\1",
    "u 1": b"u\0\1",
    "I -1": -1,
    "I 0": 0,
    "I 1": 1,
    "I 256": 256,
    "i 1": b"i" + u32(1),
    "l -1": b"l" + b"\xff" * 8,
    "l 1": b"l" + u64(1),
    "l 2^40": b"l" + u64(2**40),
    "l 2^63-1": b"l" + u64(2**63 - 1),
    "f 1.0": b"f" + struct.pack(">f", 1.0),
    "d 1.0": b"d" + struct.pack(">d", 1.0),
    "D 1": b"D\0" + u32(1),
    "S": "",
    "S 1": "1",
    "S a": "a",
    "S octets": b"S" + long(b"\xe9"),
    "S of 256": b"S" + long("a" * 256),
    "x a": b"x" + long(b"a"),
    "T 1": b"T" + u64(1),
    "A": array(),
    "A of texts": array("a"),
    "F": {},
    "F of texts": {"a": "b"},
    "V": None,
}
"""Type and value of each argument. Texts that are valid for some arguments are added to these."""

_QUEUE_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "x-expires": (),
    "x-message-ttl": (),
    "x-dead-letter-exchange": (),
    "x-dead-letter-routing-key": (),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-max-length": (),
    "x-max-length-bytes": (),
    "x-max-in-memory-length": (),
    "x-max-in-memory-bytes": (),
    "x-max-priority": (),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": ("2",),
    "x-single-active-consumer": ("true",),
    "x-queue-type": ("classic", "stream", "rabbit_quorum_queue"),
    "x-quorum-initial-group-size": (),
    "x-quorum-target-group-size": (),
    "x-delivery-limit": (),
    "x-queue-leader-locator": ("client-local", "balanced", "random", "least-leaders", "min-masters"),
    "x-queue-master-locator": ("client-local", "random", "min-masters"),
    "x-consumer-timeout": (),
    "x-max-age": ("1D",),
    "x-stream-max-segment-size-bytes": (),
    "x-stream-filter-size-bytes": (),
    "x-initial-cluster-size": (),
    "x-cancel-on-ha-failover": (),
    "x-ha-policy": ("all",),
    "x-priority": (),
    "x-stream-offset": ("first",),
    "alternate-exchange": (),
    "x-match": (),
    "x-unknown": (),
    "unknown": (),
}
_CONSUMER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "x-priority": (),
    "x-cancel-on-ha-failover": (),
    "x-stream-offset": ("first", "next", "1D"),
    "x-stream-filter": (),
    "x-stream-match-unfiltered": (),
    "x-consumer-timeout": (),
    "x-credit": (),
    "x-single-active-consumer": (),
    "x-unknown": (),
}
_EXCHANGE_ARGUMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "direct": {"alternate-exchange": (), "x-unknown": (), "x-delayed-type": (), "x-match": ()},
    "x-consistent-hash": {"hash-header": (), "hash-property": ("message_id", "timestamp"), "x-unknown": ()},
}
_BINDING_ARGUMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "amq.headers": {
        "x-match": ("all", "any", "all-with-x", "any-with-x", "none"),
        "x-unknown": (),
        "unknown": (),
    },
    "amq.topic": {"x-match": ("all",), "x-unknown": ()},
}
_HEADERS: dict[str, tuple[str, ...]] = {
    "CC": (),
    "BCC": (),
    "x-death": (),
    "x-delivery-count": (),
    "x-match": (),
    "unknown": (),
}
_EXPIRATIONS = "0", "1", "60000", "01", "+1", "-1", "1.0", "1e3", " 1", "1 ", "a", "", "4294967296", "9" * 12
_QUEUES: dict[str, tuple[Table, bool]] = {"classic": ({}, False), "quorum": (QUORUM, True)}
"""Queue type -> arguments, and whether it is durable."""
_PROPERTIES = {"content_type": 0x8000, "content_encoding": 0x4000, "correlation_id": 0x0400} | {
    "reply_to": 0x0200,
    "message_id": 0x0080,
    "type": 0x0020,
    "user_id": 0x0010,
    "app_id": 0x0008,
    "cluster_id": 0x0004,
}
_TEXTS = "", "a", "guest", "amq.rabbitmq.reply-to", "a" * 255


class Client:
    """A client that opens its channel and its connection again after each error."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def _connect(self) -> None:
        self._peer = Peer(self._port)
        open_on(self._peer, Exchange(()))

    def _connect_again(self) -> None:
        self._peer.close()
        self._connect()

    def call(self, octets: bytes, answer: str) -> list[bytes] | str:
        """Send octets. Return the frames up to the named answer, or the error in place of that answer."""
        self._peer.write(octets)
        came: list[bytes] = []
        while True:
            [octets] = self._peer.take(1, 20.0)
            if octets == END:
                self._connect_again()
                return "closed without a reason"
            parted = part(octets)
            assert parted is not None
            number = struct.unpack_from(">HH", parted.payload) if parted.kind == METHOD else None
            if number in (IDS["channel.close"], IDS["connection.close"]):
                return self._closed(parted.payload, is_channel=number == IDS["channel.close"])
            came.append(octets)
            if number == IDS[answer]:
                return came

    def outcome(self, octets: bytes, answer: str) -> str:
        came = self.call(octets, answer)
        return came if isinstance(came, str) else "ok"

    def message(self, queue: str) -> list[bytes] | str:
        """Get the message of a queue, and return its content header and body, or the error."""
        came = self.call(call("basic.get", u16(0), short(queue), b"\1"), "basic.get-ok")
        return came if isinstance(came, str) else self._peer.take(2, 20.0)

    def _closed(self, payload: bytes, *, is_channel: bool) -> str:
        (code,) = struct.unpack_from(">H", payload, 4)
        if is_channel:
            self._peer.write(call("channel.close-ok") + open_channel())
            self._peer.take(1, 10.0)
        else:
            self._connect_again()
        return str(code)


def _with_texts(names: Mapping[str, Iterable[str]]) -> Iterable[tuple[str, str, Table]]:
    """Yield each argument: its name, its value as text, and a table with it."""
    for name, texts in names.items():
        for shown, value in (VALUES | {f"S {text}": text for text in texts}).items():
            yield name, f"{name}{OF}{shown}", {name: value}


def queue_arguments(client: Client) -> Outcomes:
    """Each argument of queue.declare, for each type of queue."""
    found: Outcomes = {}
    delete = call("queue.delete", u16(0), short("q-arguments"), b"\0")
    for kind, (own, durable) in _QUEUES.items():
        for name, place, given in _with_texts(_QUEUE_ARGUMENTS):
            if name == "x-dead-letter-routing-key":
                given = {"x-dead-letter-exchange": "amq.direct", **given}
            flags = bits(False, durable, not durable, False, False)
            declare = call("queue.declare", u16(0), short("q-arguments"), flags, table({**own, **given}))
            outcome = client.outcome(declare, "queue.declare-ok")
            if outcome == "ok":  # the same again is equivalent
                outcome = client.outcome(declare, "queue.declare-ok")
                outcome = "ok" if outcome == "ok" else f"again {outcome}"
                client.outcome(delete, "queue.delete-ok")
            found[f"{kind} {place}"] = outcome
    return found


_REDECLARED: dict[str, tuple[Value, Value]] = {
    **dict.fromkeys(("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes"), (60_000, 70_000)),
    **dict.fromkeys(("x-max-in-memory-length", "x-max-in-memory-bytes", "x-max-priority"), (5, 6)),
    **dict.fromkeys(("x-dead-letter-exchange", "x-unknown", "x-max-age", "x-ha-policy"), ("a", "b")),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (1, 2),
    "x-single-active-consumer": (True, False),
    "x-quorum-initial-group-size": (1, 2),
    "x-quorum-target-group-size": (1, 2),
    "x-delivery-limit": (5, 6),
    **dict.fromkeys(("x-queue-leader-locator", "x-queue-master-locator"), ("client-local", "min-masters")),
    **dict.fromkeys(("x-consumer-timeout", "x-consumer-disconnected-timeout"), (60_000, 70_000)),
    "x-delayed-retry-type": ("all", "failed"),
    **dict.fromkeys(("x-delayed-retry-min", "x-delayed-retry-max"), (1000, 2000)),
    **dict.fromkeys(("x-stream-filter-size-bytes", "x-initial-cluster-size"), (16, 32)),
}
"""Argument of queues -> two values that some type of queue accepts."""


def redeclared_queue_arguments(client: Client) -> Outcomes:
    """A queue is declared again with a different value of an argument, without it, and with a new argument."""
    found: Outcomes = {}
    delete = call("queue.delete", u16(0), short("q-again"), b"\0")
    for kind, (own, durable) in _QUEUES.items():
        flags = bits(False, durable, not durable, False, False)
        for name, values in _REDECLARED.items():
            tables: list[Table] = [{**own, name: value} for value in values] + [own]
            one, two, none = (
                call("queue.declare", u16(0), short("q-again"), flags, table(given)) for given in tables
            )
            for place, first, second in (("differs", one, two), ("gone", one, none), ("new", none, one)):
                if client.outcome(first, "queue.declare-ok") == "ok":
                    found[f"{kind} {name}{OF}{place}"] = client.outcome(second, "queue.declare-ok")
                    client.outcome(delete, "queue.delete-ok")
    return found


def exchange_arguments(client: Client) -> Outcomes:
    """Each argument of exchange.declare, for types of exchanges."""
    found: Outcomes = {}
    delete = call("exchange.delete", u16(0), short("x-arguments"), b"\0")
    for kind, names in _EXCHANGE_ARGUMENTS.items():
        for _, place, given in _with_texts(names):
            declare = call("exchange.declare", u16(0), short("x-arguments"), short(kind), b"\0", table(given))
            outcome = client.outcome(declare, "exchange.declare-ok")
            if outcome == "ok":
                outcome = client.outcome(declare, "exchange.declare-ok")
                outcome = "ok" if outcome == "ok" else f"again {outcome}"
                client.outcome(delete, "exchange.delete-ok")
            found[f"{kind} {place}"] = outcome
    return found


def binding_arguments(client: Client) -> Outcomes:
    """Each argument of queue.bind, for types of exchanges."""
    found: Outcomes = {}
    declare = call("queue.declare", u16(0), short("q-binding"), b"\0", table())
    client.outcome(declare, "queue.declare-ok")
    for exchange, names in _BINDING_ARGUMENTS.items():
        for _, place, given in _with_texts(names):
            ends = short("q-binding") + short(exchange) + NO_NAME
            bind = call("queue.bind", u16(0), ends, b"\0", table(given))
            found[f"{exchange} {place}"] = outcome = client.outcome(bind, "queue.bind-ok")
            if outcome == "ok":
                client.outcome(call("queue.unbind", u16(0), ends, table(given)), "queue.unbind-ok")
    return found


def consumer_arguments(client: Client) -> Outcomes:
    """Each argument of basic.consume, for each type of queue."""
    found: Outcomes = {}
    for kind, (own, durable) in _QUEUES.items():
        queue = f"q-consumed-{kind}"
        declare = call("queue.declare", u16(0), short(queue), bits(False, durable), table(own))
        client.outcome(declare, "queue.declare-ok")
        for _, place, given in _with_texts(_CONSUMER_ARGUMENTS):
            consume = call("basic.consume", u16(0), short(queue) + short("tag"), b"\0", table(given))
            found[f"{kind} {place}"] = outcome = client.outcome(consume, "basic.consume-ok")
            if outcome == "ok":
                client.outcome(call("basic.cancel", short("tag"), b"\0"), "basic.cancel-ok")
    return found


def limits_of_unacknowledged_messages(client: Client) -> Outcomes:
    """The arguments of basic.qos."""
    found: Outcomes = {}
    for size in (0, 1, 2**32 - 1):
        for count in (0, 1, 65535):
            for of_all in (False, True):
                qos = call("basic.qos", u32(size), u16(count), bits(of_all))
                found[f"basic.qos{OF}size {size} count {count} global {of_all}"] = client.outcome(
                    qos, "basic.qos-ok"
                )
    return found


def properties(client: Client) -> Outcomes:
    """Each property of a message with several values, for each type of queue: refused, or delivered unchanged."""
    cases: dict[str, bytes] = {}
    for name, flag in _PROPERTIES.items():
        for text in _TEXTS:
            cases[f"{name}{OF}{text[:32]}"] = u16(flag) + short(text)
    for number in (0, 1, 2, 3, 255):
        cases[f"delivery_mode{OF}{number}"] = u16(0x1000) + bytes([number])
    for number in (0, 1, 4, 9, 10, 255):
        cases[f"priority{OF}{number}"] = u16(0x0800) + bytes([number])
    for number in (0, 1, 1_700_000_000_000, 2**63 - 1, 2**63, 2**64 - 1):
        cases[f"timestamp{OF}{number}"] = u16(0x0040) + u64(number)
    for text in _EXPIRATIONS:
        cases[f"expiration{OF}'{text}'"] = u16(0x0100) + short(text)
    for _, place, given in _with_texts(_HEADERS):
        cases[f"header {place}"] = headers(given)
    return _published(client, cases)


def _published(client: Client, cases: Mapping[str, bytes]) -> Outcomes:
    found: Outcomes = {}
    for kind, (own, durable) in _QUEUES.items():
        queue = f"q-published-{kind}"
        declare = call("queue.declare", u16(0), short(queue), bits(False, durable), table(own))
        purge = call("queue.purge", u16(0), short(queue), b"\0")
        select = call("confirm.select", b"\0")
        client.outcome(declare, "queue.declare-ok")
        for place, given in cases.items():
            client.outcome(select, "confirm.select-ok")
            head = frame(CONTENT_HEADER, 1, struct.pack(">HHQ", 60, 0, 1) + given)
            sent = call("basic.publish", u16(0) + NO_NAME + short(queue), b"\0") + head + frame(BODY, 1, b"m")
            outcome = client.outcome(sent, "basic.ack")
            if outcome == "ok" and "expiration" not in place:
                came = client.message(queue)
                if isinstance(came, str):
                    outcome = f"not there: {came}"
                elif came[0] != head:
                    outcome = f"changed: {came[0]!r}"
            client.outcome(purge, "queue.purge-ok")
            found[f"{kind} {place}"] = outcome
    return found


CASES: tuple[Callable[[Client], Outcomes], ...] = (
    *(queue_arguments, redeclared_queue_arguments, exchange_arguments, binding_arguments, consumer_arguments),
    *(limits_of_unacknowledged_messages, properties),
)


def grouped(outcomes: Outcomes) -> dict[str, dict[str, list[str]]]:
    """Return the values of each outcome, for each subject."""
    found: dict[str, dict[str, list[str]]] = {}
    for place, outcome in outcomes.items():
        subject, _, value = place.partition(OF)
        found.setdefault(subject, {}).setdefault(outcome, []).append(value)
    return found


def recorded() -> dict[str, Outcomes]:
    """Return the recorded outcomes of each case."""
    return {
        case: {
            f"{subject}{OF}{value}": outcome
            for subject, by_outcome in subjects.items()
            for outcome, values in by_outcome.items()
            for value in values
        }
        for case, subjects in json.loads(RECORDED.read_text()).items()
    }


def written(outcomes: Mapping[str, Outcomes]) -> str:
    """Return recorded outcomes as JSON, with a line for each subject."""
    cases = (
        f'"{case}": {{\n'
        + ",\n".join(
            f"  {json.dumps(subject)}: {json.dumps(found)}" for subject, found in grouped(of_case).items()
        )
        + "\n}"
        for case, of_case in outcomes.items()
    )
    return "{\n" + ",\n".join(cases) + "\n}"


if __name__ == "__main__":
    set_up(int(sys.argv[2]))
    with Client(int(sys.argv[1])) as client:
        print(written({case.__name__: case(client) for case in CASES}))
