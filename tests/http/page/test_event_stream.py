"""Event streams of the page's views, through a real server and a real client, with a real machine."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from qq.http.app import build_app
from qq.http.base.listener import HttpLimits
from qq.http.base.login import Operator
from qq.http.page import event_stream, health_events
from qq.http.page.event_stream import Feed, Spent, ViewTurns
from qq.machine.protocol.commands import DeclareQueue, DeleteQueue
from qq.management.errors import Unavailable
from qq.management.reports.logins import LoggedIn
from qq.management.reports.members import NodeState, NodeStatus
from qq.scopes import Scopes
from tests.http.fakes import PASSWORD, MachineManagement
from tests.http.http_node import GUEST, Node, login

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    Client = TestClient[Any, Any]

LIMITS = HttpLimits(requests=8)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "INTERVAL_S", 0.01)
    monkeypatch.setattr(event_stream, "LOOK_S", 0.05)


@pytest.fixture
def node() -> Node[MachineManagement]:
    return Node(MachineManagement())


def declare(node: Node[MachineManagement], *names: str) -> None:
    node.management.make(*(DeclareQueue(0, 0, name, False, True, False, False, False, {}) for name in names))


@asynccontextmanager
async def served(node: Node[MachineManagement]) -> AsyncGenerator[Client]:
    app = build_app(node.view, node.management, CollectorRegistry(), LIMITS)
    async with TestClient(TestServer(app), timeout=ClientTimeout(20)) as client:
        yield client


async def events(answer: Any) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream without the verdicts; an empty event has no name and no data."""
    async for name, data in all_events(answer):
        if name != "health":
            yield name, data


async def all_events(answer: Any) -> AsyncIterator[tuple[str, Any]]:
    async for line in answer.content:
        match line.decode().partition(": "):
            case "event", _, name:
                data = (await answer.content.readline()).decode().partition(": ")[2]
                yield name.strip(), json.loads(data) if name.strip() in ("view", "health") else data.strip()
            case (":\n", _, _):
                yield "", None
            case _:
                pass


def work(seconds: float) -> None:
    until_s = monotonic() + seconds
    while monotonic() < until_s:
        pass


def open_feed(client: Client, query: str, user: str = "guest") -> Any:
    return client.get(f"/api/stream?{query}", headers=login(user))


def names(event: Any) -> list[str]:
    return [each["name"] for each in event["items"]]


def test_stream_sends_the_view_and_each_change(node: Node[MachineManagement]) -> None:
    declare(node, "a")

    async def story() -> list[list[str]]:
        async with served(node) as client, open_feed(client, "view=queues&columns=name") as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            event = events(answer)
            seen = [names((await anext(event))[1])]
            declare(node, "b")
            seen.append(names((await anext(event))[1]))
            return seen

    assert asyncio.run(story()) == [["a"], ["a", "b"]]


@pytest.mark.parametrize("query", ["view=queues", "view=health"])
def test_stream_sends_each_change_of_the_verdict(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(health_events, "KEPT_S", 0.0)

    async def story() -> list[tuple[str, str]]:
        async with served(node) as client, open_feed(client, query) as answer:
            event = (data async for name, data in all_events(answer) if name == "health")
            seen = [await anext(event)]
            node.view.peer = NodeStatus("n2", NodeState.FOLLOWER, "voter", disk_free_bytes=2**30)
            seen.append(await anext(event))
            assert [(each["name"], each["state"]) for each in seen[1]["nodes"]] == [
                ("n1", "leader"),
                ("n2", "follower"),
            ]
            return [(each["severity"], each["text"]) for each in seen]

    assert asyncio.run(story()) == [
        ("critical", "no majority: n2 does not answer"),
        ("warning", "not well: n1 and n2 have no link; n1 leads"),
    ]


def test_unchanged_stream_sends_only_keepalives(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "QUIET_S", 0.3)

    async def story() -> list[str]:
        async with served(node) as client, open_feed(client, "view=queues") as answer:
            event = events(answer)
            return [(await anext(event))[0] for _ in range(3)]

    assert asyncio.run(story()) == ["view", "", ""]


def test_stream_reports_a_deleted_and_recreated_queue(node: Node[MachineManagement]) -> None:
    declare(node, "a")

    async def story() -> list[str]:
        async with served(node) as client, open_feed(client, "view=queue&vhost=%2F&name=a") as answer:
            event = events(answer)
            seen = [(await anext(event))[0]]
            node.management.make(DeleteQueue(0, 0, "a", False, False))
            seen.append((await anext(event))[0])
            declare(node, "a")
            seen.append((await anext(event))[0])
            return seen

    assert asyncio.run(story()) == ["view", "gone", "view"]


def test_unavailable_view_is_not_reported_as_missing(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(node, "a")

    async def unavailable() -> None:
        raise Unavailable("no majority")

    async def story() -> list[tuple[str, str]]:
        async with served(node) as client, open_feed(client, "view=queue&vhost=%2F&name=a") as answer:
            event = events(answer)
            await anext(event)
            monkeypatch.setattr(node.management.changes, "wait_applied", unavailable)
            node.management.make(DeleteQueue(0, 0, "a", False, False))
            return [await anext(event)]

    assert asyncio.run(story()) == [("unavailable", "no majority")]


def test_failed_view_is_retried(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    declare(node, "a")

    async def failing() -> None:
        raise ZeroDivisionError

    async def story() -> list[str]:
        async with served(node) as client, open_feed(client, "view=queue&vhost=%2F&name=a") as answer:
            event = events(answer)
            seen = [(await anext(event))[0]]
            with monkeypatch.context() as failure:
                failure.setattr(node.management.changes, "wait_applied", failing)
                node.management.make(DeleteQueue(0, 0, "a", False, False))
                seen.append((await anext(event))[1])
                await asyncio.sleep(5 * event_stream.INTERVAL_S)
            declare(node, "a")
            return [*seen, (await anext(event))[0]]

    assert asyncio.run(story()) == ["view", event_stream.FAILED.decode(), "view"]
    assert [record.message for record in caplog.records] == ["a view of the page cannot be made"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("view=nothing", 400),
        ("view=queues&page=0", 400),
        ("view=queues&vhost=nowhere", 404),
        ("view=queue&vhost=%2F&name=nothing", 404),
        ("view=queue&name=nothing", 400),
    ],
)
def test_a_wrong_stream_is_refused_at_once(node: Node[MachineManagement], query: str, status: int) -> None:
    assert node.api(f"stream?{query}").status == status


@pytest.mark.parametrize(
    "view", ["overview", "members", "queues", "dead-letters", "exchanges", "connections", "channels"]
)
def test_each_view_is_bounded_json(node: Node[MachineManagement], view: str) -> None:
    declare(node, *(f"q{number:03}" for number in range(300)))

    async def story() -> Any:
        async with served(node) as client, open_feed(client, f"view={view}") as answer:
            return (await anext(events(answer)))[1]

    event = asyncio.run(story())
    assert len(event.get("items", [])) <= 100
    assert len(json.dumps(event)) < 300_000


def test_a_stream_shows_no_more_than_the_lists_do(node: Node[MachineManagement]) -> None:
    declare(node, "a")
    node.add_user("mia", "management")
    node.add_user("mo", "monitoring")

    async def seen(user: str, query: str) -> Any:
        async with served(node) as client, open_feed(client, query, user) as answer:
            return (await anext(events(answer)))[1] if answer.status == 200 else answer.status

    assert names(asyncio.run(seen("mia", "view=queues"))) == []
    assert asyncio.run(seen("mia", "view=queues&vhost=%2F")) == 404
    assert asyncio.run(seen("mia", "view=queue&vhost=%2F&name=a")) == 404
    assert asyncio.run(seen("mia", "view=members")) == 401
    assert "alarms" not in asyncio.run(seen("mia", "view=overview"))
    assert asyncio.run(seen("mo", "view=overview"))["alarms"] == []
    assert node.request("/api/stream?view=queues").status == 401


def test_streams_are_limited_and_take_no_request_slots(
    node: Node[MachineManagement],
) -> None:
    """A user with many of them leaves room for further users."""
    node.add_user("eve", "administrator")

    async def story() -> tuple[list[int], list[int]]:
        async with served(node) as client:
            streams = [await open_feed(client, "view=queues", "eve") for _ in range(3)]
            streams += [await open_feed(client, "view=queues") for _ in range(2)]
            requests = [await client.get("/api/whoami", headers=GUEST) for _ in range(8)]
            for answer in streams:
                answer.close()
            await asyncio.sleep(0.3)
            streams.append(await open_feed(client, "view=queues"))
            return [each.status for each in streams], [each.status for each in requests]

    assert asyncio.run(story()) == ([200, 200, 503, 200, 503, 200], [200] * 8)


def test_view_of_several_streams_is_rendered_once(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    rows = node.management.queues.rows_by_name

    async def counted(is_seen: Callable[[str], bool]) -> Any:
        nonlocal made
        made += 1
        return await rows(is_seen)

    monkeypatch.setattr(node.management.queues, "rows_by_name", counted)
    monkeypatch.setattr(event_stream, "INTERVAL_S", 60)

    async def story() -> None:
        async with served(node) as client:
            for _ in range(2):
                answer = await open_feed(client, "view=queues")
                await anext(events(answer))

    asyncio.run(story())
    assert made == 1


def test_stream_that_is_not_read_is_dropped(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "READ_WAIT_S", 0.2)
    texts = (bytes([65 + number % 26]) * 3_000_000 for number in range(1000))

    async def view(_: web.Request) -> bytes:
        return next(texts)

    async def may_see(_: web.Request) -> bool:
        return True

    async def story() -> int:
        endpoint = event_stream.LiveEndpoint({"big": view}, 4, may_see, lambda: b"{}")
        app = web.Application()
        app.add_routes(endpoint.routes())
        monkeypatch.setattr(event_stream, "login_of", lambda _: Operator("guest", frozenset(), None))
        monkeypatch.setattr(event_stream, "_what", lambda request: ("ann", request.query_string))
        monkeypatch.setattr(event_stream, "_length_s", lambda _: 60.0)
        async with TestServer(app) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port, limit=2**16)
            writer.write(b"GET /api/stream?view=big HTTP/1.1\r\nHost: x\r\n\r\n")
            async with TestClient(server) as client, client.get("/api/stream?view=big") as answer:
                count = 0
                async for part in answer.content.iter_any():
                    count += part.count(b"event: view")
                    if count > 5 and endpoint._streams.taken == 1:
                        break
            await reader.read(1)
            writer.close()
            return count

    assert asyncio.run(story()) > 5


def test_stream_ends_so_that_permissions_are_checked_again(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STREAM_S", 0.2)

    async def story() -> int:
        async with served(node) as client, open_feed(client, "view=queues") as answer:
            return len([event async for event in events(answer)])

    assert asyncio.run(story()) == 1


def test_stream_of_a_token_ends_when_the_token_expires(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STREAM_S", 0.1)
    expires_s = time() + 1.0

    async def authenticate(*_: object) -> LoggedIn:
        return LoggedIn("ann", ["administrator"], Scopes([]), expires_s)

    monkeypatch.setattr(node.view, "authenticate", authenticate)

    async def story() -> None:
        async with served(node) as client, open_feed(client, "view=queues") as answer:
            assert [event async for event in events(answer)]

    asyncio.run(story())
    assert -0.5 < time() - expires_s < 1.0


def test_stream_ends_with_its_session(node: Node[MachineManagement]) -> None:
    async def story() -> list[bool]:
        form = {"username": "guest", "password": PASSWORD}
        async with served(node) as client, client.post("/api/login", data=form) as begun:
            csrf = {"X-CSRF-Token": (await begun.json())["csrf_token"]}
            [cookie] = [f"{each.key}={each.value}" for each in begun.cookies.values()]
            options = {"headers": {"Cookie": cookie}}
            async with client.get("/api/stream?view=queues", **options) as answer:
                await anext(events(answer))
                left = asyncio.ensure_future(answer.content.read())
                await asyncio.sleep(0.2)
                ends = [left.done()]
                async with client.delete("/api/session", headers=options["headers"] | csrf):
                    await left  # else it would take longer than a test may
                return [*ends, left.done()]

    assert asyncio.run(story()) == [False, True]


async def changes_within(seconds: float, feed: Feed) -> int:
    """How many changes of a view are told in this time."""
    event, seen, until_s = await feed.first(), 0, monotonic() + seconds
    while monotonic() < until_s:
        event, seen = await feed.newer_than(event), seen + 1
    return seen


def test_rendering_takes_a_limited_share_of_time() -> None:
    busy_s = 0.0

    async def make() -> bytes:
        nonlocal busy_s
        await asyncio.sleep(0)
        work(0.01)
        busy_s += 0.01
        return str(busy_s).encode()

    async def story() -> float:
        turns = ViewTurns()
        feeds = [Feed(make, turns, "ann") for _ in range(20)]
        for feed in feeds:
            await feed.first()
        nonlocal busy_s
        busy_s, began_s = 0.0, monotonic()
        await asyncio.sleep(1.5)
        for feed in feeds:
            await feed.close()
        return busy_s / (monotonic() - began_s)

    assert 0.03 < asyncio.run(story()) < 0.15


def test_expensive_views_of_a_user_do_not_delay_a_second_user() -> None:
    async def dear() -> bytes:
        await asyncio.sleep(0)
        work(0.02)
        return str(monotonic()).encode()

    async def cheap() -> bytes:
        return str(monotonic()).encode()

    async def story() -> int:
        turns = ViewTurns()
        many, one = [Feed(dear, turns, "eve") for _ in range(20)], Feed(cheap, turns, "ann")
        for feed in many:
            await feed.first()
        seen = await changes_within(1, one)
        for feed in (*many, one):
            await feed.close()
        return seen

    assert asyncio.run(story()) > 10


def test_view_that_waits_for_a_peer_does_not_delay_a_fast_view() -> None:
    async def wait() -> bytes:
        await asyncio.sleep(0.5)
        return b""

    async def quick() -> bytes:
        return str(monotonic()).encode()

    async def story() -> int:
        turns = ViewTurns()
        slow, fast = [Feed(wait, turns, "ann") for _ in range(3)], Feed(quick, turns, "ann")
        for feed in slow:
            feed._task = asyncio.create_task(feed._go_on(event_stream.NumberedEvent(0, b"")))
        seen = await changes_within(0.4, fast)
        for feed in (*slow, fast):
            await feed.close()
        return seen

    assert asyncio.run(story()) > 5


def test_time_of_a_cancelled_view_is_counted() -> None:
    async def make() -> bytes:
        work(0.02)
        await asyncio.sleep(60)
        return b""

    async def story() -> float:
        spent = Spent(make())

        async def wait() -> bytes:
            return await spent

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return spent.seconds

    assert 0.02 <= asyncio.run(story()) < 0.05
