"""The behaviour of each type of queue as a client sees it: cases for any broker, and a command that records them.

    python -m tests.queues.queue_types amqp://guest:guest@HOST:PORT/ http://HOST:PORT >tests/queues/queue_types.json

records the outcomes of a RabbitMQ with its management plugin. The command makes the virtual host `queue-types` and
deletes it. A case is a function of a broker and a kind of queue; its outcome is JSON without names of queues.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pika
import pika.data
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.compat import long

VHOST = "queue-types"
ANSWER_S = 10.0
QUIET_S = 0.3
"""Seconds to wait for deliveries that may never come."""
STATISTICS_S = 12.0
"""Seconds until RabbitMQ shows a change: it collects statistics every five seconds."""
DELIVERIES = 25
CLOSED = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)


class Kind(NamedTuple):
    arguments: dict[str, Any]
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    is_named: bool = True


CLASSIC = {"x-queue-type": "classic"}
QUORUM = {"x-queue-type": "quorum"}
KINDS = {
    "classic": Kind({}),
    "transient": Kind(CLASSIC, durable=False),
    "exclusive": Kind({}, durable=False, exclusive=True),
    "auto-delete": Kind({}, auto_delete=True),
    "server-named": Kind({}, durable=False, exclusive=True, is_named=False),
    "quorum": Kind(QUORUM),
}


class Broker:
    """A broker, with a connection that is opened again after an error that closes it."""

    def __init__(self, amqp_url: str, http_url: str, statistics_s: float) -> None:
        self._parameters = pika.URLParameters(amqp_url)
        self._parameters.virtual_host, self._parameters.heartbeat = VHOST, 0
        self._http = urlsplit(http_url)
        self._connection: BlockingConnection | None = None
        self._numbers = itertools.count(1)
        self.statistics_s = statistics_s
        """Seconds until the management API shows a change."""
        self.request("DELETE", f"/api/vhosts/{VHOST}")
        self.request("PUT", f"/api/vhosts/{VHOST}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.request("PUT", f"/api/permissions/{VHOST}/guest", everything)

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        self.request("DELETE", f"/api/vhosts/{VHOST}")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        client = http.client.HTTPConnection(self._http.netloc, timeout=ANSWER_S)
        credentials = base64.b64encode(b"guest:guest").decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        content = answer.read()
        client.close()
        return answer.status, json.loads(content) if content else None

    @property
    def connection(self) -> BlockingConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = BlockingConnection(self._parameters)
        return self._connection

    def channel(self) -> BlockingChannel:
        return self.connection.channel()

    def new_name(self) -> str:
        return f"q{next(self._numbers)}"

    def is_served(self, seconds: float = QUIET_S) -> None:
        """Receive deliveries for some seconds."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.connection.process_data_events(0.02)

    def outcome(self, do: Callable[[], Any], queue: str = "") -> str:
        """Return "ok", or the error that closed the channel or the connection."""
        try:
            do()
        except CLOSED as closed:
            return nameless(f"{closed.reply_code} {closed.reply_text}", queue)
        return "ok"


def nameless(text: str, queue: str) -> str:
    known = rf"queue '({re.escape(queue)}|amq\.gen-[\w-]+)'" if queue else r"queue '(amq\.gen-[\w-]+)'"
    return re.sub(known, "queue 'Q'", text)


class Queue:
    """A queue of a kind, and a channel for it."""

    def __init__(self, broker: Broker, kind: Kind, arguments: dict[str, Any] | None = None) -> None:
        self.broker = broker
        self.channel = broker.channel()
        name = broker.new_name() if kind.is_named else ""
        self.name = declare(self.channel, name, kind, {**kind.arguments, **(arguments or {})})

    def publish(self, *bodies: str, **properties: Any) -> list[str]:
        """Publish with confirms; returns the bodies that the broker refused."""
        channel, refused = self.broker.channel(), []
        channel.confirm_delivery()
        for body in bodies:
            try:
                channel.basic_publish("", self.name, body.encode(), pika.BasicProperties(**properties))
            except pika.exceptions.NackError:
                refused.append(body)
        channel.close()
        return refused

    def get(self, channel: BlockingChannel | None = None) -> tuple[Any, Any, str]:
        """The next message, which must come."""
        end_s = time.monotonic() + ANSWER_S
        while time.monotonic() < end_s:
            method, properties, body = (channel or self.channel).basic_get(self.name)
            if method is not None:
                return method, properties, body.decode()
            time.sleep(0.01)
        raise TimeoutError(f"no message in {self.name}")

    def wait(self, count: int) -> None:
        """Wait until `count` messages are ready."""
        end_s = time.monotonic() + ANSWER_S
        while self.channel.queue_declare(self.name, passive=True).method.message_count != count:
            assert time.monotonic() < end_s
            time.sleep(0.01)

    def drained(self, count: int) -> list[str]:
        """Take all messages, `count` of them, and return their bodies."""
        self.wait(count)
        bodies = [self.get()[2] for _ in range(count)]
        self.channel.basic_ack(0, multiple=True)
        return bodies

    def consume(self, into: list[str], mark: str = "", **options: Any) -> BlockingChannel:
        """Start a consumer on its own channel; it appends each body, with a mark behind it, to a list."""
        channel = self.broker.channel()
        channel.basic_qos(prefetch_count=options.pop("prefetch", 0))
        channel.basic_consume(
            self.name, lambda _c, _m, _p, body: into.append(body.decode() + mark), **options
        )
        return channel

    def shown(self) -> dict[str, Any]:
        return self.broker.request("GET", f"/api/queues/{VHOST}/{self.name}")[1]

    def delete(self) -> None:
        self.broker.outcome(lambda: self.broker.channel().queue_delete(self.name))


def declare(channel: BlockingChannel, name: str, kind: Kind, arguments: dict[str, Any]) -> str:
    flags = {"durable": kind.durable, "exclusive": kind.exclusive, "auto_delete": kind.auto_delete}
    return channel.queue_declare(name, arguments=arguments, **flags).method.queue


@contextmanager
def queue_of(broker: Broker, kind: Kind, arguments: dict[str, Any] | None = None) -> Generator[Queue]:
    queue = Queue(broker, kind, arguments)
    yield queue
    queue.delete()


@contextmanager
def typed_fields() -> Generator[None]:
    """Have pika read a value of a field table as its type letter and its text."""
    read = pika.data.decode_value

    def decode(encoded: bytes, offset: int) -> tuple[Any, int]:
        value, end = read(encoded, offset)
        letter = chr(encoded[offset])
        return (value if letter in "AF" else f"{letter}:{'' if letter == 'T' else value}"), end

    pika.data.decode_value = decode
    try:
        yield
    finally:
        pika.data.decode_value = read


# Declarations

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-message-ttl": (0, 60000, -1, "a", long(315_360_000_001)),
    "x-expires": (60000, 0, -1, "a"),
    "x-dead-letter-exchange": ("", "e", 1, True, b"\1"),
    "x-dead-letter-routing-key": ("k", 1),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once", "a"),
    "x-max-length": (0, 5, -1, "a"),
    "x-max-length-bytes": (0, 5, -1, "a"),
    "x-max-in-memory-length": (5, -1, "a"),
    "x-max-in-memory-bytes": (5, -1),
    "x-max-priority": (0, 5, 255, 256, -1, "a"),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "a", 1),
    "x-queue-mode": ("default", "lazy", "a", 1),
    "x-queue-version": (1, 2, 3, -1, "a"),
    "x-single-active-consumer": (True, False, "true", 1),
    "x-queue-type": ("classic", "quorum", "a", 1, ""),
    "x-queue-leader-locator": ("client-local", "balanced", "random", "least-leaders", "min-masters", "a", 1),
    "x-queue-master-locator": ("client-local", "min-masters", "a", 1),
    "x-delivery-limit": (5, -1, "a"),
    "x-quorum-initial-group-size": (3, 0, "a"),
    "x-max-age": ("1h", 1),
    "x-stream-max-segment-size-bytes": (5000,),
    "x-initial-cluster-size": (3,),
    "x-unknown": (1, "a"),
    # Known to later versions of RabbitMQ, or to qq only:
    "x-consumer-timeout": (60000, -1, "a"),
    "x-quorum-target-group-size": (3,),
    "x-consumer-disconnected-timeout": (1000,),
    "x-delayed-retry-type": ("all",),
    "x-stream-filter-size-bytes": (16,),
    "x-priority-mode": ("strict",),
    "x-delivery-count-mode": ("4.3",),
    "x-return-position": ("original",),
    "x-consumer-timeout-action": ("close-channel",),
}
TOGETHER = [
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
    {"x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"},
    {"x-max-priority": 5, "x-single-active-consumer": True, "x-queue-mode": "lazy"},
]


def arguments(broker: Broker, kind: Kind) -> Any:
    """Accepted and refused arguments of a declaration, and the arguments that the API shows."""
    alone = [{key: value} for key, values in ARGUMENTS.items() for value in values]
    return {str(given): _declared(broker, kind, given) for given in [*alone, *TOGETHER]}


def _declared(broker: Broker, kind: Kind, given: dict[str, Any]) -> str:
    name, names = broker.new_name() if kind.is_named else "", list[str]()
    channel = broker.channel()
    table = {**kind.arguments, **given}
    outcome = broker.outcome(lambda: names.append(declare(channel, name, kind, table)), name)
    if outcome != "ok":
        return outcome
    shown = broker.request("GET", f"/api/queues/{VHOST}/{names[0]}")[1]
    channel.queue_delete(names[0])
    channel.close()
    return f"ok {shown['type']} {json.dumps(shown['arguments'], sort_keys=True)}"


def properties(broker: Broker, kind: Kind) -> Any:
    """The combinations of flags that a type allows. Of the kind only its type matters."""
    outcomes: dict[str, str] = {}
    for durable, exclusive, auto_delete, is_named in itertools.product((True, False), repeat=4):
        each = Kind(kind.arguments, durable, exclusive, auto_delete, is_named)
        flags = each._asdict()
        del flags["arguments"]
        names = [name for name, is_set in flags.items() if is_set]
        outcomes[" ".join(names)] = _declared(broker, each, {})
    return outcomes


AGAIN: dict[str, Kind] = {
    "the default type": Kind({}),
    "classic": Kind(CLASSIC),
    "quorum": Kind(QUORUM),
    "transient": Kind({}, durable=False),
    "exclusive": Kind({}, exclusive=True),
    "auto-delete": Kind({}, auto_delete=True),
    **{
        f"with {key}": Kind({key: value})
        for key, value in {
            "x-max-priority": 5,
            "x-queue-mode": "lazy",
            "x-queue-version": 2,
            "x-message-ttl": 60000,
            "x-max-length": 5,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "e",
            "x-single-active-consumer": True,
            "x-delivery-limit": 5,
            "x-quorum-initial-group-size": 3,
            "x-max-in-memory-length": 5,
            "x-queue-leader-locator": "balanced",
            "x-queue-master-locator": "min-masters",
            "x-unknown": 1,
        }.items()
    },
    "of a type that there is not": Kind({"x-queue-type": "a"}),
    "with a wrong x-message-ttl": Kind({"x-message-ttl": -1}),
}


def redeclared(broker: Broker, kind: Kind) -> Any:
    """Answers to a second declaration with different flags, arguments or type."""
    if not kind.is_named:
        return None
    outcomes: dict[str, str] = {}
    with queue_of(broker, kind) as queue:
        for case, other in AGAIN.items():
            for of_type in ("", "of its type"):
                table = {**(kind.arguments if of_type else {}), **other.arguments}
                again = other if case in list(AGAIN)[:6] else kind
                outcome = broker.outcome(
                    lambda again=again, table=table: declare(broker.channel(), queue.name, again, table),
                    queue.name,
                )
                outcomes[f"{case} {of_type}".strip()] = outcome
    return outcomes


# Messages


def redelivered(broker: Broker, kind: Kind) -> Any:
    """Headers and the flag `redelivered` of a returned message, for each way to return it."""
    seen: dict[str, Any] = {}
    with typed_fields(), queue_of(broker, kind) as queue:
        for headers in (None, {}, {"mine": "x"}, {"x-delivery-count": 9, "x-acquired-count": 8}):
            for way in ("nack", "reject", "recover", "close"):
                queue.publish("m", headers=headers)
                channel = broker.channel()
                method, properties, _ = queue.get(channel)
                steps = [(method.redelivered, properties.headers)]
                if way == "nack":
                    channel.basic_nack(method.delivery_tag)
                elif way == "reject":
                    channel.basic_reject(method.delivery_tag)
                elif way == "recover":
                    channel.basic_recover(requeue=True)
                else:
                    channel.close()
                for _ in range(2):
                    method, properties, _ = queue.get()
                    steps.append((method.redelivered, properties.headers))
                    queue.channel.basic_nack(method.delivery_tag)
                queue.channel.basic_ack(queue.get()[0].delivery_tag)
                seen[f"{headers} {way}"] = steps
    return seen


def consumed(broker: Broker, kind: Kind) -> Any:
    """Headers and the flag `redelivered` of the messages that a consumer returns."""
    seen: list[Any] = []
    with typed_fields(), queue_of(broker, kind) as queue:

        def take(channel: BlockingChannel, method: Any, properties: Any, _: bytes) -> None:
            seen.append((method.redelivered, properties.headers))
            (channel.basic_nack if len(seen) < 3 else channel.basic_ack)(method.delivery_tag)

        queue.publish("m")
        queue.channel.basic_consume(queue.name, take)
        while len(seen) < 3:
            broker.connection.process_data_events(0.1)
    return seen


def got_over_http(broker: Broker, kind: Kind) -> Any:
    """Properties of the messages that the management API returns. It cannot read an exclusive queue."""
    if kind.exclusive:
        return None
    seen: list[Any] = []
    with queue_of(broker, kind) as queue:
        queue.publish("m", headers={"mine": "x"})
        for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
            queue.wait(1)
            wanted = {"count": 1, "ackmode": mode, "encoding": "auto"}
            [message] = broker.request("POST", f"/api/queues/{VHOST}/{queue.name}/get", wanted)[1]
            seen.append((message["redelivered"], message["properties"]))
    return seen


def order(broker: Broker, kind: Kind) -> Any:
    """The position of returned messages."""
    seen: dict[str, str] = {}
    for case in ("c, a, b", "all at once", "with the channel"):
        with queue_of(broker, kind) as queue:
            queue.publish(*"abcdef")
            channel = broker.channel()
            a, b, c = (queue.get(channel)[0].delivery_tag for _ in range(3))
            if case == "c, a, b":
                for tag in (c, a, b):
                    channel.basic_nack(tag)
            elif case == "all at once":
                channel.basic_nack(c, multiple=True)
            else:
                channel.close()
            seen[case] = "".join(queue.drained(6))
    return seen


PRIORITIES = (None, 0, 1, 2, 3, 4, 5, 9, 10, 11, 40, 255)


def priorities(broker: Broker, kind: Kind) -> Any:
    """The order of messages with priorities, by the number of levels."""
    seen: dict[str, Any] = {}
    for levels in (None,) if kind.arguments == QUORUM else (None, 0, 1, 3, 10, 255):
        with queue_of(broker, kind, {} if levels is None else {"x-max-priority": levels}) as queue:
            for priority in PRIORITIES:
                queue.publish(str(priority), priority=priority)
            seen[str(levels)] = queue.drained(len(PRIORITIES))
    return seen


def deliveries(broker: Broker, kind: Kind) -> Any:
    """The number of deliveries of a message that its consumer returns each time."""
    got: list[str] = []
    with queue_of(broker, kind) as queue:

        def take(channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            got.append(body.decode())
            if len(got) < DELIVERIES:
                channel.basic_nack(method.delivery_tag)

        queue.publish("m")
        queue.channel.basic_consume(queue.name, take)
        before = -1
        while before < len(got):
            before = len(got)
            broker.is_served()
    return len(got)


def limits(broker: Broker, kind: Kind) -> Any:
    """Messages that a limit drops or refuses, with messages at a consumer."""
    seen: dict[str, Any] = {}
    for overflow in ("drop-head", "reject-publish"):
        with queue_of(broker, kind, {"x-max-length": 2, "x-overflow": overflow}) as queue:
            queue.publish("a", "b")
            last = [queue.get()[0].delivery_tag for _ in range(2)][-1]
            refused = queue.publish("c", "d")
            queue.channel.basic_nack(last, multiple=True)
            kept = 2 if overflow == "drop-head" else 4 - len(refused)
            seen[overflow] = [queue.drained(kept), refused]
    with queue_of(broker, kind, {"x-max-length-bytes": 5}) as queue:
        queue.publish("larger than it may be")
        broker.is_served()
        seen["one too large"] = queue.drained(0)
    return seen


def deaths(broker: Broker, kind: Kind) -> Any:
    """The headers of dead letters, by their cause."""

    def rejected(queue: Queue) -> None:
        queue.publish("m", headers={"mine": "x"})
        queue.channel.basic_nack(queue.get()[0].delivery_tag)
        queue.channel.basic_reject(queue.get()[0].delivery_tag, requeue=False)

    def returned_twice(queue: Queue) -> None:
        queue.publish("m")
        for _ in range(2):
            queue.channel.basic_nack(queue.get()[0].delivery_tag)

    causes: dict[str, tuple[dict[str, Any], Callable[[Queue], Any]]] = {
        "x-message-ttl": ({"x-message-ttl": 20}, lambda queue: queue.publish("m")),
        "expiration": ({}, lambda queue: queue.publish("m", expiration="20")),
        "drop-head": ({"x-max-length": 1}, lambda queue: queue.publish("m", "n")),
        "reject-publish-dlx": (
            {"x-max-length": 1, "x-overflow": "reject-publish-dlx"},
            lambda queue: queue.publish("m", "n"),
        ),
        "rejected": ({}, rejected),
    }
    if kind.arguments == QUORUM:
        causes["x-delivery-limit"] = ({"x-delivery-limit": 1}, returned_twice)
    return {cause: _dead_letter(broker, kind, *each) for cause, each in causes.items()}


def _dead_letter(broker: Broker, kind: Kind, given: dict[str, Any], let_die: Callable[[Queue], Any]) -> Any:
    with (
        typed_fields(),
        queue_of(broker, KINDS["classic"]) as target,
        queue_of(broker, kind, {**to_queue(target), **given}) as queue,
    ):
        let_die(queue)
        end_s = time.monotonic() + QUIET_S
        method, properties, body = None, None, b""
        while method is None and time.monotonic() < end_s:
            method, properties, body = target.channel.basic_get(target.name)
        if method is None:
            return None
        text = json.dumps([method.redelivered, properties.headers, properties.expiration, body.decode()])
        return json.loads(text.replace(queue.name, "Q").replace(target.name, "target"))


def dead_letters_again(broker: Broker, kind: Kind) -> Any:
    """The next deliveries of a dead letter, by target, strategy, cause, and the way of its returns before."""
    strategies: dict[str, dict[str, Any]] = {"at-most-once": {}}
    if kind.arguments == QUORUM:
        least = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        strategies["at-least-once"] = least
    seen: dict[str, Any] = {}
    for target, strategy, way in itertools.product(
        ("classic", "quorum"), strategies, ("none", "nack", "close")
    ):
        # A message that is to be returned must be got before it expires, also on a busy machine.
        causes = {"rejected": {}, "expired": {"x-message-ttl": 300 if way == "none" else 1000}}
        if strategy == "at-most-once":
            causes["maxlen"] = {"x-max-length": 1}
        if kind.arguments == QUORUM and way != "none":
            causes["delivery_limit"] = {"x-delivery-limit": 0}
        for cause, arguments in causes.items():
            with (
                typed_fields(),
                queue_of(broker, KINDS[target]) as dead,
                queue_of(broker, kind, arguments | strategies[strategy] | to_queue(dead)) as queue,
            ):
                queue.publish("m")
                return_one(queue, way)
                if cause == "rejected":
                    queue.channel.basic_reject(queue.get()[0].delivery_tag, requeue=False)
                elif cause == "maxlen":
                    queue.publish("n")
                steps: list[Any] = []
                for _ in range(3):
                    method, properties, _ = dead.get()
                    steps.append([method.redelivered, properties.headers.get("x-delivery-count")])
                    dead.channel.basic_nack(method.delivery_tag)
                seen[f"{target} {strategy} {cause} {way}"] = steps
    return seen


def return_one(queue: Queue, way: str) -> None:
    """Return a message, by closing its channel or otherwise."""
    if way == "nack":
        queue.channel.basic_nack(queue.get()[0].delivery_tag)
    elif way == "close":
        channel = queue.broker.channel()
        queue.get(channel)
        channel.close()


def to_queue(target: Queue) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target.name}


def dead_letter_circles(broker: Broker, kind: Kind) -> Any:
    """The deliveries of a message that is rejected, waits in a queue, and comes back; its keys in CC and BCC."""
    seen: dict[str, Any] = {}
    for waiting in ("classic", "quorum"):
        with (
            typed_fields(),
            queue_of(broker, kind, {"x-dead-letter-exchange": "amq.fanout"}) as queue,
            queue_of(broker, KINDS[waiting], {"x-message-ttl": 20} | to_queue(queue)) as wait,
        ):
            wait.channel.queue_bind(wait.name, "amq.fanout")
            queue.publish("m", headers={"CC": ["copy"], "BCC": ["blind"]})
            steps: list[Any] = []
            for _ in range(4):
                method, properties, _ = queue.get()
                headers = [properties.headers.get(name) for name in ("x-delivery-count", "CC", "BCC")]
                keys = [len(death["routing-keys"]) for death in properties.headers.get("x-death", [])]
                steps.append([method.redelivered, *headers, keys])
                queue.channel.basic_reject(method.delivery_tag, requeue=False)
            seen[waiting] = steps
    return seen


def expiry(broker: Broker, kind: Kind) -> Any:
    """Messages that expire at once, or while a consumer holds them."""
    seen: dict[str, Any] = {}
    with queue_of(broker, kind) as queue:
        queue.publish("m", expiration="0")
        seen["expiration 0"] = queue.drained(0)
        got: list[str] = []
        queue.consume(got, auto_ack=True)
        queue.publish("m", expiration="0")
        broker.is_served()
        seen["expiration 0, and a consumer"] = got
    with queue_of(broker, kind, {"x-message-ttl": 200}) as queue:
        queue.publish("m")
        tag = queue.get()[0].delivery_tag
        broker.is_served()
        queue.channel.basic_nack(tag)
        seen["returned too late"] = queue.drained(0)
    for expiration in ("a", "-1", "1.5", ""):
        with queue_of(broker, kind) as queue:
            seen[f"expiration {expiration!r}"] = broker.outcome(
                lambda queue=queue, text=expiration: queue.publish("m", expiration=text)
            )
    return seen


# Consumers

CONSUMER_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"x-priority": 5},
    {"x-priority": "a"},
    {"x-cancel-on-ha-failover": True},
    {"x-cancel-on-ha-failover": 1},
    {"x-stream-offset": "first"},
    {"x-stream-filter": "a"},
    {"x-stream-match-unfiltered": True},
    {"x-consumer-timeout": 60000},
    {"x-consumer-timeout": -1},
    {"x-unknown": 1},
)


def consumer_arguments(broker: Broker, kind: Kind) -> Any:
    seen: dict[str, str] = {}
    for given in CONSUMER_ARGUMENTS:
        with queue_of(broker, kind) as queue:
            seen[str(given)] = broker.outcome(
                lambda queue=queue, given=given: queue.consume([], arguments=given), queue.name
            )
    return seen


def exclusive_consumers(broker: Broker, kind: Kind) -> Any:
    seen: dict[str, list[str]] = {}
    for is_single in (False, True):
        for first, second in ((True, False), (False, True)):
            with queue_of(broker, kind, {"x-single-active-consumer": is_single}) as queue:
                seen[f"{first}, then {second}, single active {is_single}"] = [
                    broker.outcome(
                        lambda queue=queue, flag=flag: queue.consume([], exclusive=flag), queue.name
                    )
                    for flag in (first, second)
                ]
    return seen


def single_active(broker: Broker, kind: Kind) -> Any:
    """The active consumer, and basic.get beside it."""
    seen: dict[str, Any] = {}
    with queue_of(broker, kind, {"x-single-active-consumer": True}) as queue:
        seen["get"] = broker.outcome(lambda: broker.channel().basic_get(queue.name), queue.name)
        got: list[str] = []
        priorities = {"first": 0, "better": 5, "best": 9}
        consumers = {
            mark: queue.consume(
                got, f" {mark}", auto_ack=True, arguments={"x-priority": priority}, consumer_tag=mark
            )
            for mark, priority in priorities.items()
        }
        queue.publish("a")
        broker.is_served()
        if got:
            consumers[got[0].split()[1]].basic_cancel(got[0].split()[1])
        queue.publish("b")
        broker.is_served()
        seen["with priorities"] = list(got)
    return seen


def channel_limit(broker: Broker, kind: Kind) -> Any:
    """A prefetch limit of the whole channel."""
    with queue_of(broker, kind) as queue:
        queue.publish(*"abcd")
        channel, got = broker.channel(), list[str]()

        def consume() -> None:
            channel.basic_qos(prefetch_count=3, global_qos=True)
            for _ in range(2):
                channel.basic_consume(queue.name, lambda _c, _m, _p, body: got.append(body.decode()))
            broker.is_served()

        return [broker.outcome(consume, queue.name), sorted(got)]


def consumer_priorities(broker: Broker, kind: Kind) -> Any:
    with queue_of(broker, kind) as queue:
        got: list[str] = []
        queue.consume(got, " low")
        queue.consume(got, " high", prefetch=2, arguments={"x-priority": 10})
        queue.publish(*"abcd")
        broker.is_served()
        return sorted(got)


def conditional_deletes(broker: Broker, kind: Kind) -> Any:
    seen: dict[str, str] = {}
    for flag in ("if_unused", "if_empty"):
        for is_met in (True, False):
            with queue_of(broker, kind) as queue:
                if not is_met and flag == "if_empty":
                    queue.publish("m")
                elif not is_met:
                    queue.consume([])
                seen[f"{flag} {is_met}"] = broker.outcome(
                    lambda queue=queue, flag=flag: broker.channel().queue_delete(queue.name, **{flag: True}),
                    queue.name,
                )
    return seen


# Policies, and what is shown

DEFINITIONS: tuple[dict[str, Any], ...] = (
    {"expires": 600_000},
    {"message-ttl": 60000},
    {"max-length": 5},
    {"max-length-bytes": 500},
    {"overflow": "reject-publish"},
    {"delivery-limit": 3},
    {"dead-letter-exchange": "e"},
    {"dead-letter-routing-key": "k"},
    {"dead-letter-strategy": "at-most-once"},
    {"queue-mode": "lazy"},
    {"queue-version": 2},
    {"max-in-memory-length": 5},
    {"max-in-memory-bytes": 5},
    {"queue-leader-locator": "balanced"},
    {"queue-master-locator": "min-masters"},
    {"target-group-size": 3},
    {"consumer-timeout": 60000},
    {"max-age": "1h"},
    {"stream-max-segment-size-bytes": 5000},
    {"stream-filter-size-bytes": 16},
    {"initial-cluster-size": 3},
    {"alternate-exchange": "e"},
    {"max-priority": 5},
    {"single-active-consumer": True},
    {"ha-mode": "all"},
    {"delivery-limit": 3, "max-length": 4},
    {"queue-mode": "lazy", "max-length": 4},
)
APPLY_TO = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges", "a")


def policies(broker: Broker, kind: Kind) -> Any:
    """Policies that apply to a queue, and policies that the broker refuses."""
    if kind not in [KINDS[name] for name in ("classic", "exclusive", "quorum")]:
        return None
    wanted = {
        f"{path} {definition}": (path, "queues", definition)
        for path in ("policies", "operator-policies")
        for definition in DEFINITIONS
    } | {f"apply-to {each}": ("policies", each, {"message-ttl": 60000}) for each in APPLY_TO}
    seen: dict[str, Any] = {}
    queues: dict[str, Queue] = {}
    for case, (path, apply_to, definition) in wanted.items():
        queue = Queue(broker, kind)
        policy = {"pattern": f"^{queue.name}$", "apply-to": apply_to, "definition": definition}
        status, answer = broker.request("PUT", f"/api/{path}/{VHOST}/{queue.name}", policy)
        if status < 300:
            queues[case] = queue
        else:  # RabbitMQ's texts are made for HTML
            reason = answer["reason"].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
            seen[case] = f"{status} {reason}"
    time.sleep(broker.statistics_s)
    for case, queue in queues.items():
        shown = queue.shown()
        applied = [shown.get("policy"), shown.get("operator_policy")]
        names = ["applies" if name == queue.name else name for name in applied]
        seen[case] = [*names, shown.get("effective_policy_definition")]
        for path in ("policies", "operator-policies"):
            broker.request("DELETE", f"/api/{path}/{VHOST}/{queue.name}")
        queue.delete()
    return seen


OF_TYPES = {
    *("type", "durable", "exclusive", "auto_delete", "delivery_limit", "leader", "members", "online"),
    *("exclusive_consumer_tag", "single_active_consumer_tag", "owner_pid_details", "state"),
}
"""The fields that depend on the type of a queue or its flags."""


def fields(broker: Broker, kind: Kind) -> Any:
    """Fields of a queue in the management API."""
    with queue_of(broker, kind) as queue:
        queue.consume([])
        time.sleep(broker.statistics_s)
        shown = queue.shown()
        [listed] = [
            row for row in broker.request("GET", f"/api/queues/{VHOST}")[1] if row["name"] == queue.name
        ]
        basic_path = f"/api/queues/{VHOST}?disable_stats=true"
        [basic] = [row for row in broker.request("GET", basic_path)[1] if row["name"] == queue.name]
    values = ("type", "durable", "exclusive", "auto_delete", "delivery_limit", "state")
    return {
        "shown": sorted(OF_TYPES & shown.keys()),
        "listed": sorted(OF_TYPES & listed.keys()),
        "without statistics": sorted(OF_TYPES & basic.keys()),
        "values": {name: shown[name] for name in values if name in shown},
    }


CASES: tuple[Callable[[Broker, Kind], Any], ...] = (
    *(arguments, properties, redeclared),
    *(redelivered, consumed, got_over_http, order, priorities, deliveries, limits, deaths, expiry),
    *(dead_letters_again, dead_letter_circles),
    *(consumer_arguments, exclusive_consumers, single_active, channel_limit, consumer_priorities),
    *(conditional_deletes, policies, fields),
)


def outcomes(broker: Broker, case: Callable[[Broker, Kind], Any]) -> dict[str, Any]:
    """Run a case for each kind and return the outcomes as JSON values."""
    return {name: json.loads(json.dumps(case(broker, kind))) for name, kind in KINDS.items()}


def _grouped(of_kinds: dict[str, Any]) -> list[tuple[list[str], Any]]:
    """Group the kinds by their outcome, because all classic kinds mostly have the same."""
    groups: list[tuple[list[str], Any]] = []
    for name, outcome in of_kinds.items():
        names = next((names for names, known in groups if known == outcome), None)
        if names is None:
            groups.append(([name], outcome))
        else:
            names.append(name)
    return groups


def read_recorded(text: str) -> dict[str, dict[str, Any]]:
    """The outcomes in a recording, by case and kind."""
    recorded = json.loads(text)
    return {
        case: {name: outcome for names, outcome in groups for name in names}
        for case, groups in recorded.items()
    }


def record(amqp_url: str, http_url: str, names: Iterable[str]) -> None:
    broker = Broker(amqp_url, http_url, STATISTICS_S)
    try:
        wanted = [case for case in CASES if not names or case.__name__ in names]
        recorded = {case.__name__: _grouped(outcomes(broker, case)) for case in wanted}
        json.dump(recorded, sys.stdout, indent=1)
    finally:
        broker.close()


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2], sys.argv[3:])
