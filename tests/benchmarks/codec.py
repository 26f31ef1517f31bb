"""Measure reading and writing frames of both AMQP protocols: a part of `make bench`.

Messages of 12 bytes, of a client that sends each frame like the one before. Figures are microseconds of processor time
per message, the best of `--repeat` measurements taken in turn. A machine's speed matters less to the ratio of both
protocols, so aims are ratios.

    python tests/benchmarks/codec.py [--messages 1000] [--repeat 20]
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands, header
from pamqp import frame as pamqp_frame
from pamqp.body import ContentBody

from qq.amqp import encoding
from qq.amqp.framing import FrameReader
from qq.amqp10.composites import encode_composite
from qq.amqp10.encoding import ACCEPTED, Outgoing10, deliveries, outcome_frame
from qq.amqp10.framing import FrameReader10, StreamStage, Transfers
from qq.amqp10.performatives import AcceptedState, DispositionFrame, TransferFrame
from qq.amqp10.sections import MessageHeader, MessageProperties
from qq.amqp10.values import Described, ULong, encode
from qq.stored.publishing10 import PublishedSections

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = b"x" * 12
FIRST_ID = 100_000
"""Ids of four octets, which most ids are."""
HEAD = encode_composite(MessageHeader(durable=True, priority=1))


class Figure(NamedTuple):
    """A piece of work that both protocols do, and its times."""

    name: str
    amqp091: Callable[[], Any]
    amqp10: Callable[[], Any]
    ratio_max: float


def frame(body: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 1) + body


def bare(message_id: str | None) -> bytes:
    properties = encode_composite(MessageProperties(message_id)) if message_id else b""
    return properties + encode(Described(ULong(0x75), BODY))


def transfers(count: int, *, with_ids: bool) -> bytes:
    return b"".join(
        frame(
            encode_composite(TransferFrame(0, FIRST_ID + i, struct.pack(">Q", i), 0, settled=False))
            + HEAD
            + bare(f"message-{FIRST_ID + i}" if with_ids else None)
        )
        for i in range(count)
    )


def stored(message_id: str | None) -> bytes:
    properties = commands.Basic.Properties(delivery_mode=2, message_id=message_id)
    content_header = header.ContentHeader(0, len(BODY), properties)
    return pamqp_frame.marshal(content_header, 1) + pamqp_frame.marshal(ContentBody(BODY), 1)


def publishes(count: int, *, with_ids: bool) -> bytes:
    publish = encoding.encode(1, commands.Basic.Publish(exchange="", routing_key="queue"))
    return b"".join(publish + stored(f"message-{FIRST_ID + i}" if with_ids else None) for i in range(count))


def read_091(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    while reader.has_more:
        reader.feed(b"")


def read_10(data: bytes) -> None:
    reader, published = FrameReader10(), PublishedSections("guest")
    reader.stage, reader.stepwise = StreamStage.AMQP, False
    events = reader.feed(data)
    while reader.has_more:
        events += reader.feed(b"")
    for event in events:
        if type(event) is Transfers:
            list(published.group(event.messages))


def figures(count: int) -> list[Figure]:
    alike_091, alike_10 = publishes(count, with_ids=False), transfers(count, with_ids=False)
    ids_091, ids_10 = publishes(count, with_ids=True), transfers(count, with_ids=True)
    messages = [stored(None)] * count
    bodies = [bare(None)] * count
    link = Outgoing10(1, 0, is_settled=False, frame_max=131072)
    acks = b"".join(encoding.ack_frame(1, FIRST_ID + i, multiple=False) for i in range(count))
    dispositions = b"".join(
        frame(encode_composite(DispositionFrame(True, FIRST_ID + i, None, True, AcceptedState())))
        for i in range(count)
    )
    tags = range(FIRST_ID, FIRST_ID + count)
    return [
        Figure("read a publish", lambda: read_091(alike_091), lambda: read_10(alike_10), 4),
        Figure("read a publish with its own id", lambda: read_091(ids_091), lambda: read_10(ids_10), 1),
        Figure(
            "write a delivery",
            lambda: encoding.deliveries(1, "consumer", 1, False, "", "queue", messages, []),
            lambda: deliveries(link, FIRST_ID, HEAD, bodies, []),
            3,
        ),
        Figure("read a settlement", lambda: read_091(acks), lambda: read_10(dispositions), 3),
        Figure(
            "write a confirm",
            lambda: [encoding.ack_frame(1, tag, multiple=False) for tag in tags],
            lambda: [outcome_frame(1, tag, tag, ACCEPTED) for tag in tags],
            2,
        ),
    ]


def microseconds(work: Callable[[], Any], count: int) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="codec.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1000, help="messages of a measurement")
    parser.add_argument("--repeat", type=int, default=20, help="measurements, of which the best counts")
    options = parser.parse_args()
    print(
        "| microseconds per message | AMQP 0-9-1 | AMQP 1.0 | ratio | aim |\n| --- | --- | --- | --- | --- |"
    )
    is_missed = False
    for figure in figures(options.messages):
        best_091 = best_10 = float("inf")
        for _ in range(options.repeat):
            best_091 = min(best_091, microseconds(figure.amqp091, options.messages))
            best_10 = min(best_10, microseconds(figure.amqp10, options.messages))
        ratio = best_10 / best_091
        is_missed |= ratio > figure.ratio_max
        print(f"| {figure.name} | {best_091:.2f} | {best_10:.2f} | {ratio:.1f} | ≤ {figure.ratio_max} |")
    sys.exit(is_missed)


if __name__ == "__main__":
    main()
