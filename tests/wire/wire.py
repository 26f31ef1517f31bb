"""A client that knows octets only: it sends handmade frames and returns the frames of a broker.

A transcript is a list of lines, one per frame: `> 1 queue.declare ...` from the client (`>>` if it was sent in one
piece with the frame above), `< 1 queue.declare-ok ...` from the broker. The arguments are shown octet by octet;
printable octets are shown as characters. Names, times and texts that a broker generates are replaced. The headers of a
message are sorted by name: their order has no meaning, and RabbitMQ sorts them.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

HOST = "127.0.0.1"
VHOST = "octets"
"""The virtual host of all exchanges: error texts contain its name."""
ADMINISTRATOR, READER = "guest", "reader"
"""A user with all permissions, and a user with none for `VHOST` but to read `READABLE`. Passwords equal the names."""
READABLE = "readable"
HEADER = b"AMQP\0\0\x09\x01"
END = b""
"""Stands for the end of the stream among the frames that a broker has sent."""
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
CAPABILITIES = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify")

_METHODS = """
connection 10 start 10 start-ok 11 secure 20 secure-ok 21 tune 30 tune-ok 31 open 40 open-ok 41 close 50 close-ok 51
connection 10 blocked 60 unblocked 61 update-secret 70 update-secret-ok 71
channel 20 open 10 open-ok 11 flow 20 flow-ok 21 close 40 close-ok 41
access 30 request 10 request-ok 11
exchange 40 declare 10 declare-ok 11 delete 20 delete-ok 21 bind 30 bind-ok 31 unbind 40 unbind-ok 51
queue 50 declare 10 declare-ok 11 bind 20 bind-ok 21 purge 30 purge-ok 31 delete 40 delete-ok 41 unbind 50 unbind-ok 51
basic 60 qos 10 qos-ok 11 consume 20 consume-ok 21 cancel 30 cancel-ok 31 publish 40 return 50 deliver 60 get 70
basic 60 get-ok 71 get-empty 72 ack 80 reject 90 recover-async 100 recover 110 recover-ok 111 nack 120
confirm 85 select 10 select-ok 11
tx 90 select 10 select-ok 11 commit 20 commit-ok 21 rollback 30 rollback-ok 31
"""


def _numbers() -> dict[str, tuple[int, int]]:
    """Return the numbers of the class and of the method, by `class.method`."""
    numbers: dict[str, tuple[int, int]] = {}
    for row in _METHODS.split("\n")[1:-1]:
        class_name, class_id, *methods = row.split()
        for name, number in zip(methods[::2], methods[1::2], strict=True):
            numbers[f"{class_name}.{name}"] = int(class_id), int(number)
    return numbers


IDS = _numbers()
NAMES = {numbers: name for name, numbers in IDS.items()}

Value = str | int | bool | bytes | dict[str, "Value"] | None
Table = dict[str, Value]


# Octets of a client


def short(text: str | bytes) -> bytes:
    octets = text.encode() if isinstance(text, str) else text
    return bytes([len(octets)]) + octets


def long(text: str | bytes) -> bytes:
    octets = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(octets)) + octets


def u16(number: int) -> bytes:
    return struct.pack(">H", number)


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def field(value: Value) -> bytes:
    """Encode a field value with its type; bytes are a value that is encoded already."""
    match value:
        case bytes():
            return value
        case bool():
            return b"t" + bytes([value])
        case int():
            return b"I" + struct.pack(">i", value)
        case str():
            return b"S" + long(value)
        case dict():
            return b"F" + table(value)
        case None:
            return b"V"


def array(*values: Value) -> bytes:
    return b"A" + long(b"".join(map(field, values)))


def table(fields: Table | None = None) -> bytes:
    return long(b"".join(short(key) + field(value) for key, value in (fields or {}).items()))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def call(name: str, *arguments: bytes, channel: int = 1) -> bytes:
    """Encode a method from its name and its encoded arguments."""
    return frame(METHOD, channel, struct.pack(">HH", *IDS[name]) + b"".join(arguments))


# Octets of a broker


class Parted(NamedTuple):
    kind: int
    channel: int
    payload: bytes


def part(octets: bytes) -> Parted | None:
    """Part the frame that is first in the octets; None if it is incomplete."""
    if len(octets) < 7:
        return None
    kind, channel, size = struct.unpack_from(">BHI", octets)
    if len(octets) < size + 8:
        return None
    assert octets[size + 7] == 0xCE, octets[: size + 8]
    return Parted(kind, channel, octets[7 : size + 7])


class Peer:
    """A socket to a broker."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def write(self, octets: bytes) -> None:
        try:
            self._socket.sendall(octets)
        except (BrokenPipeError, ConnectionResetError):
            self._ended = True

    def take(self, count: int | None, patience_s: float, quiet_s: float = 0.0) -> list[bytes]:
        """Return the next frames: `count` frames, or all frames until a pause of `quiet_s`.

        The result is shorter if `patience_s` passes before.
        """
        taken: list[bytes] = []
        deadline_s = time.monotonic() + patience_s
        while count is None or len(taken) < count:
            found = self._next()
            if found is not None:
                taken.append(found)
                if found == END:
                    break
                if count is None:
                    deadline_s = time.monotonic() + quiet_s
                continue
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            self._read(left_s)
        return taken

    def _next(self) -> bytes | None:
        if self._buffer.startswith(b"AMQP") and len(self._buffer) >= len(HEADER):
            found = self._buffer[: len(HEADER)]
        elif parted := part(self._buffer):
            found = self._buffer[: len(parted.payload) + 8]
        else:
            return END if self._ended else None
        self._buffer = self._buffer[len(found) :]
        return found

    def _read(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        try:
            octets = self._socket.recv(1 << 20)
        except TimeoutError:
            return
        except ConnectionResetError:
            octets = b""
        finally:
            self._socket.settimeout(None)
        self._buffer += octets
        self._ended = not octets


# Lines of a transcript

_GENERATED = (
    (re.compile(rb"(amq\.(?:gen|ctag)-)[\w-]{22}"), rb"\1{22 generated}"),
    (re.compile(rb"(\x04timeT).{8}", re.DOTALL), rb"\1{8 of a timestamp}"),
    (re.compile(rb".(amq\.rabbitmq\.reply-to\.)[\w.=+/-]+", re.DOTALL), rb"{size}\1{generated}"),
)
_OWN_PROPERTIES = b"cluster_name", b"copyright", b"information", b"platform", b"product", b"version"
_TIMES_SHOWN = 32


def shown(octets: bytes) -> str:
    """Show octets as text without loss: printable characters as they are, long runs of one octet by their number."""
    repeated = re.compile(rb"(.)\1{%d,}" % (_TIMES_SHOWN - 1), re.DOTALL)
    octets = repeated.sub(lambda run: b"{%d times %s}" % (len(run[0]), run[1]), octets)
    return repr(octets)[2:-1].replace("\\'", "'")


def _normal_start(payload: bytes) -> bytes:
    """Replace the values of connection.start that name a product, and the sizes that depend on them."""
    (size,) = struct.unpack_from(">I", payload, 6)
    properties, rest = payload[10 : 10 + size], payload[10 + size :]
    for key in _OWN_PROPERTIES:
        before, found, after = properties.partition(short(key) + b"S")
        if found:
            (length,) = struct.unpack_from(">I", after)
            properties = before + found + b"{own text}" + after[4 + length :]
    return payload[:6] + b"{size}" + properties + rest


_HEADERS_FLAG, _BEFORE_HEADERS = 0x2000, (0x8000, 0x4000)
_FIELD_SIZES = {
    **dict.fromkeys(b"V", 0),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"lLdT", 8),
}


def _with_sorted_headers(payload: bytes) -> bytes:
    """Sort the headers of a message by their names, which RabbitMQ does and a node does not."""
    if len(payload) < 14 or not (flags := int.from_bytes(payload[12:14], "big")) & _HEADERS_FLAG:
        return payload
    at = 14
    for flag in _BEFORE_HEADERS:
        at += 1 + payload[at] if flags & flag else 0
    begin = at + 4
    end = begin + int.from_bytes(payload[at:begin], "big")
    fields: list[bytes] = []
    at = begin
    while at < end:
        stop = at + 1 + payload[at]
        size = _FIELD_SIZES.get(payload[stop])
        if size is None:  # a length of four octets comes first
            size = 4 + int.from_bytes(payload[stop + 1 : stop + 5], "big")
        fields.append(payload[at : stop + 1 + size])
        at = stop + 1 + size
    return (
        payload[:begin] + b"".join(sorted(fields, key=lambda field: field[1 : 1 + field[0]])) + payload[end:]
    )


def line(octets: bytes) -> str:
    """Show a frame without generated names and times."""
    if octets == END:
        return "end"
    if octets.startswith(b"AMQP"):
        return f"header {shown(octets)}"
    parted = part(octets)
    if parted is None:
        return f"octets {shown(octets)}"
    kind, channel, payload = parted
    if kind == METHOD and len(payload) >= 4:
        class_id, method_id = struct.unpack_from(">HH", payload)
        if (class_id, method_id) == IDS["connection.start"]:
            payload = _normal_start(payload)
        name, payload = NAMES.get((class_id, method_id), f"method {class_id}.{method_id}"), payload[4:]
    else:
        name = {CONTENT_HEADER: "content-header", BODY: "body", HEARTBEAT: "heartbeat"}.get(
            kind, f"kind {kind}"
        )
    if kind == CONTENT_HEADER:
        payload = _with_sorted_headers(payload)
    for generated, replacement in _GENERATED:
        payload = generated.sub(replacement, payload)
    return f"{channel} {name} {shown(payload)}".rstrip()


def client_lines(octets: bytes) -> list[str]:
    """Show the frames that a client sends in one piece."""
    lines: list[str] = []
    while octets:
        try:
            parted = None if octets.startswith(b"AMQP") else part(octets)
        except AssertionError:  # of a wrong end
            parted = None
        size = len(parted.payload) + 8 if parted else len(octets)
        lines.append(line(octets[:size]) if parted else f"octets {shown(octets)}")
        octets = octets[size:]
    return lines


# Exchanges


class Wait(NamedTuple):
    """Send nothing, and wait for frames of the broker."""

    seconds: float


class Other(NamedTuple):
    """Send octets on a second connection, on which a channel is open."""

    octets: bytes


Step = bytes | Wait | Other | Callable[[Sequence[bytes]], bytes]
"""An action of the client, before it waits for answers. A function makes the octets from the last frames received."""


class Exchange(NamedTuple):
    """The steps of a client, which reads the answers after each step."""

    steps: Sequence[Step]
    opened: bool = True
    """Whether the exchange begins on a connection with channel 1, and ends with connection.close."""
    started: bool = False
    """Whether the exchange begins behind connection.start."""
    closes: bool = False
    """Whether the steps close the connection themselves."""
    user: str = ADMINISTRATOR
    frame_max: int = 131_072
    channel_max: int = 2047
    heartbeat: int = 0
    capabilities: Sequence[str] = CAPABILITIES


def start_ok(
    response: str,
    mechanism: str = "PLAIN",
    locale: str = "en_US",
    capabilities: Sequence[str] = CAPABILITIES,
) -> bytes:
    properties: Table = {"capabilities": dict.fromkeys(capabilities, True)}
    return call(
        "connection.start-ok", table(properties), short(mechanism), long(response), short(locale), channel=0
    )


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    return call("connection.tune-ok", u16(channel_max), u32(frame_max), u16(heartbeat), channel=0)


def open_vhost(vhost: str = VHOST) -> bytes:
    return call("connection.open", short(vhost), short(""), b"\0", channel=0)


def open_channel(channel: int = 1) -> bytes:
    return call("channel.open", short(""), channel=channel)


CLOSE = call("connection.close", u16(200), short("bye"), u16(0), u16(0), channel=0)


def open_on(peer: Peer, exchange: Exchange) -> None:
    """Open a connection with channel 1."""
    tuned = tune_ok(exchange.channel_max, exchange.frame_max, exchange.heartbeat)
    introduced = start_ok(f"\0{exchange.user}\0{exchange.user}", capabilities=exchange.capabilities)
    for octets, answers in ((HEADER, 1), (introduced, 1), (tuned + open_vhost(), 1), (open_channel(), 1)):
        peer.write(octets)
        came = peer.take(answers, 10.0)
        assert END not in came
        assert len(came) == answers, came


class Pace(NamedTuple):
    """How long to wait for the frames of a broker."""

    patience_s: float
    quiet_s: float = 0.0


RECORDING = Pace(0.8, 0.3)
"""Without a table to compare with, a pause tells that a broker has sent everything."""
COMPARING = Pace(5.0)
SURPLUS_S = 0.05
"""Seconds to wait after an exchange for frames that must not come."""


def transcript(port: int, exchange: Exchange, expected: Sequence[str] | None = None) -> list[str]:
    """Carry out an exchange with the broker at a port and return the lines.

    With the expected lines, wait after each step for as many frames as they show; without, wait for a pause.
    """
    pace = RECORDING if expected is None else COMPARING
    counts = None if expected is None else _answer_counts(expected)
    lines: list[str] = []
    steps = [*exchange.steps, CLOSE] if exchange.opened and not exchange.closes else exchange.steps
    with Peer(port) as peer, Peer(port) as other:
        if exchange.started:
            peer.write(HEADER)
            assert len(peer.take(1, 10.0)) == 1
        if exchange.opened:
            open_on(peer, exchange)
            if any(isinstance(step, Other) for step in steps):
                open_on(other, Exchange(()))
        came: list[bytes] = []
        for number, step in enumerate(steps):
            reader, sign, patience_s = peer, "", pace.patience_s
            octets = b""
            match step:
                case bytes():
                    octets = step
                case Wait(seconds):
                    time.sleep(seconds)
                case Other(octets):
                    reader, sign = other, "other "
                case _:
                    octets = step(came)
            sent = client_lines(octets) or ["wait"]
            lines += [f"{'>>' if more else '>'} {sign}{each}" for more, each in enumerate(sent)]
            reader.write(octets)
            if counts is None:
                came = reader.take(None, patience_s, pace.quiet_s)
            else:
                came = reader.take(counts[number] if number < len(counts) else 0, patience_s)
            lines += [f"< {sign}{line(each)}" for each in came]
            if END in came:
                return lines
        lines += [f"< {line(each)}" for each in peer.take(None, SURPLUS_S)]
    return lines


def _answer_counts(lines: Sequence[str]) -> list[int]:
    """Count the broker's frames after each step of the client."""
    counts: list[int] = []
    for each in lines:
        if each.startswith("> "):
            counts.append(0)
        elif each.startswith("< "):
            counts[-1] += 1
    return counts


# The virtual host


def set_up(http_port: int) -> None:
    """Make the virtual host and the users anew, over the HTTP API of RabbitMQ or of a node."""
    everything = dict.fromkeys(("configure", "write", "read"), ".*")
    little = {"configure": "^$", "write": "^$", "read": f"^{READABLE}$"}
    ask(http_port, "DELETE", f"vhosts/{VHOST}")
    ask(http_port, "PUT", f"vhosts/{VHOST}", {})
    ask(http_port, "PUT", f"users/{READER}", {"password": READER, "tags": ""})
    ask(http_port, "PUT", f"permissions/{VHOST}/{ADMINISTRATOR}", everything)
    ask(http_port, "PUT", f"permissions/{VHOST}/{READER}", little)


def ask(http_port: int, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """Return the document in the answer to a request of the HTTP API, or None."""
    credentials = base64.b64encode(f"{ADMINISTRATOR}:{ADMINISTRATOR}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(HOST, http_port, timeout=30)
    try:
        connection.request(method, f"/api/{path}", json.dumps(body), headers)
        answer = connection.getresponse()
        status, content = answer.status, answer.read()
        assert status < 300 or (method, status) == ("DELETE", 404), (method, path, status)
        return json.loads(content) if content and status < 300 else None
    finally:
        connection.close()
