"""Answers do not depend on the division into batches: each publish has a single, true answer.

Batches are so small that most runs are divided, and the story applies them. Publishers pipeline to queues that refuse
by number or by octets, to several at once, to headers exchanges, to no queue. Some number their messages and repeat
them, also over a new connection; transactions and acknowledgements go between.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import settings
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from qq.machine.handlers import cost_estimate
from qq.sessions import batch, lanes, submissions
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, marshal, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Basic, Channel, Confirm, Connection, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
    commands.Tx,
)
REFUSES = {"x-overflow": "reject-publish"}
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "few": {"x-max-length": 12, **REFUSES},
    "small": {"x-max-length-bytes": 900, **REFUSES},
    "classic": {"x-queue-type": "classic", "x-max-length": 12, "x-overflow": "reject-publish-dlx"},
    "levels": {"x-queue-type": "classic", "x-max-priority": 3, "x-max-length": 15, **REFUSES},
}
CONSUMED = {2: "few", 3: "small"}
"""Queues with a consumer, by its channel; the remaining queues are read with get."""


class Way(NamedTuple):
    exchange: str
    key: str
    """For amq.headers, the value of a header."""
    targets: Sequence[str]


WAYS = [
    *[Way("", name, [name]) for name in QUEUES],
    Way("amq.fanout", "any", ["plain", "few"]),
    Way("amq.topic", "a.b", ["plain", "small", "classic"]),
    Way("amq.headers", "1", ["small"]),
    Way("amq.headers", "2", ["few", "levels"]),
    Way("amq.headers", "3", []),
    Way("", "nobody", []),
    Way("amq.direct", "nobody", []),
]
BY_HEADERS = [way for way in WAYS if way.exchange == "amq.headers"]
CONFIRMING, TRANSACTING = (1, 2), 3
"""Channels of each connection that breaks."""


class Message(NamedTuple):
    body: bytes
    way: Way
    mandatory: bool
    number: int
    """Its `x-publish-seq`; 0 without it."""

    def frames(self, channel: int, publisher: str) -> bytes:
        exchange, key, _ = self.way
        by_headers = exchange == "amq.headers"
        headers: dict[str, str | int] = {"to": key} if by_headers else {}
        if self.number:
            headers |= {"x-publisher-id": publisher, "x-publish-seq": self.number}
        routing_key = "" if by_headers else key
        return publish(
            channel,
            routing_key,
            self.body,
            exchange=exchange,
            mandatory=self.mandatory,
            properties=properties(headers),
        )


def properties(headers: dict[str, str | int]) -> bytes:
    if not headers:
        return b"\0\0"
    table = b""
    for name, value in headers.items():
        table += bytes([len(name)]) + name.encode()
        if isinstance(value, str):
            table += b"S" + len(value).to_bytes(4, "big") + value.encode()
        else:
            table += b"l" + value.to_bytes(8, "big")
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


@dataclass(eq=False)
class Publisher:
    """A channel in confirm mode, with its answers."""

    client: RawClient
    channel: int
    name: str
    last_number: int = 0
    sent: list[Message] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    """Answers to the first sent messages: whether each was confirmed."""
    returned: list[bytes] = field(default_factory=list)

    def answer_received(self, tag: int, *, accepted: bool, multiple: bool) -> None:
        assert len(self.answers) < tag <= len(self.sent)
        assert multiple or tag == len(self.answers) + 1
        for message in self.sent[len(self.answers) : tag]:
            if message.mandatory and not message.way.targets:
                assert accepted
                assert message.body in self.returned or message.number, "confirmed before it is returned"
        self.answers += [accepted] * (tag - len(self.answers))

    def unconfirmed(self) -> list[Message]:
        """Return the messages to repeat if the connection is lost: from the first numbered unconfirmed message on."""
        answers = [*self.answers, *[None] * (len(self.sent) - len(self.answers))]
        pairs = zip(self.sent, answers, strict=True)
        confirmed = {message.number for message, accepted in pairs if accepted}
        numbered = {message.number: message for message in self.sent if message.number}
        first = min((number for number in numbered if number not in confirmed), default=0)
        return [numbered[number] for number in sorted(numbered) if first and number >= first]


class Story:
    """Clients of a broker, and the outcome of their actions."""

    def __init__(self, broker: LoneBroker, rng: random.Random, clients: ExitStack) -> None:
        self.broker, self.rng, self._clients = broker, rng, clients
        self.publishers: list[Publisher] = []
        self.lost: list[Publisher] = []
        self.committed: list[Message] = []
        self.came: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        """Messages out of each queue, in order."""
        self._count = 0
        self._unacked: list[tuple[int, int]] = []
        self._admin = self._connect()
        self._admin.open_channel(1)
        for name, arguments in QUEUES.items():
            self._admin.call(1, Queue.Declare(queue=name, durable=True, arguments=arguments), Queue.DeclareOk)
        for exchange, key, targets in WAYS:
            arguments = {"to": key} if exchange == "amq.headers" else {}
            for queue in targets if exchange else ():
                bind = Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments)
                self._admin.call(1, bind, Queue.BindOk)
        self._consuming = self._connect()
        self._add_publisher(self._consuming, 1, "consuming")
        for channel, queue in CONSUMED.items():
            self._consuming.open_channel(channel)
            self._consuming.call(channel, Basic.Qos(prefetch_count=3), Basic.QosOk)
            consume = Basic.Consume(queue=queue, consumer_tag=queue)
            self._consuming.call(channel, consume, Basic.ConsumeOk)
        for number in range(2):
            self._connect_publishers([f"p{number}-{channel}" for channel in CONFIRMING])

    def _connect(self) -> RawClient:
        return self._clients.enter_context(RawClient(self.broker.amqp_port))

    def _add_publisher(self, client: RawClient, channel: int, name: str) -> Publisher:
        client.open_channel(channel)
        client.call(channel, Confirm.Select(), Confirm.SelectOk)
        publisher = Publisher(client, channel, name)
        self.publishers.append(publisher)
        return publisher

    def _connect_publishers(self, names: Sequence[str]) -> list[Publisher]:
        client = self._connect()
        publishers = [
            self._add_publisher(client, channel, name)
            for channel, name in zip(CONFIRMING, names, strict=True)
        ]
        client.open_channel(TRANSACTING)
        client.call(TRANSACTING, Tx.Select(), Tx.SelectOk)
        return publishers

    # Actions

    def publish(self) -> None:
        publisher = self.rng.choice(self.publishers)
        way, mandatory, is_numbered = self.rng.choice(WAYS), self.rng.random() < 0.3, self.rng.random() < 0.4
        messages: list[Message] = []
        for _ in range(self.rng.choice([1, 3, 20, 60])):
            other = self.rng.choice(BY_HEADERS if way in BY_HEADERS else WAYS)
            if is_numbered:
                publisher.last_number += self.rng.choice([1, 1, 1, 2])
            number = publisher.last_number if is_numbered else 0
            is_alike = self.rng.random() < 0.8
            messages.append(self._message(publisher.name, way if is_alike else other, mandatory, number))
        self._send(publisher, messages)

    def publish_again(self) -> None:
        """Repeat numbered messages from a random place on."""
        publisher = self.rng.choice(self.publishers)
        numbered = {message.number: message for message in publisher.sent if message.number}
        if numbered:
            first = self.rng.choice(list(numbered))
            self._send(publisher, [numbered[number] for number in sorted(numbered) if number >= first])

    def _message(self, name: str, way: Way, mandatory: bool, number: int) -> Message:
        self._count += 1
        body = b"%s/%d/" % (name.encode(), self._count) + bytes(self.rng.choice([0, 0, 10, 100]))
        return Message(body, way, mandatory, number)

    def _send(self, publisher: Publisher, messages: Sequence[Message]) -> None:
        publisher.sent += messages
        self._write(
            publisher.client,
            b"".join(message.frames(publisher.channel, publisher.name) for message in messages),
        )

    def _write(self, client: RawClient, data: bytes) -> None:
        size = self.rng.choice([200, 1000, 1 << 20])
        for at in range(0, len(data), size):
            client.write(data[at : at + size])

    def transact(self) -> None:
        client = self.rng.choice([each for each in self.publishers if each.name != "consuming"]).client
        messages = [
            self._message("tx", self.rng.choice(WAYS), mandatory=False, number=0)
            for _ in range(self.rng.choice([1, 5, 30]))
        ]
        data = b"".join(message.frames(TRANSACTING, "") for message in messages)
        self._write(client, data + marshal(TRANSACTING, Tx.Commit()))
        self.release()
        answer = self._read_until(client, Tx.CommitOk, Channel.Close)
        if isinstance(answer, Tx.CommitOk):
            self.committed += messages
            return
        assert "partial tx completion" in answer.reply_text
        client.send(TRANSACTING, Channel.CloseOk(), Channel.Open(), Tx.Select())
        self._read_until(client, Tx.SelectOk)

    def acknowledge(self) -> None:
        """Acknowledge some deliveries, one by one or together, or publish a message between."""
        with suppress(TimeoutError):
            while True:
                self._read(self._consuming, timeout_s=0.005)
        acks = b""
        while self._unacked and self.rng.random() < 0.9:
            channel, tag = self._unacked.pop(0)
            acks += marshal(channel, Basic.Ack(tag))
        self._write(self._consuming, acks)

    def get(self) -> None:
        self.release()
        queue = self.rng.choice([name for name in QUEUES if name not in CONSUMED.values()])
        for _ in range(self.rng.choice([1, 5, 20])):
            if not self._get(queue):
                return

    def _get(self, queue: str) -> bool:
        self._admin.send(1, Basic.Get(queue=queue, no_ack=True))
        _, answer = self._admin.receive()
        if isinstance(answer, Basic.GetEmpty):
            return False
        assert isinstance(answer, Basic.GetOk)
        self.came[queue].append(self._body(self._admin))
        return True

    def hold(self) -> None:
        self.broker.call(setattr, self.broker.group, "holding", True)

    def release(self) -> None:
        self.broker.call(self.broker.group.release)

    def break_off(self) -> None:
        """Break a connection with its pending requests; new connections replace its publishers."""
        client = self.rng.choice([each for each in self.publishers if each.name != "consuming"]).client
        if self.rng.random() < 0.5:
            client.send(0, Connection.Close(200, "bye", 0, 0))
            self._read_until(client, Connection.CloseOk)
        client.socket.close()
        lost = [each for each in self.publishers if each.client is client]
        self.lost += lost
        self.publishers = [each for each in self.publishers if each.client is not client]
        self.release()
        heirs = self._connect_publishers([each.name for each in lost])
        for heir, publisher in zip(heirs, lost, strict=True):
            heir.last_number = publisher.last_number
            self._send(heir, publisher.unconfirmed())

    # Answers

    def _read(self, client: RawClient, timeout_s: float = 10.0) -> Any:
        channel, frame = client.receive(timeout_s)
        receivers = (
            publisher
            for publisher in self.publishers
            if publisher.client is client and publisher.channel == channel
        )
        match frame:
            case Basic.Ack() | Basic.Nack():
                accepted = isinstance(frame, Basic.Ack)
                next(receivers).answer_received(
                    frame.delivery_tag, accepted=accepted, multiple=frame.multiple
                )
            case Basic.Return():
                next(receivers).returned.append(self._body(client))
            case Basic.Deliver():
                self._unacked.append((channel, frame.delivery_tag))
                self.came[frame.consumer_tag].append(self._body(client))
            case _:
                pass
        return frame

    def _read_until(self, client: RawClient, *kinds: type[Any]) -> Any:
        while not isinstance(frame := self._read(client), kinds):
            pass
        return frame

    @staticmethod
    def _body(client: RawClient) -> bytes:
        size = client.expect(ContentHeader).body_size
        body = b""
        while len(body) < size:
            body += client.expect(ContentBody).value
        return body

    def end(self) -> None:
        """Read all pending answers, and take all messages out of the queues."""
        self.release()
        for publisher in self.publishers:
            while len(publisher.answers) < len(publisher.sent):
                self._read(publisher.client)
        for channel, queue in CONSUMED.items():
            self._consuming.send(channel, Basic.Cancel(queue))
            self._read_until(self._consuming, Basic.CancelOk)
        for queue in QUEUES:
            while self._get(queue):
                pass

    # Invariants

    def check(self) -> None:
        received: dict[bytes, list[bool | None]] = {}
        messages: dict[bytes, Message] = {}
        for publisher in (*self.lost, *self.publishers):
            for place, message in enumerate(publisher.sent):
                answer = publisher.answers[place] if place < len(publisher.answers) else None
                received.setdefault(message.body, []).append(answer)
                messages[message.body] = message
        for message in self.committed:
            received[message.body] = [True]
            messages[message.body] = message
        came = {queue: Counter(bodies) for queue, bodies in self.came.items()}
        for bodies in came.values():
            assert set(bodies) <= set(messages)
        for body, answers in received.items():
            targets = messages[body].way.targets
            copies = {came[queue][body] for queue in targets}
            assert all(queue in targets or not came[queue][body] for queue in QUEUES)
            if True in answers:
                assert copies <= {1}
            elif None in answers:
                assert copies in (set(), {0}, {1})
            else:
                assert copies <= {0}
        inherited = {publisher.name for publisher in self.lost}
        for publisher in self.publishers:
            if publisher.name not in inherited:
                self._check_order(publisher)

    def _check_order(self, publisher: Publisher) -> None:
        admitted: dict[bytes, Message] = {}
        """In the order of their first confirms."""
        for message, accepted in zip(publisher.sent, publisher.answers, strict=True):
            if accepted:
                admitted.setdefault(message.body, message)
        mine = publisher.name.encode() + b"/"
        for queue, bodies in self.came.items():
            expected = [body for body, message in admitted.items() if queue in message.way.targets]
            assert [body for body in bodies if body.startswith(mine)] == expected
        # A returned message may be published again, and is returned again.
        accepted = [m for m, is_safe in zip(publisher.sent, publisher.answers, strict=True) if is_safe]
        assert publisher.returned == [m.body for m in accepted if m.mandatory and not m.way.targets]


@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(settings.default.max_examples // 5))
def test_each_publish_is_answered_once_and_truly(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    steps, size = rng.choice([40, 100, 5000]), rng.choice([1000, 5000, 1 << 20])
    for module, name, value in (
        (batch, "BATCH_STEPS_MAX", steps),
        (cost_estimate, "BATCH_STEPS_MAX", steps),
        (batch, "BATCH_BYTES_MAX", size),
        (submissions, "BATCH_BYTES_MAX", size),
        (batch, "STEP_BYTES", max(1, size // steps)),
        (submissions, "COST_AT_ONCE", steps // 2),
        (submissions, "COST_IN_FLIGHT_MAX", 4 * steps),
        (submissions, "QUANTUM", max(1, steps // 10)),
        (lanes, "AHEAD", steps),
        (cost_estimate, "PASS_STEPS_MAX", rng.choice([0, 100, 5000])),
        (cost_estimate, "CHEAP_STEPS_MAX", rng.choice([-1, 100])),
    ):
        monkeypatch.setattr(module, name, value)
    with LoneBroker() as broker, ExitStack() as clients:
        story = Story(broker, rng, clients)
        steps_of_story: list[Callable[[], None]] = [story.publish] * 8
        steps_of_story += [story.publish_again, story.acknowledge, story.release] * 2
        steps_of_story += [story.hold, story.get, story.transact]
        if seed % 2:
            steps_of_story.append(story.break_off)
        for _ in range(60):
            rng.choice(steps_of_story)()
        story.end()
        story.check()
