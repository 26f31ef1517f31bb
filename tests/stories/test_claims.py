"""Claims of a connection are free for the next connection, at a second node, as soon as the client gets the close."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pika
import pika.exceptions
import pytest

from qq.testing import LocalCluster
from tests.stories.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

USER = "claimant"
FREE_MAX_S = 5.0
"""Measured: 0.2 s after a kill, 0.02 s after any other end. The bound is for a busy machine."""
LOOK_S = 0.3
PAUSED_S = 3.0
"""Longer than the cluster takes to give up a dead node."""

Client = pika.BlockingConnection
Connect = Callable[[], Client]


class Row(NamedTuple):
    """A claim of a connection."""

    hold: Callable[[Client], object]
    claim: Callable[[Connect], object]
    """Make the claim at a second connection, which stays open. Raises a refusal, or returns False in vain."""
    limit: tuple[str, str] | None = None
    """The limit that the claim reaches: that of a "vhost" or a "user", and its name."""
    is_refused: bool = True
    """Whether the broker refuses the claim: then the first attempt after the end must succeed."""


def declared(
    client: Client, queue: str, **settings: object
) -> pika.adapters.blocking_connection.BlockingChannel:
    channel = client.channel()
    channel.queue_declare(queue, **settings)  # pyright: ignore[reportArgumentType]
    return channel


def consumes(client: Client, queue: str, *, exclusive: bool = False) -> None:
    client.channel().basic_consume(queue, lambda *_: None, exclusive=exclusive)


def leaves(client: Client, queue: str) -> None:
    """Take the message of the queue, and do not acknowledge it."""
    assert client.channel().basic_get(queue)[0] is not None


def gets(connect: Connect, queue: str) -> bool:
    return connect().channel().basic_get(queue)[0] is not None


def is_active(connect: Connect) -> bool:
    """Whether a new consumer gets a message of the queue."""
    channel = connect().channel()
    channel.basic_publish("", "single", b"")
    return next(channel.consume("single", inactivity_timeout=LOOK_S))[0] is not None


ROWS = {
    "exclusive queue": Row(
        lambda client: declared(client, "mine", exclusive=True),
        lambda connect: declared(connect(), "mine", exclusive=True),
    ),
    "queue with its only consumer": Row(
        lambda client: declared(client, "brief", auto_delete=True).basic_consume("brief", lambda *_: None),
        lambda connect: declared(connect(), "brief", durable=True),
    ),
    "exclusive consumer": Row(
        lambda client: consumes(client, "shared", exclusive=True),
        lambda connect: consumes(connect(), "shared"),
    ),
    "consumer that bars an exclusive one": Row(
        lambda client: consumes(client, "shared"),
        lambda connect: consumes(connect(), "shared", exclusive=True),
    ),
    "consumer that bars a deletion": Row(
        lambda client: consumes(client, "shared"),
        lambda connect: connect().channel().queue_delete("shared", if_unused=True),
    ),
    "connection of a virtual host": Row(
        lambda _: None, lambda connect: connect(), limit=("vhost", "max-connections")
    ),
    "queue of a virtual host": Row(
        lambda client: declared(client, "", exclusive=True),
        lambda connect: declared(connect(), "", exclusive=True),
        limit=("vhost", "max-queues"),
    ),
    "connection of a user": Row(lambda _: None, lambda connect: connect(), limit=("user", "max-connections")),
    "channel of a user": Row(
        # The node sends channel.open-ok before the log has the channel, and the declaration's answer after it.
        lambda client: client.channel().exchange_declare("amq.fanout", passive=True),
        lambda connect: connect().channel().exchange_declare("amq.fanout", passive=True),
        limit=("user", "max-channels"),
    ),
    "unacknowledged message": Row(
        lambda client: leaves(client, "full"), lambda connect: gets(connect, "full"), is_refused=False
    ),
    "active consumer": Row(lambda client: consumes(client, "single"), is_active, is_refused=False),
}


class Holding:
    """A row in a virtual host of its own, with a user of its own, and a client that has the claim."""

    def __init__(
        self, number: int, name: str, row: Row, held_at: ClusterNode, claimed_at: ClusterNode
    ) -> None:
        self.name = name
        self._row = row
        self._vhost = self._user = f"{USER}{number}"
        self._claimed_at = claimed_at
        self._clients: list[Client] = []
        self._lock = threading.Lock()
        self._prepare()
        self.holder = self._connect(held_at)

    def hold(self) -> None:
        """Make the claim, and assert that a second client is refused."""
        self._row.hold(self.holder)
        assert not self.is_claimed(), f"{self.name} is not held"
        self._close_all_but_holder()

    def _prepare(self) -> None:
        port = self._claimed_at.http_port
        request(port, "DELETE", f"vhosts/{self._vhost}")
        request(port, "PUT", f"vhosts/{self._vhost}", {})
        request(port, "PUT", f"users/{self._user}", {"password": USER, "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        request(port, "PUT", f"permissions/{self._vhost}/{self._user}", everything)
        if self._row.limit is None:
            client = self._connect(self._claimed_at)
            declared(client, "shared", durable=True)
            declared(client, "single", durable=True, arguments={"x-single-active-consumer": True})
            channel = declared(client, "full", durable=True)
            channel.confirm_delivery()
            channel.basic_publish("", "full", b"")
            client.close()
        else:
            kind, name = self._row.limit
            request(port, "PUT", f"{kind}-limits/{self._vhost}/{name}", {"value": 1})

    def _connect(self, node: ClusterNode) -> Client:
        url = f"amqp://{self._user}:{USER}@127.0.0.1:{node.amqp_port}/{self._vhost}?heartbeat=0&socket_timeout=5"
        client = Client(pika.URLParameters(url))
        with self._lock:
            self._clients.append(client)
        return client

    def is_claimed(self) -> bool:
        """Return whether a second client gets the claim."""
        try:
            return self._row.claim(lambda: self._connect(self._claimed_at)) is not False
        except pika.exceptions.AMQPError as error:
            self.refusal = error
            return False

    def claimed_after(self, end: Callable[[Client], None]) -> float:
        """Let the holder's connection end, and ask for its claim at once. Returns how many seconds that took."""
        end(self.holder)
        began_s = time.monotonic()
        if self._row.is_refused:
            assert self.is_claimed(), f"{self.name} is refused: {self.refusal!r}"
        while not self._row.is_refused and not self.is_claimed():
            assert time.monotonic() < began_s + FREE_MAX_S, f"{self.name} is held"
        return time.monotonic() - began_s

    def _close_all_but_holder(self) -> None:
        for client in self._clients:
            if client is not self.holder:
                with suppress(pika.exceptions.AMQPError):
                    client.close()

    def close(self) -> None:
        self._close_all_but_holder()
        with suppress(pika.exceptions.AMQPError):
            self.holder.close()


def request(port: int, method: str, path: str, body: object = None) -> None:
    request = Request(f"http://127.0.0.1:{port}/api/{path}", method=method, data=json.dumps(body).encode())
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    try:
        urlopen(request, timeout=20).close()
    except HTTPError as error:
        if method != "DELETE":  # the first deletion finds no virtual host
            raise AssertionError(f"{method} {path}: {error.read()!r}") from None


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalCluster]:
    with LocalCluster(3, tmp_path_factory.mktemp("cluster"), {"limits": {"drain_grace_s": 0.1}}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    shared_cluster.restore()
    return shared_cluster


@pytest.fixture
def workers() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(ROWS) + 1) as pool:
        yield pool


def loses_connection(client: Client) -> None:
    """Wait until the client hears that its connection is gone."""
    with suppress(pika.exceptions.AMQPError, OSError):
        while client.is_open:
            client.process_data_events(FREE_MAX_S)  # pyright: ignore[reportArgumentType]


def check_rows(
    workers: ThreadPoolExecutor,
    held_at: ClusterNode,
    claimed_at: ClusterNode,
    end: Callable[[Client], None],
    end_node: Callable[[], object] = lambda: None,
) -> None:
    """Make each claim at a node, end the connection, and make the claim at a second node when the holder gets the
    close.
    """

    def holding(number: int, name: str) -> Holding:
        return Holding(number, name, ROWS[name], held_at, claimed_at)

    holdings = list(workers.map(holding, range(len(ROWS)), ROWS))
    try:
        list(workers.map(Holding.hold, holdings))
        claims = [workers.submit(each.claimed_after, end) for each in holdings]
        ended = workers.submit(end_node)
        try:
            for each, claim in zip(holdings, claims, strict=True):
                print(f"{each.name}: free {claim.result():.2f} s after the end")
        finally:
            ended.result()
    finally:
        for each in holdings:
            each.close()


@pytest.mark.parametrize(
    "leads", [pytest.param(True, id="leader"), pytest.param(False, id="follower", marks=pytest.mark.long)]
)
def test_claims_are_free_when_the_node_is_killed(
    cluster: LocalCluster, workers: ThreadPoolExecutor, *, leads: bool
) -> None:
    held_at = cluster.leader() if leads else cluster.followers()[0]
    claimed_at = cluster.followers()[-1]
    check_rows(workers, held_at, claimed_at, loses_connection, held_at.kill)


@pytest.mark.parametrize(
    "leads", [pytest.param(True, id="leader", marks=pytest.mark.long), pytest.param(False, id="follower")]
)
def test_claims_are_free_when_the_node_is_stopped(
    cluster: LocalCluster, workers: ThreadPoolExecutor, *, leads: bool
) -> None:
    held_at = cluster.leader() if leads else cluster.followers()[0]
    claimed_at = cluster.followers()[-1]
    check_rows(workers, held_at, claimed_at, loses_connection, held_at.stop)


def test_claims_are_free_when_the_client_has_closed(
    cluster: LocalCluster, workers: ThreadPoolExecutor
) -> None:
    held_at, claimed_at = cluster.followers()
    check_rows(workers, held_at, claimed_at, pika.BlockingConnection.close)


@pytest.mark.long
def test_claims_are_free_when_the_node_is_drained(cluster: LocalCluster, workers: ThreadPoolExecutor) -> None:
    held_at, claimed_at = cluster.followers()
    try:
        check_rows(
            workers,
            held_at,
            claimed_at,
            loses_connection,
            lambda: run_command(held_at, "drain", held_at.name),
        )
    finally:
        run_command(claimed_at, "revive", held_at.name)


def test_a_paused_node_keeps_the_claims_of_its_clients(cluster: LocalCluster) -> None:
    held_at, claimed_at = cluster.followers()
    held = Holding(len(ROWS), "exclusive queue", ROWS["exclusive queue"], held_at, claimed_at)
    held.hold()
    held_at.pause()
    try:
        time.sleep(PAUSED_S)
        assert not held.is_claimed()
    finally:
        held_at.resume()
    declared(held.holder, "mine", exclusive=True)
    held.close()
