"""A client of AMQP 1.0 with Qpid Proton's engine, which shows the frames of both sides as lines.

A line is `> 0 attach name='l' handle=0 ...` from the client or `< 0 attach ...` from the broker, with the channel and
the fields that differ from their defaults. Octets are decoded by Proton's codec. Names, times and texts that a broker
generates are replaced, and so are the sizes that it may choose: its windows, the credit that it gives, and its largest
message. Its ids and counts begin at zero. The engine encodes performatives, so a conversation contains the calls of
a program only.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Self

from proton import (
    Array,
    Connection,
    Data,
    DataException,
    Delivery,
    Described,
    Endpoint,
    Message,
    Transport,
    symbol,
    timestamp,
)

from chaos.workloads.amqp10_engine import output_of, pushed
from tests.wire.wire import COMPARING, HOST, RECORDING, SURPLUS_S, VHOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proton import Link, Receiver, Sender, Session

FRAME_BYTES = 8192
HEADER_BYTES = 8
TRANSFER, MORE = 0x14, 5
"""The descriptor of a transfer, and the place of its field `more`."""

_FIELDS = {
    0x10: (
        "open",
        (
            "container-id hostname max-frame-size channel-max idle-time-out outgoing-locales incoming-locales"
            " offered-capabilities desired-capabilities properties"
        ),
    ),
    0x11: (
        "begin",
        (
            "remote-channel next-outgoing-id incoming-window outgoing-window handle-max offered-capabilities"
            " desired-capabilities properties"
        ),
    ),
    0x12: (
        "attach",
        (
            "name handle role snd-settle-mode rcv-settle-mode source target unsettled incomplete-unsettled"
            " initial-delivery-count max-message-size offered-capabilities desired-capabilities properties"
        ),
    ),
    0x13: (
        "flow",
        (
            "next-incoming-id incoming-window next-outgoing-id outgoing-window handle delivery-count link-credit"
            " available drain echo properties"
        ),
    ),
    0x14: (
        "transfer",
        "handle delivery-id delivery-tag message-format settled more rcv-settle-mode state resume aborted batchable",
    ),
    0x15: ("disposition", "role first last settled state batchable"),
    0x16: ("detach", "handle closed error"),
    0x17: ("end", "error"),
    0x18: ("close", "error"),
    0x1D: ("error", "condition description info"),
    0x23: ("received", "section-number section-offset"),
    0x24: ("accepted", ""),
    0x25: ("rejected", "error"),
    0x26: ("released", ""),
    0x27: ("modified", "delivery-failed undeliverable-here message-annotations"),
    0x28: (
        "source",
        (
            "address durable expiry-policy timeout dynamic dynamic-node-properties distribution-mode filter"
            " default-outcome outcomes capabilities"
        ),
    ),
    0x29: ("target", "address durable expiry-policy timeout dynamic dynamic-node-properties capabilities"),
    0x2B: ("delete-on-close", ""),
    0x40: ("mechanisms", "mechanisms"),
    0x41: ("init", "mechanism initial-response hostname"),
    0x44: ("outcome", "code additional-data"),
    0x70: ("header", "durable priority ttl first-acquirer delivery-count"),
    0x71: ("delivery-annotations", ""),
    0x72: ("message-annotations", ""),
    0x73: (
        "properties",
        (
            "message-id user-id to subject reply-to correlation-id content-type content-encoding"
            " absolute-expiry-time creation-time group-id group-sequence reply-to-group-id"
        ),
    ),
    0x74: ("application-properties", ""),
    0x75: ("data", ""),
    0x76: ("sequence", ""),
    0x77: ("value", ""),
    0x78: ("footer", ""),
}
"""Name and fields of each described list (AMQP 1.0, parts 2, 3 and 5), by its descriptor."""

_TERMINUS = {"durable": 0, "expiry-policy": "session-end", "timeout": 0, "dynamic": False}
_DEFAULTS = {
    "attach": {
        "snd-settle-mode": 2,
        "rcv-settle-mode": 0,
        "incomplete-unsettled": False,
        "max-message-size": 0,
    },
    "source": {
        "distribution-mode": "move",
        "durable": 0,
        "expiry-policy": "session-end",
        "timeout": 0,
        "dynamic": False,
    },
    "target": {"durable": 0, "expiry-policy": "session-end", "timeout": 0, "dynamic": False},
    "flow": {"drain": False, "echo": False},
    "transfer": {"message-format": 0, "more": False, "resume": False, "aborted": False, "batchable": False},
    "disposition": {"settled": False, "batchable": False},
    "detach": {"closed": False},
    "header": {"durable": False, "priority": 4, "first-acquirer": False, "delivery-count": 0},
}
"""Values of fields that mean the same as their absence (AMQP 1.0, parts 2 and 3)."""

_PLAIN = bool, str, int, bytes
_OWN_TEXTS = "cluster_name", "copyright", "information", "platform", "product", "version", "node"
"""Properties of open that identify a broker."""
_GENERATED = (
    (re.compile(r"'(/queues/)?(amq\.gen-|client\.gen-)[^']*'"), r"'\1{generated}'"),
    (re.compile(r"('leader': |'replicas': array\[)'[^']*'"), r"\1'{node}'"),
)


def shown(value: Any) -> str:
    """Show a value of AMQP with its type, except for the types of the obvious Python values."""
    if isinstance(value, Described):
        return _described(value)
    if isinstance(value, timestamp):
        return "{time}"
    if isinstance(value, Array):
        return f"array{shown(list(value.elements))}"
    if isinstance(value, dict):
        pairs = sorted(f"{shown(key)}: {shown(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if value is None or type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, symbol):
        return f":{value!s}"
    return f"{type(value).__name__}({_repr(value)})"


def _repr(value: Any) -> str:
    plain = [kind for kind in type(value).__mro__ if kind in (int, float, str, bytes, list)]
    return repr(plain[0](value)) if plain else repr(value)


def _described(value: Described) -> str:
    descriptor = value.descriptor
    name, fields = _FIELDS.get(
        int(descriptor) if isinstance(descriptor, int) else -1, (shown(descriptor), "")
    )
    content = value.value
    if not isinstance(content, list) or not fields:
        return name if content == [] else f"{name}({shown(content)})"
    names = fields.split()
    defaults = _DEFAULTS.get(name, {})
    parts = [
        f"{key}={_normal(name, key, each)}"
        for key, each in zip(names, content, strict=False)
        if each is not None and each != defaults.get(key)
    ]
    return f"{name}({', '.join(parts)})"


def _normal(name: str, key: str, value: Any) -> str:
    """Show a field of a performative or a section, without names and tags that a broker generates."""
    if name == "open" and key == "container-id":
        return "{container}"
    if name == "open" and key == "properties":
        value = {each: "{own text}" if str(each) in _OWN_TEXTS else text for each, text in value.items()}
    if name == "transfer" and key == "delivery-tag":
        return "{tag}"
    return shown(value)


def _decoded(octets: bytes) -> tuple[Any, bytes]:
    data = Data()
    size = data.decode(octets)
    data.rewind()
    data.next()
    return _owned(data.get_object()), octets[size:]


def _owned(value: Any) -> Any:
    """Copy octets of a value, which otherwise are those of Proton's buffer and change when it is freed."""
    match value:
        case memoryview():
            return bytes(value)
        case Described():
            return Described(value.descriptor, _owned(value.value))
        case dict():
            return {key: _owned(each) for key, each in value.items()}
        case list():
            return [_owned(each) for each in value]
        case _:
            return value


def _performative(value: Any, rest: bytes, *, is_whole: bool) -> str:
    """Show the performative of a frame, and the sections of a message behind it."""
    text = shown(value).removesuffix(")").replace("(", " ", 1)
    if not is_whole:
        return f"{text} + {len(rest)} octets"
    sections: list[str] = []
    while rest:
        try:
            section, rest = _decoded(rest)
        except DataException:
            sections.append(f"octets {rest!r}")
            break
        sections.append(shown(section))
    whole = " + ".join((text, *sections))
    for generated, replacement in _GENERATED:
        whole = generated.sub(replacement, whole)
    return whole


class Lines:
    """The frames in a stream of octets, as lines."""

    def __init__(self, sign: str, choices: BrokerChoices | None = None) -> None:
        """Begin a stream. `choices` replaces values in the frames of a broker."""
        self._sign = sign
        self._choices = choices
        self._octets = b""
        self._is_in_parts = False

    def feed(self, octets: bytes) -> list[str]:
        """Return the lines of all frames that end in these octets."""
        self._octets += octets
        lines: list[str] = []
        while len(self._octets) >= HEADER_BYTES:
            if self._octets.startswith(b"AMQP"):
                lines.append(f"{self._sign} header {list(self._octets[4:HEADER_BYTES])}")
                self._octets = self._octets[HEADER_BYTES:]
                continue
            size, offset, kind, channel = struct.unpack_from(">IBBH", self._octets)
            if len(self._octets) < size:
                break
            body, self._octets = self._octets[4 * offset : size], self._octets[size:]
            lines.append(f"{self._sign} {'sasl' if kind else channel} {self._line(channel, body)}".rstrip())
        return lines

    def _line(self, channel: int, body: bytes) -> str:
        if not body:
            return "heartbeat"
        value, rest = _decoded(body)
        is_whole = True
        if value.descriptor == TRANSFER:
            more = bool((value.value + [None] * MORE)[MORE])
            is_whole = not more and not self._is_in_parts
            self._is_in_parts = more
        if self._choices is not None:
            self._choices.replace(channel, value)
        return _performative(value, rest, is_whole=is_whole)


class BrokerChoices:
    """Replaces the sizes, ids and counts that a broker may choose in its frames."""

    def __init__(self) -> None:
        self._first_ids: dict[int, int] = {}
        """The first next-outgoing-id, by channel."""
        self._first_deliveries: dict[int, int] = {}
        """The first delivery-id, by channel."""
        self._first_counts: dict[tuple[int, int], int | None] = {}
        """The initial delivery-count by channel and handle of the broker, and None for its receiving links."""

    def replace(self, channel: int, performative: Described) -> None:
        fields = performative.value
        match performative.descriptor:
            case 0x11:
                self._first_ids[channel] = fields[1]
                fields[1:3] = 0, symbol("{window}")
            case 0x12:
                is_receiver = fields[2]
                if is_receiver and len(fields) > 10:
                    fields[10] = symbol("{size}")
                self._first_counts[channel, fields[1]] = None if is_receiver else fields[9]
                if not is_receiver and len(fields) > 9 and fields[9] is not None:
                    fields[9] = 0
                    if fields[6] is not None and not any(fields[6].value):
                        fields[6] = None  # RabbitMQ 4.0 leaves an empty target out
            case 0x13:
                fields[1] = symbol("{window}")
                fields[2] = self._after(self._first_ids[channel], fields[2])
                if len(fields) > 4 and fields[4] is not None:
                    first = self._first_counts[channel, fields[4]]
                    if first is None:
                        fields[6] = symbol("{credit}")
                    else:
                        fields[5] = self._after(first, fields[5])
            case 0x15 if len(fields) > 2 and fields[2] == fields[1]:
                fields[2] = None
            case 0x14 if len(fields) > 1 and fields[1] is not None:
                fields[1] = self._after(self._first_deliveries.setdefault(channel, fields[1]), fields[1])
            case _:
                pass

    def _after(self, first: int, later: int) -> int:
        return (later - first) % 2**32


class Talk:
    """A conversation of a client with a broker, on a single connection."""

    def __init__(
        self,
        port: int,
        expected: Sequence[str] | None,
        *,
        user: str = "guest",
        vhost: str = VHOST,
        **options: Any,
    ) -> None:
        """Connect. With the expected lines, a step waits for as many frames as they show; without, for a pause."""
        self.lines: list[str] = []
        self._expected = None if expected is None else _counts(expected)
        self._steps = 0
        self._socket = socket.create_connection((HOST, port), timeout=COMPARING.patience_s)
        self._ours, self._theirs = Lines(">"), Lines("<", BrokerChoices())
        self._ended = False
        self.connection = Connection()
        self.connection.container = options.get("container", "talk")
        self.connection.hostname = f"vhost:{vhost}"
        self.connection.user, self.connection.password = user, user
        if "properties" in options:
            self.connection.properties = options["properties"]
        self.transport = Transport(Transport.CLIENT)
        self.transport.max_frame_size = options.get("frame_bytes", FRAME_BYTES)
        if "channel_max" in options:
            self.transport.channel_max = options["channel_max"]
        if "idle_timeout_s" in options:
            self.transport.idle_timeout = options["idle_timeout_s"]
        sasl = self.transport.sasl()
        sasl.allowed_mechs(options.get("mechanism", "PLAIN"))
        sasl.allow_insecure_mechs = True
        self.transport.bind(self.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # Steps of a conversation

    def open(self) -> Session:
        """Open the connection and a session, each as a step."""
        self.connection.open()
        self.step()
        return self.begin()

    def begin(self) -> Session:
        session = self.connection.session()
        session.open()
        self.step()
        return session

    def sender(self, session: Session, address: str | None, name: str = "to", **options: Any) -> Sender:
        link = session.sender(name)
        link.target.address = address
        self._attach(link, options)
        return link

    def receiver(self, session: Session, address: str | None, name: str = "from", **options: Any) -> Receiver:
        link = session.receiver(name)
        link.source.address = address
        self._attach(link, options)
        return link

    def _attach(self, link: Link, options: dict[str, Any]) -> None:
        for key, value in options.items():
            if key == "filter":
                link.source.filter.put_dict(value)
            elif key == "dynamic":
                (link.source if link.is_receiver else link.target).dynamic = value
            else:
                setattr(link, key, value)
        link.open()
        self.step()

    def send(self, link: Sender, message: Message | bytes, *, settled: bool = False) -> Delivery:
        """Send a message, and wait for its outcome as a step."""
        delivery = link.delivery(str(link.queued + self._steps))
        link.stream(message if isinstance(message, bytes) else message.encode())
        link.advance()
        if settled:
            delivery.settle()
        self.step()
        return delivery

    def credit(self, link: Receiver, count: int) -> None:
        link.flow(count)
        self.step()

    def settle(self, delivery: Delivery, state: Any) -> None:
        delivery.update(state)
        delivery.settle()
        self.step()

    def close(self) -> None:
        """Close the connection as the last step."""
        if not self._ended:
            self.connection.close()
            self.step()

    def step(self) -> None:
        """Send the output of the engine, and take the broker's answers."""
        self.lines.append("step")
        self._steps += 1
        self._flush()
        if self._expected is None:
            self._take(None, RECORDING.patience_s, RECORDING.quiet_s)
        else:
            known = self._steps <= len(self._expected)
            self._take(self._expected[self._steps - 1] if known else 0, COMPARING.patience_s, 0.0)

    def surplus(self) -> None:
        """Take frames that must not come."""
        self._take(None, SURPLUS_S, SURPLUS_S)

    # Octets

    def _flush(self) -> None:
        octets = b"".join(output_of(self.transport))
        if octets:
            self.lines += self._ours.feed(octets)
            try:
                self._socket.sendall(octets)
            except OSError:
                self._ended = True

    def _take(self, count: int | None, patience_s: float, quiet_s: float) -> None:
        """Read until `count` frames have come, or without a count until the broker is quiet."""
        deadline_s = time.monotonic() + patience_s
        taken = 0
        while not self._ended and (count is None or taken < count):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._socket.settimeout(min(left_s, quiet_s) if taken and quiet_s else left_s)
            try:
                octets = self._socket.recv(1 << 20)
            except TimeoutError:
                return
            except OSError:
                octets = b""
            came = self._theirs.feed(octets) if octets else ["< end"]
            self._ended = not octets
            taken += len(came)
            self.lines += came
            if octets:
                self._push(octets)
            deadline_s = max(deadline_s, time.monotonic() + quiet_s)

    def _push(self, octets: bytes) -> None:
        for _ in pushed(self.transport, octets):
            pass
        self._flush()

    @property
    def is_open(self) -> bool:
        return bool(self.connection.state & Endpoint.REMOTE_ACTIVE)


def _counts(lines: Sequence[str]) -> list[int]:
    """Count the broker's frames of each step."""
    counts: list[int] = []
    for each in lines:
        if each == "step":
            counts.append(0)
        elif each.startswith("< "):
            counts[-1] += 1
    return counts
