"""Lists: pages, names, orders and columns; long lists must not delay further requests."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from time import thread_time
from typing import TYPE_CHECKING, Any

import pytest

from qq.http.documents import lists
from qq.http.documents.parsing import read_queue
from qq.machine.protocol.commands import (
    BindQueue,
    Connect,
    DeleteQueue,
    DeleteVhost,
    PutVhost,
    SetPermissions,
)
from qq.management import time_slices
from qq.management.objects import sorted_objects
from qq.management.reports.clients import ChannelHead
from qq.management.reports.queues import ConsumerStatus
from tests.http.fakes import FakeManagement, MachineManagement
from tests.http.http_node import GUEST, Client, Node, answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAMES = ["Beta", "alpha", "gamma.1", "gamma.2"]


@pytest.fixture
def node() -> Node[MachineManagement]:
    management = MachineManagement()
    management.make(*[read_queue(name, {"arguments": {"x-max-length": len(name)}}) for name in NAMES])
    return Node(management)


def names(answer: Any) -> list[str]:
    return [each["name"] for each in answer.json]


def test_page_gives_its_counts(node: Node[MachineManagement]) -> None:
    page = node.api("queues?page=2&page_size=3").json
    [item] = page.pop("items")
    assert item == node.api("queues").json[3]
    assert page == {
        "total_count": 4,
        "filtered_count": 4,
        "item_count": 1,
        "page": 2,
        "page_size": 3,
        "page_count": 2,
    }
    page = node.api("queues?page=1&name=GAMMA&page_size=1").json
    assert (page["total_count"], page["filtered_count"], page["page_count"]) == (4, 2, 2)
    assert (page["page_size"], names_of(page)) == (1, ["gamma.1"])
    assert node.api("queues?page=1").json["page_size"] == 100


def names_of(page: dict[str, Any]) -> list[str]:
    return [item["name"] for item in page["items"]]


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "page=-1",
        "page=x",
        "page=1.0",
        "page=",
        "page=1&page_size=0",
        "page=1&page_size=501",
        "page=1&page_size=many",
        "page_size=many",
        "page=3&page_size=4",
        f"page={10**30}",
        f"page=1&use_regex=true&name={'a' * 1025}",
    ],
)
def test_a_page_that_cannot_be_is_refused(node: Node[MachineManagement], query: str) -> None:
    refused = node.api(f"queues?{query}")
    assert refused.status == 400
    errors = ("bad_request", "invalid_pagination_parameters", "page_out_of_range")
    assert (refused.json["error"] in errors, bool(refused.json["reason"])) == (True, True)


def test_page_out_of_range_is_refused_like_in_rabbitmq(node: Node[MachineManagement]) -> None:
    assert node.api("queues?page=1000").json == {
        "error": "page_out_of_range",
        "reason": "Page out of range, page: 1000 page size: 100, len: 4",
    }
    # The page after the last page is empty.
    assert node.api("queues?page=2&page_size=4").json["items"] == []
    assert node.api("queues?page=1&name=nothing").json["items"] == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^gamma", ["gamma.1", "gamma.2"]),
        ("^(?=B)", ["Beta"]),
        ("^b", ["Beta"]),  # case does not matter
        ("A$", ["Beta", "alpha"]),
        (r"\.2", ["gamma.2"]),
        ("(", []),  # no regular expression
        ("(a)\\1", []),  # an unsupported one
    ],
)
def test_names_match_a_regular_expression(
    node: Node[MachineManagement], pattern: str, found: list[str]
) -> None:
    async def request(client: Client) -> Any:
        query = {"page": "1", "use_regex": "true", "name": pattern}
        async with client.get("/api/queues", params=query, headers=GUEST) as response:
            return await response.json()

    assert names_of(node.run(request)) == found


def test_page_all_returns_matching_names_as_a_single_list(node: Node[MachineManagement]) -> None:
    assert names(node.api("queues?page=all")) == names(node.api("queues"))
    assert names(node.api("queues?page=all&name=GAMMA&sort=name&sort_reverse=true")) == ["gamma.2", "gamma.1"]
    assert names(node.api("queues?page=all&name=^.amma&use_regex=true&columns=name")) == [
        "gamma.1",
        "gamma.2",
    ]


def test_name_filter_is_ignored_without_a_page(node: Node[MachineManagement]) -> None:
    assert names(node.api("queues?name=alpha")) == NAMES


def test_a_regular_expression_cannot_take_for_ever(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "REQUEST_STEPS_MAX", 4 * 100)
    node.management.make(*[read_queue(f"{'a' * 200}{number}", {}) for number in range(5)])
    refused = node.api("queues?page=1&use_regex=true&name=(.*)*(.*)*x")
    assert (refused.status, refused.json["error"]) == (400, "invalid_pagination_parameters")


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("sort=name", NAMES),
        ("sort=name&sort_reverse=true", NAMES[::-1]),
        ("sort=arguments.x-max-length", ["Beta", "alpha", "gamma.1", "gamma.2"]),
        ("sort=arguments.x-max-length&sort_reverse=true", ["gamma.2", "gamma.1", "alpha", "Beta"]),
        ("sort=nothing", NAMES),
        ("sort=nothing.at.all&sort_reverse=true", NAMES[::-1]),
        ("sort=", NAMES),
        ("sort=.", NAMES),
        ("sort=members", NAMES),
        ("sort=message_stats.publish_details.rate", NAMES),
    ],
)
def test_lists_are_sorted(node: Node[MachineManagement], sort: str, order: list[str]) -> None:
    assert names(node.api(f"queues?{sort}")) == order


def test_missing_values_sort_before_numbers_and_texts() -> None:
    node = Node(MachineManagement())
    for name, arguments in (
        ("a", {"x": "text"}),
        ("b", {"x": 5}),
        ("c", {}),
        ("d", {"x": True}),
        ("e", {"x": [1]}),
    ):
        body = {"type": "direct", "arguments": arguments}
        assert node.api(f"exchanges/%2F/{name}", "PUT", json=body).status == 201
    page = node.api("exchanges?page=1&page_size=500&sort=arguments.x&columns=name").json
    assert [name for name in names_of(page) if len(name) == 1] == ["c", "b", "d", "e", "a"]


def test_lists_are_sorted_by_virtual_host_and_name(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.management.make(PutVhost("a", "", [], ""), SetPermissions("guest", "a", ".*", ".*", ".*"))
    assert node.api("queues/a/z", "PUT").status == 201
    # A page is the same with a single run as with several.
    for run in (1024, 2):
        monkeypatch.setattr(lists, "RUN", run)
        pages = [names_of(node.api(f"queues?page={page}&page_size=2").json) for page in (1, 2, 3)]
        assert pages == [["Beta", "alpha"], ["gamma.1", "gamma.2"], ["z"]]


def test_only_requested_columns_are_returned(node: Node[MachineManagement]) -> None:
    assert node.api("queues?columns=name").json == [{"name": name} for name in NAMES]
    page = node.api("queues?columns=name,arguments.x-max-length,nothing&page=1&page_size=1").json
    assert page["items"] == [{"name": "Beta", "arguments": {"x-max-length": 4}}]
    one = node.api("queues/%2F/Beta?columns=message_stats.publish_details.rate,consumers").json
    assert one == {"message_stats": {"publish_details": {"rate": 0.0}}, "consumers": 0}
    whole = node.api("queues/%2F/Beta?columns=arguments.x,arguments").json
    assert whole == {"arguments": {"x-max-length": 4, "x-queue-type": "classic"}}
    assert node.api("queues/%2F/Beta?columns=name.of.it").json == {"name": "Beta"}
    assert node.api("vhosts/%2F?columns=name").json == {"name": "/"}


def test_queue_without_statistics_shows_its_declaration(node: Node[MachineManagement]) -> None:
    [queue, *_] = node.api("queues?disable_stats=true").json
    assert {"name", "vhost", "type", "durable", "arguments", "state"} < queue.keys()
    assert not {"messages", "message_stats", "consumers"} & queue.keys()
    [queue, *_] = node.api("queues?disable_stats=true&enable_queue_totals=true").json
    assert (queue["messages"], queue["messages_ready"], queue["messages_unacknowledged"]) == (0, 0, 0)
    assert node.api("queues?disable_stats=true&columns=name,messages").json[0] == {"name": "Beta"}
    refused = node.api("consumers?disable_stats=true")
    assert (refused.status, refused.json["reason"]) == (
        400,
        "Stats in management UI are disabled on this node",
    )


@pytest.mark.parametrize(
    "path",
    [
        "queues",
        "queues/detailed",
        "queues/%2F",
        "exchanges",
        "bindings",
        "queues/%2F/Beta/bindings",
        "connections",
        "consumers",
        "vhosts",
        "vhost-limits",
        "users",
        "users/without-permissions",
        "user-limits",
        "permissions",
        "topic-permissions",
        "vhosts/%2F/permissions",
        "users/guest/permissions",
        "policies",
        "operator-policies",
        "parameters",
        "global-parameters",
        "channels",
        "vhosts/%2F/channels",
        "feature-flags",
    ],
)
def test_every_list_has_pages(node: Node[MachineManagement], path: str) -> None:
    whole = node.api(path).json
    page = node.api(f"{path}?page=1&page_size=500&sort_reverse=true").json
    assert (page["items"], page["total_count"]) == (whole[::-1], len(whole))
    assert node.api(f"{path}?page=x").status == 400


def test_channels_are_requested_only_for_shown_consumers(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, requested = {"vhost": "/", "name": "Beta"}, list[int]()

    def consumer(number: int) -> ConsumerStatus:
        channel = {"node": "n2", "id": number}
        return ConsumerStatus(f"c{number}", queue, channel, True, False, 10 - number, True, "up", {})

    async def channels_at(places: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
        requested[:] = [number for _, number in places]
        connection = {"name": "c", "peer_host": "h", "peer_port": 1}
        rows = [("n2", number, f"channel {9 - number}") for number in requested]
        return [
            {"node": at, "id": number, "name": name, "user": "u", "connection_details": connection}
            for at, number, name in rows
        ]

    monkeypatch.setattr(node.management.consumers, "all", lambda _: map(consumer, range(10)))
    monkeypatch.setattr(node.management.consumers, "of_queue", lambda *_: map(consumer, [3]))
    monkeypatch.setattr(node.management.clients, "channels_at", channels_at)
    page = node.api("consumers?page=2&page_size=2&sort=prefetch_count").json
    assert [each["consumer_tag"] for each in page["items"]] == ["c7", "c6"]
    assert page["items"][0]["channel_details"]["name"] == "channel 2"
    assert requested == [7, 6]
    page = node.api("consumers?page=1&page_size=2&sort=channel_details.name").json
    assert [each["consumer_tag"] for each in page["items"]] == ["c9", "c8"]
    assert len(node.api("consumers").json) == len(requested) == 10
    [shown] = node.api("queues/%2F/Beta").json["consumer_details"]
    assert (shown["consumer_tag"], requested) == ("c3", [3])


def test_channels_are_requested_only_for_the_shown_page(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[int] = []

    async def channel_heads() -> list[ChannelHead]:
        return [
            ChannelHead("n2", number, f"c{number // 2} ({number % 2})", "/", "guest", f"c{number // 2}")
            for number in range(10)
        ]

    async def channels_of(heads: Sequence[ChannelHead]) -> list[dict[str, Any]]:
        requested[:] = [head.id for head in heads]
        return [{**head._asdict(), "number": head.id % 2} for head in heads]

    monkeypatch.setattr(node.management.clients, "channel_heads", channel_heads)
    monkeypatch.setattr(node.management.clients, "channels_of", channels_of)
    page = node.api("channels?page=2&page_size=3&sort=name&sort_reverse=true").json
    assert [each["name"] for each in page["items"]] == ["c3 (0)", "c2 (1)", "c2 (0)"]
    assert requested == [6, 5, 4]
    assert node.api("channels/c1%20%281%29").json["number"] == 1
    assert requested == [3]
    page = node.api("channels?page=1&page_size=2&sort=number").json
    assert [each["name"] for each in page["items"]] == ["c0 (0)", "c1 (0)"]
    assert len(node.api("channels").json) == len(requested) == 10


def test_nodes_have_pages_too(node: Node[MachineManagement]) -> None:
    page = node.api("nodes?page=2&page_size=2&columns=name").json
    assert (page["items"], page["total_count"]) == ([], 2)


def test_queue_that_a_user_does_not_see_is_not_counted(node: Node[MachineManagement]) -> None:
    node.management.make(PutVhost("a", "", [], ""), SetPermissions("guest", "a", ".*", ".*", ".*"))
    assert node.api("queues/a/z", "PUT").status == 201
    node.add_user("ann", "management", vhosts=("a",))
    page = node.api("queues?page=1", user="ann").json
    assert (page["total_count"], names_of(page)) == (1, ["z"])


def test_documents_are_made_only_for_the_requested_page(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(FakeManagement())
    node.management.queues.names = [f"q{number:04}" for number in range(3000)]
    rows = asyncio.run(node.management.queues.rows_by_name(lambda _: True))
    served: list[str] = []

    def members(queue: Any) -> list[str]:
        served.append(queue.name)
        return []

    rows = rows._replace(fields={**rows.fields, "members": members})

    async def queues_by_name(_: object) -> Any:
        return rows

    monkeypatch.setattr(node.management.queues, "rows_by_name", queues_by_name)
    page = node.api("queues?page=20&page_size=5&name=1").json
    assert served == names_of(page)


@pytest.mark.parametrize("seed", range(5))
def test_pages_are_parts_of_the_current_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects come and go between requests, in any order, with any names and columns."""
    for name, few in (("STEP", 2), ("RUN", 3), ("BLOCK", 2)):
        monkeypatch.setattr(sorted_objects, name, few)
    node, random = Node(MachineManagement()), Random(seed)
    machine = node.management.machine
    odd = [
        "a",
        "B",
        "b",
        "\u00e9",
        "/",
        "..",
        "%2F",
        "x\ny",
        "q" * 255,
        *(f"q{number}" for number in range(12)),
    ]

    sessions = count(1)

    def change() -> None:
        vhost = random.choice(["/", "v"])
        node.management.make(PutVhost("v", "", [], ""), SetPermissions("guest", "v", ".*", ".*", ".*"))
        session = next(sessions)
        node.management.make(Connect(session, vhost, "guest"))
        some = random.sample(odd, random.choice([1, 2, 9]))
        for queue in some:
            if random.random() < 0.6:
                node.management.make(read_queue(queue, {})._replace(session=session))
                key = random.choice("kl")
                node.management.make(
                    BindQueue(session, 0, queue, random.choice(["amq.direct", "amq.topic"]), key, {})
                )
            else:
                node.management.make(DeleteQueue(session, 0, queue, False, False))
        if random.random() < 0.1:
            node.management.make(DeleteVhost("v"))

    def there() -> tuple[list[Any], list[Any]]:
        vhosts = sorted(machine.vhosts.items())
        queues = [{"vhost": name, "name": queue} for name, vhost in vhosts for queue in sorted(vhost.queues)]
        bindings = [
            {"vhost": name, "source": source, "destination": destination, "routing_key": key}
            for name, vhost in vhosts
            for source, destination, key in sorted(
                [("", queue, queue) for queue in vhost.queues]
                + [(each.source, each.destination.name, each.routing_key) for each in vhost.bindings]
            )
        ]
        return queues, bindings

    async def story(client: Client) -> None:
        for _ in range(12):
            change()
            for path, whole in zip(("queues", "bindings"), there(), strict=True):
                sort, is_reversed = (
                    random.choice(["", "vhost", "name", "messages", "nonsense.x"]),
                    random.random() < 0.5,
                )
                size, text = random.randint(1, 5), random.choice(["", "q1", "B"]) if path == "queues" else ""
                found = [each for each in whole if text.lower() in each.get("name", "").lower()]
                found.sort(key=lambda each: each.get(sort, 0))
                found = found[::-1] if is_reversed else found
                shown: list[Any] = []
                for page in range(1, len(found) // size + 2):
                    requested = (
                        f"page={page}&page_size={size}&name={text}&sort={sort}&columns={','.join(whole[0])}"
                    )
                    served = await answer(
                        client,
                        f"/api/{path}?{requested}&sort_reverse={'true' if is_reversed else 'false'}",
                        headers=GUEST,
                    )
                    assert (served.json["total_count"], served.json["filtered_count"]) == (
                        len(whole),
                        len(found),
                    )
                    shown += served.json["items"]
                assert shown == found

    change()
    node.run(story)
    assert machine.catalog.queues_declared > 10


def test_search_over_10000_queues_is_sliced() -> None:
    node = Node(MachineManagement())
    for start in range(0, 10_000, 500):
        node.management.make(*[read_queue(f"q{number}", {}) for number in range(start, start + 500)])

    async def story(client: Client) -> float:
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            last_s = thread_time()
            while True:
                await asyncio.sleep(0)
                now_s = thread_time()
                longest_s, last_s = max(longest_s, now_s - last_s), now_s

        await answer(client, "/api/queues?page=1", headers=GUEST)
        watching = asyncio.ensure_future(watch())
        page = await answer(client, "/api/queues?page=30&name=1", headers=GUEST)
        watching.cancel()
        assert page.json["item_count"] == 100
        return longest_s

    # All at once it would take some 20 ms of the processor. (Also reading the answer is done in this loop.)
    assert min(node.run(story) for _ in range(3)) < 0.015


def test_search_stops_when_its_client_disconnects(
    node: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.management.make(*[read_queue(f"q{number}", {}) for number in range(500)])
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)
    monkeypatch.setattr(lists, "STEP", 1)
    steps = 0
    give_way = time_slices.Slices.give_way

    async def counted(self: time_slices.Slices) -> None:
        nonlocal steps
        steps += 1
        await give_way(self)

    monkeypatch.setattr(time_slices.Slices, "give_way", counted)
    path = "/api/queues?page=1&name=q&sort=messages"

    async def story(client: Client) -> None:
        nonlocal steps
        await answer(client, path, headers=GUEST)
        whole, steps = steps, 0
        _, writer = await asyncio.open_connection(client.host, client.port)
        fields = "".join(f"{name}: {value}\r\n" for name, value in GUEST.items())
        writer.write(f"GET {path} HTTP/1.1\r\nHost: q\r\n{fields}\r\n".encode())
        while not steps:  # noqa: ASYNC110
            await asyncio.sleep(0)
        writer.transport.abort()
        last = -1
        while steps > last:
            last = steps
            await asyncio.sleep(0.01)
        assert 0 < steps < whole / 2

    node.run(story)
