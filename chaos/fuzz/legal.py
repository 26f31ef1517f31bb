"""Legal but excessive requests of hostile clients and hasty operators: large, deep, long, wide, many and often.

Invariant: an act is a function of its random numbers. Each of its frames and requests is well-formed, and its sender is
allowed to try it: if a request is too large for the node, the protocol has an answer for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import chain, islice, product, repeat
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pamqp.frame
from pamqp import commands, header
from pamqp.body import ContentBody

from chaos.fuzz.conversations import CAPABILITIES, PROTOCOL_HEADER, marshal
from chaos.fuzz.legal10 import KINDS10, Amount, Item10, items10
from chaos.fuzz.operators import Request
from qq.amqp.encoding import method_frame
from qq.octets import text_of
from qq.stored.editing import make, short_string
from qq.stored.exact_tables import encode_table

if TYPE_CHECKING:
    from random import Random

    from pamqp.base import Frame

Basic, Channel, Connection = commands.Basic, commands.Channel, commands.Connection
Exchange, Queue, Tx = commands.Exchange, commands.Queue, commands.Tx

VHOSTS = ("hostile", "hostile/2")
USER, UNPRIVILEGED = "hostile", "unprivileged"
"""USER has all permissions in these virtual hosts; STRANGER may only open them."""
NAME_BYTES_MAX = 255
OFTEN = 0.25
KEYS_BYTES = 60_000
"""Bytes of the key lists in a content header, at most, so that the header fits into a frame."""
BODY_PART_BYTES = 131_064
_SHORT_MAX = 2**16 - 1
_DEPTHS = (1, 16, 17, 31, 32, 33, 60, 61, 62, 63, 64, 65, 66, 200)
"""Depths of nested tables: at and around the limits of usual table readers."""
_NUMBERS = (0, 1, -1, 127, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
_EXPIRATIONS = ("0", "1", "60000", "4294967295", "18446744073709551616", "9" * 200)
_HASHED = "x-consistent-hash"
_DECLARE, _BIND, _PUBLISH = (50, 10), (50, 20), (60, 40)
"""Class and number of queue.declare, queue.bind and basic.publish."""
_DURABLE = b"\2"
"""The flags of queue.declare for a durable queue."""


class Act(NamedTuple):
    name: str
    user: str
    vhost: str
    frames: Iterable[bytes] = ()
    """Frames to send after the connection and channel 1 are open."""
    requests: Iterable[Request] = ()
    channels: int = 1
    """The highest channel number that the act uses."""
    items10: Iterable[Item10] | None = None
    """What a client of AMQP 1.0 sends instead, after its connection and a session are open."""
    connections: int = 1
    """Number of connections that send the same frames in turn; each stays open until the last is done."""


class Scale(NamedTuple):
    """Random numbers, and a factor of the size of an act."""

    random: Random
    factor: float

    def most(self, number: int) -> int:
        """Return a number from 1 to `number` times the factor.

        Each order of magnitude is equally frequent, and the maximum is frequent too.
        """
        exponent = 1.0 if self.random.random() < OFTEN else self.random.random()
        return max(1, int((number * self.factor) ** exponent))

    def depth(self) -> int:
        return self.random.choice(_DEPTHS)

    def number(self) -> int:
        return self.random.choice(_NUMBERS)


def draw_act(random: Random, number: int, factor: float, only: str = "") -> Act:
    """Draw the act of the client of this number; `only` names a kind of act."""
    name = only or random.choice(list(KINDS))
    vhost = random.choice(VHOSTS)
    act = KINDS[name](Scale(random, factor), f"{name}-{number}", vhost)
    return act._replace(name=name, vhost=vhost)


def opening(user: str, vhost: str) -> list[bytes]:
    """Return the frames that open a connection; the password is the user's name."""
    introduction: Any = {"product": "fuzz", "capabilities": CAPABILITIES}
    return [
        PROTOCOL_HEADER,
        marshal(0, Connection.StartOk(introduction, "PLAIN", f"\0{user}\0{user}", "en_US")),
        marshal(0, Connection.TuneOk(2047, 131_072, 0)),
        marshal(0, method(Connection.Open, virtual_host=vhost)),
    ]


def method(kind: type[Frame], **fields: Any) -> Frame:
    """Build a method with names that pamqp rejects and the protocol allows."""
    frame = _unchecked(kind)()
    for name, value in fields.items():
        if name not in kind.__slots__:
            raise AttributeError(f"{kind.name} has no {name}")
        setattr(frame, name, value)
    return frame


@cache
def _unchecked(kind: type[Frame]) -> type[Frame]:
    return type(kind.__name__, (kind,), {"validate": _let_through})


def _let_through(_frame: Frame) -> None:
    """Replace pamqp's check of names, and accept every name."""


def publish(exchange: str, key: str, body: bytes = b"x", **properties: Any) -> bytes:
    """Return basic.publish with its content, on channel 1."""
    content = header.ContentHeader(0, len(body), Basic.Properties(**properties))
    parts = [body[at : at + BODY_PART_BYTES] for at in range(0, len(body), BODY_PART_BYTES)]
    return b"".join(
        (
            marshal(1, method(Basic.Publish, exchange=exchange, routing_key=key)),
            pamqp.frame.marshal(content, 1),
            *(pamqp.frame.marshal(ContentBody(part), 1) for part in parts),
        )
    )


def _on(*frames: Frame, channel: int = 1) -> list[bytes]:
    return [marshal(channel, frame) for frame in frames]


def _queue(name: str, **arguments: Any) -> bytes:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    declare = method(Queue.Declare, queue=name, durable=True, arguments={"x-queue-type": "quorum"} | given)
    return marshal(1, declare)


def _exchange(name: str, kind: str, **arguments: Any) -> bytes:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    return marshal(1, method(Exchange.Declare, exchange=name, exchange_type=kind, arguments=given))


def _bind(queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None) -> bytes:
    fields = {"queue": queue, "exchange": exchange, "routing_key": key, "arguments": arguments or {}}
    return marshal(1, method(Queue.Bind, **fields))


def _nested(depth: int, *, lists: bool) -> Any:
    value: Any = "deep"
    for level in range(depth):
        value = [value] if lists and level % 2 else {"x": value}
    return value if isinstance(value, dict) else {"x": value}


def _table(scale: Scale) -> dict[str, Any]:
    """Draw a table that is deep or wide, or has long or strange values."""
    random = scale.random
    kind = random.choice(("deep", "deep lists", "wide", "numbers", "long"))
    match kind:
        case "wide":
            return {f"key-{number}": number for number in range(scale.most(5_000))}
        case "numbers":
            return {f"n{number}": value for number, value in enumerate(_NUMBERS)}
        case "long":
            return {"k" * random.randint(1, 127): "v" * scale.most(100_000)}
        case _:
            return _nested(scale.depth(), lists=kind == "deep lists")


def _name(random: Random, prefix: str) -> str:
    """Return a name with this prefix that has the maximum length, or almost."""
    letter = random.choice(("n", ".", "ü", "€", "\U0001d6fc", "#", "*", " ", "\u202e"))
    room = NAME_BYTES_MAX - random.randint(0, 1) - len(prefix.encode())
    return prefix + letter * (room // len(letter.encode()))


def _tables(scale: Scale, name: str, vhost: str) -> Act:
    """Put tables wherever a method or message has a table, even where the node must refuse it."""
    random = scale.random
    user = random.choice((USER, UNPRIVILEGED))
    passive = random.random() < 0.5
    kind = random.choice(("queue", "exchange", "bind", "consume", "message"))
    table = _table(scale)
    frames = {
        "queue": _on(method(Queue.Declare, queue=name, passive=passive, durable=True, arguments=table)),
        "exchange": _on(method(Exchange.Declare, exchange=name, passive=passive, arguments=table)),
        "bind": [
            _queue(name),
            _bind(name, "amq.headers", "", table),
            publish("amq.headers", "", headers=table),
        ],
        "consume": [_queue(name), *_on(method(Basic.Consume, queue=name, arguments=table))],
        "message": [_queue(name), publish("", name, headers=table), *_on(Basic.Get(queue=name))],
    }[kind]
    # Each refused method costs its channel, so the next is sent on a new channel.
    again = scale.most(300)
    rest = chain.from_iterable(_on_channels(frames, again))
    return Act(name, user, vhost, chain(frames, rest), channels=1 + again)


def _on_channels(frames: list[bytes], count: int) -> Iterable[list[bytes]]:
    for channel in range(2, 2 + count):
        moved = [frame[:1] + channel.to_bytes(2, "big") + frame[3:] for frame in frames if _is_one(frame)]
        yield [*_on(Channel.Open(), channel=channel), *moved]


def _is_one(data: bytes) -> bool:
    """Return whether this is a single frame."""
    return int.from_bytes(data[3:7], "big") + 8 == len(data)


def _dead_letters(scale: Scale, name: str, vhost: str) -> Act:
    """Publish messages with dead-letter headers, also into circles of queues in which they die again and again."""
    random = scale.random
    exchange = f"{name}-x"
    ttl = random.choice((0, 1, 100))
    frames = [
        _exchange(exchange, random.choice(("headers", "fanout", "topic"))),
        _queue(f"{name}-end", x_max_length=random.choice((0, 1, 1000)), x_overflow="reject-publish"),
        _bind(f"{name}-end", exchange, "#", {"x-match": "any", "x": "deep"}),
        _queue(name, x_message_ttl=ttl, x_dead_letter_exchange=exchange),
        _queue(
            f"{name}-a", x_message_ttl=ttl, x_dead_letter_exchange="", x_dead_letter_routing_key=f"{name}-b"
        ),
        _queue(f"{name}-b", x_max_length=1, x_dead_letter_exchange="", x_dead_letter_routing_key=f"{name}-a"),
    ]
    table = _table(scale)
    messages = (
        publish("", random.choice((name, f"{name}-a")), headers=table) for _ in range(scale.most(2_000))
    )
    return Act(name, USER, vhost, chain(frames, messages))


def _transactions(scale: Scale, name: str, vhost: str) -> Act:
    """Commit many small messages with long keys, a few large messages, or many acknowledgements."""
    kind = scale.random.choice(("many", "many", "large", "large", "acknowledgements"))
    select, commit = _on(Tx.Select()), _on(Tx.Commit())
    if kind == "many":
        # Equal publishes would become a single command.
        small = b"".join(publish("", _name(scale.random, f"{name}-{number}"), b"") for number in range(100))
        messages = repeat(small, scale.most(3_000))
    elif kind == "large":
        large = publish("", name, bytes(scale.most(15 * 2**20)))
        messages = repeat(large, scale.random.randint(1, 3))
    else:
        count = scale.most(1_000)  # each get waits for the get before it
        publishes = repeat(publish("", name), count)
        gets = repeat(marshal(1, Basic.Get(queue=name)), count)
        acks = (marshal(1, Basic.Ack(tag)) for tag in range(1, count + 1))
        return Act(name, USER, vhost, chain([_queue(name)], publishes, gets, select, acks, commit))
    return Act(name, USER, vhost, chain([_queue(name, x_max_length=10)], select, messages, commit))


def _many_keys(scale: Scale, name: str, vhost: str) -> Act:
    """Publish with CC and BCC lists of keys; the node must route each key."""
    key = scale.random.choice(("k", "a.b.c", ".".join("a" * 127), _name(scale.random, "")))
    count = min(scale.most(10_000), KEYS_BYTES // (len(key.encode()) + 5))
    message = publish("amq.topic", key, headers={scale.random.choice(("CC", "BCC")): [key] * count})
    binds = [_bind(name, "amq.topic", pattern) for pattern in ("#", "#.a.#", "*.b.*")]
    return Act(
        name, USER, vhost, chain([_queue(name, x_max_length=10), *binds], repeat(message, scale.most(300)))
    )


def _topics(scale: Scale, name: str, vhost: str) -> Act:
    """Bind topic patterns that match in many ways."""
    random = scale.random
    count = random.choice((3, 20, 60))
    pieces = [
        ".".join(random.choice(("#", "*", "a", "b")) for _ in range(count)) for _ in range(scale.most(500))
    ]
    pieces.append(".".join(("#", "a") * (count // 2)))
    exchange = f"{name}-x"
    binds = (_bind(name, exchange, piece[:NAME_BYTES_MAX].rstrip(".")) for piece in pieces)
    keys = [".".join(random.choices("aab", k=127)) for _ in range(min(scale.most(200), KEYS_BYTES // 260))]
    message = publish(exchange, ".".join("a" * 127) + "b", headers={"CC": keys})
    frames = [_exchange(exchange, "topic"), _queue(name, x_max_length=10)]
    return Act(name, USER, vhost, chain(frames, binds, repeat(message, scale.most(30))))


def _new_keys(scale: Scale, name: str, vhost: str) -> Act:
    """Publish with new routing keys each time, where thousands of patterns match."""
    random = scale.random
    exchange = f"{name}-x"
    patterns = islice(product("*#a", repeat=8), scale.most(3_000))
    # To several queues, since each may have a thousand.
    queues = [f"{number}-{name}" for number in range(4)]
    binds = (_bind(queues[number % 4], exchange, ".".join(each)) for number, each in enumerate(patterns))
    messages = (publish(exchange, ".".join(random.choices("ab", k=64))) for _ in range(scale.most(1_000)))
    frames = [_exchange(exchange, "topic"), *(_queue(queue, x_max_length=10) for queue in queues)]
    return Act(name, USER, vhost, list(chain(frames, binds, messages)), connections=scale.most(10))


def _consumers(scale: Scale, name: str, vhost: str) -> Act:
    """Open many consumers with a shared limit or a limit for each, and requeue messages often before they are acked."""
    random = scale.random
    qos = method(Basic.Qos, prefetch_count=random.choice((1, 100, _SHORT_MAX)), global_=random.random() < 0.7)
    # Each waits for the log. Some get an answer, so that the client sees in time that the node goes on.
    consumes = (
        marshal(1, method(Basic.Consume, queue=name, consumer_tag=f"c{number}", nowait=number % 100 > 0))
        for number in range(scale.most(5_000))
    )
    messages = repeat(publish("", name), scale.most(3_000))
    again = repeat(_on(Basic.Nack(0, multiple=True, requeue=True))[0], scale.most(300))
    end = _on(Basic.Ack(0, multiple=True))
    return Act(name, USER, vhost, chain([_queue(name)], _on(qos), consumes, messages, again, end))


def _names(scale: Scale, name: str, vhost: str) -> Act:
    random = scale.random
    frames: list[bytes] = []
    for _ in range(scale.most(100)):
        queue, exchange, key = (_name(random, f"{name}-{random.randrange(10**9)}") for _ in range(3))
        frames += [
            _queue(queue),
            _exchange(exchange, random.choice(("direct", "topic", "fanout", "headers"))),
        ]
        frames += [_bind(queue, exchange, key), publish(exchange, key)]
        frames += _on(method(Basic.Consume, queue=queue, consumer_tag=key), method(Queue.Delete, queue=queue))
    return Act(name, USER, vhost, frames)


def _extremes(scale: Scale, name: str, vhost: str) -> Act:
    """Return an act with extreme numbers in fields and arguments."""
    random = scale.random
    argument = random.choice(
        (
            "x-max-priority",
            "x-message-ttl",
            "x-expires",
            "x-max-length",
            "x-max-length-bytes",
            "x-delivery-limit",
        )
    )
    frames = [
        *_on(method(Queue.Declare, queue=f"{name}-q", durable=True, arguments={argument: scale.number()})),
        *_on(Channel.Open(), channel=2),
    ]
    declared = [_queue(name)]
    messages = [
        publish(
            "",
            name,
            priority=random.choice((0, 9, 255)),
            expiration=random.choice(_EXPIRATIONS),
            headers={
                "x-delay": scale.number(),
                "x-publisher-id": random.choice(("p", "p" * 255, "p" * 10_000)),
                "x-publish-seq": scale.number(),
            },
        )
        for _ in range(scale.most(500))
    ]
    return Act(name, USER, vhost, [*declared, *messages, *frames], channels=2)


def _graphs(scale: Scale, name: str, vhost: str) -> Act:
    """Bind exchanges to exchanges: chains, circles, and many ways to the same end."""
    random = scale.random
    count = scale.most(300)
    kinds = ("fanout", "topic", "headers", "direct")
    frames = [_exchange(f"{name}-{number}", random.choice(kinds)) for number in range(count)]
    frames.append(_queue(name, x_max_length=10))
    for number in range(count):
        for target in (number + 1, random.randrange(count), random.randrange(count)):
            fields = {
                "source": f"{name}-{number}",
                "destination": f"{name}-{target % count}",
                "routing_key": "#",
            }
            frames += _on(method(Exchange.Bind, **fields))
    frames += [_bind(name, f"{name}-{count - 1}", "#"), *[publish(f"{name}-0", "#")] * scale.most(200)]
    return Act(name, USER, vhost, frames)


def _churn(scale: Scale, name: str, vhost: str) -> Act:
    """Declare exclusive and auto-delete queues, which end with their connection or their last consumer."""
    frames: list[bytes] = []
    for _ in range(scale.most(100)):
        frames += _on(method(Queue.Declare, exclusive=True), method(Queue.Bind, exchange="amq.fanout"))
        frames += _on(method(Queue.Declare, queue=f"{name}-a", auto_delete=True))
        frames += _on(
            method(Basic.Consume, queue=f"{name}-a", consumer_tag="c"), method(Basic.Cancel, consumer_tag="c")
        )
    return Act(name, USER, vhost, [*frames, publish("amq.fanout", "")], connections=scale.most(30))


def _channels(scale: Scale, name: str, vhost: str) -> Act:
    """Open many channels on each of some connections, about up to the limits."""
    channels = range(2, 1 + scale.most(2046))
    each = (
        frame
        for channel in channels
        for frame in _on(Channel.Open(), Basic.Qos(prefetch_count=1), channel=channel)
    )
    return Act(name, USER, vhost, list(each), connections=scale.most(20))


def _gets(scale: Scale, name: str, vhost: str) -> Act:
    """Get many messages individually, let them all return, and get them again."""
    count = scale.most(1_000)
    publishes, gets = repeat(publish("", name), count), repeat(marshal(1, Basic.Get(queue=name)), count)
    end = _on(scale.random.choice((Basic.Recover(requeue=True), Basic.Nack(0, multiple=True, requeue=True))))
    return Act(name, USER, vhost, chain([_queue(name)], publishes, gets, end, gets))


def _requests(scale: Scale, name: str, vhost: str) -> Act:
    """Use direct reply-to, with replies to the client itself and to an unknown address."""
    requests = "amq.rabbitmq.reply-to"
    consume = method(Basic.Consume, queue=requests, no_ack=True)
    request = publish(
        "", name, reply_to=requests, correlation_id="c" * scale.random.randint(0, NAME_BYTES_MAX)
    )
    answered = publish("", f"{requests}.{'a' * 200}")
    return Act(
        name, USER, vhost, chain([_queue(name)], _on(consume), repeat(request + answered, scale.most(2_000)))
    )


def _weights(scale: Scale, name: str, vhost: str) -> Act:
    """Bind queues to a consistent hash exchange, with usual and with invalid weights."""
    random = scale.random
    exchange = f"{name}-x"
    frames = [_exchange(exchange, _HASHED, hash_header="x")]
    for number in range(scale.most(50)):
        weight = random.choice(("1", "10", "1000", "100000", "0", "-1", "2147483647", "one"))
        frames += [_queue(f"{name}-{number}"), _bind(f"{name}-{number}", exchange, weight)]
    frames += [publish(exchange, "", headers={"x": str(number)}) for number in range(scale.most(300))]
    return Act(name, USER, vhost, frames)


def _octets(scale: Scale, name: str, vhost: str) -> Act:
    """Use octets that are not UTF-8 wherever the protocol allows them: routing keys, names and values of tables."""
    random = scale.random

    def some() -> bytes:
        return random.randbytes(random.choice((1, 8, 127, NAME_BYTES_MAX)))

    def arguments(given: Mapping[str, Any]) -> bytes:
        return encode_table({**given, text_of(some()): some(), "nested": {text_of(some()): [some()]}})

    def bind(exchange: str) -> bytes:
        ends = b"\0\0" + short_string(name) + short_string(exchange)
        return method_frame(1, *_BIND, ends + b"\0\0" + arguments({"x-match": "any"}))

    dead = {"x-max-length": 1, "x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": some()}
    declare = b"\0\0" + short_string(name) + _DURABLE
    frames = [
        method_frame(1, *_DECLARE, declare + arguments(dead)),
        bind("amq.headers"),
        _queue(f"{name}-end", x_max_length=10),
        _bind(f"{name}-end", "amq.topic", "#"),
    ]
    messages = [
        method_frame(1, *_PUBLISH, b"\0\0" + short_string(exchange) + short_string(text_of(some())) + b"\0")
        + make(Basic.Properties(headers={text_of(some()): True, "CC": [name]}), b"m", BODY_PART_BYTES)
        for exchange in random.choices(("", "amq.topic", "amq.headers"), k=scale.most(500))
    ]
    # The queue has other arguments, and the refusal shows them.
    again = method_frame(1, *_DECLARE, declare + arguments(dead))
    return Act(name, USER, vhost, [*frames, *messages, again])


def _put(path: str, body: Any) -> Request:
    return Request("PUT", f"/api/{path}", json.dumps(body).encode())


def _policies(scale: Scale, name: str, vhost: str) -> Act:
    """Put and delete many policies over many queues."""
    random, where = scale.random, quote(vhost, safe="")
    frames = [_queue(f"{name}-{number}") for number in range(scale.most(1_000))]
    patterns = (".*", "^policies-.*$", "(a|b|c)+$", "(a*)*b", ".*" * 20 + "x", name, "^" + "[a-z]*" * 40)
    definition = {"max-length": 5, "message-ttl": 60_000, "dead-letter-exchange": "amq.fanout"}
    requests: list[Request] = []
    for number in range(scale.most(100)):
        body = {"pattern": random.choice(patterns), "definition": definition, "priority": number}
        requests.append(_put(f"policies/{where}/{name}-{number}", body | {"apply-to": "queues"}))
        if random.random() < 0.3:
            requests.append(Request("DELETE", f"/api/policies/{where}/{name}-{number}"))
    return Act(name, USER, vhost, frames, requests)


def _definitions(scale: Scale, name: str, vhost: str) -> Act:
    """Import a large definitions document."""
    random = scale.random
    queues = [f"{name}-{number}" for number in range(scale.most(1_000))]
    bindings = [(random.choice(queues), f"{random.randrange(10)}.#") for _ in range(scale.most(3_000))]
    table = _table(scale)
    document = {
        "queues": [
            {"name": queue, "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}
            for queue in queues
        ],
        "exchanges": [{"name": f"{name}-x", "type": "topic", "durable": True, "arguments": table}],
        "bindings": [
            {
                "source": "amq.topic",
                "destination": queue,
                "destination_type": "queue",
                "routing_key": key,
                "arguments": {},
            }
            for queue, key in bindings
        ],
    }
    request = Request("POST", f"/api/definitions/{quote(vhost, safe='')}", json.dumps(document).encode())
    return Act(
        name, USER, vhost, [publish("amq.topic", "1.a")] * scale.most(100), [request] * random.randint(1, 2)
    )


def _tenants(scale: Scale, name: str, vhost: str) -> Act:
    """Create and delete virtual hosts and users."""
    requests: list[Request] = []
    for number in range(scale.most(30)):
        one = f"{name}-{number}"
        requests += [
            _put(f"vhosts/{one}", {}),
            _put(f"users/{one}", {"password": one, "tags": ""}),
            _put(f"permissions/{one}/{one}", {"configure": ".*", "write": ".*", "read": ".*"}),
            _put(f"queues/{one}/q", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
            Request("DELETE", f"/api/users/{one}"),
            Request("DELETE", f"/api/vhosts/{one}"),
        ]
    return Act(name, USER, vhost, (), requests)


def _act10(kind: str, scale: Scale, name: str, vhost: str) -> Act:
    """Return an act of a client of AMQP 1.0."""
    return Act(name, USER, vhost, items10=items10(kind, Amount(scale.random, scale.most), name))


KINDS: Mapping[str, Callable[[Scale, str, str], Act]] = {
    "tables": _tables,
    "dead-letters": _dead_letters,
    "transactions": _transactions,
    "keys": _many_keys,
    "topics": _topics,
    "new-keys": _new_keys,
    "consumers": _consumers,
    "names": _names,
    "octets": _octets,
    "extremes": _extremes,
    "graphs": _graphs,
    "churn": _churn,
    "channels": _channels,
    "gets": _gets,
    "requests": _requests,
    "weights": _weights,
    "policies": _policies,
    "definitions": _definitions,
    "tenants": _tenants,
    **{kind: partial(_act10, kind) for kind in KINDS10},
}
