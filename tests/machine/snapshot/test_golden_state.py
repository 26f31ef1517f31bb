"""A dump of a story by each version's own program, with every kind of row: its meaning must not change.

A file in `golden/` is never written again. `pytest tests/machine --rewrite` makes the file of a new version. The file
of a version is deleted with the last program that can run the version.
"""

from __future__ import annotations

import tracemalloc
import zlib
from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qq.machine.catalog import vhost as vhost_module
from qq.machine.catalog.reply_names import REPLY_PREFIX
from qq.machine.handlers import core as core_module
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import messages_of
from qq.machine.protocol.effects import (
    Attached,
    AttachRefused,
    Committed,
    Connected,
    Consuming,
    Done,
    Failed,
    GetEmpty,
    GetOk,
    Got,
    Limited,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Recovered,
    Reply,
)
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue import queue as queue_module
from qq.machine.queue.backlog import LaneRow
from qq.machine.queue.runs import _WORDS
from qq.machine.snapshot.state import Dump, MalformedDump, read_dump
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, attach, consume, declare, publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qq.machine.protocol.commands import Command

GOLDEN = Path(__file__).parents[1] / "golden"

WHERE_IT_WAS_MADE = "4b4c4a4e494d4bcf4884d200"
"""Output of the zlib that packed the golden file, for some octets: a different zlib may have different output."""


def zlib_here() -> str:
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 6)
    return (packer.compress(b"abcdefgh" * 2) + packer.flush()).hex()


@pytest.fixture(params=range(VERSIONS[0], VERSIONS[1] + 1), ids=lambda version: f"version {version}")
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def golden(version: int, rewrite: bool) -> bytes:
    file = GOLDEN / f"state-{version}.dump"
    if rewrite and not file.exists():
        with pytest.MonkeyPatch.context() as patched:
            file.write_bytes(story(patched, version).dump())
    return file.read_bytes()


def test_the_story_ends_in_the_golden_state(
    golden: bytes, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived = story(monkeypatch, version)
    loaded = QueueMachine()
    loaded.adopt(loaded.read(golden))
    assert loaded.version == version
    assert differences(lived, loaded) == []
    for node in ("n1", "n2", "n3"):
        assert loaded.outstanding(node) == lived.outstanding(node)


@pytest.mark.skipif(
    zlib_here() != WHERE_IT_WAS_MADE, reason="another zlib packs the same rows in other bytes"
)
def test_golden_state_is_dumped_as_it_was_loaded(
    golden: bytes, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = QueueMachine()
    loaded.adopt(loaded.read(golden))
    assert loaded.dump() == golden
    assert story(monkeypatch, version).dump() == golden


def test_golden_state_fills_every_section(golden: bytes, version: int) -> None:
    dump = read_dump(golden)
    later = [] if version >= 8 else ["global_parameters", "moves", "fragments"]
    later += [] if version >= 9 else ["outage_ms"]
    later += [] if version >= 11 else ["stuck"]
    later += [] if version >= 12 else ["groups", "ended", "sinks", "committed"]
    assert [name for name, section in zip(Dump._fields, dump, strict=True) if not section] == later
    machine = QueueMachine()
    machine.adopt(machine.read(golden))
    vhost = machine.vhosts["/"]
    assert vhost.policies
    assert vhost.exchange_policies
    assert vhost.unreviewed_queues
    assert vhost.unreviewed_exchanges
    assert vhost.publishers
    assert machine.vhosts["v"].limits
    assert machine.vhosts["v"].tags
    assert machine.vhosts["v"].default_queue_type
    assert bool(machine.vhosts["v"].parameters) == machine.vhosts["v"].is_protected == (version >= 8)
    sessions = machine._core.sessions.values()
    results = {type(session.answer.result) for session in sessions if isinstance(session.answer, Reply)}
    # All but ConsumerCancelled, which is never remembered.
    assert results == {
        Committed,
        Connected,
        Consuming,
        Done,
        GetEmpty,
        GetOk,
        Limited,
        QueueDeclared,
        QueueDeleted,
        QueuePurged,
        Recovered,
        *([Got] if version >= 8 else []),
        *([Attached, AttachRefused] if version >= 13 else []),
    }
    assert any(isinstance(session.answer, Failed) for session in sessions)
    assert any(session.answer is None for session in sessions)
    assert any(session.requester for session in sessions)
    assert any(session.fragments for session in sessions) == (version >= 8)
    assert {session.vhost.is_deleted for session in sessions} == {False, True}
    assert {bool(connection.closing) for connection in machine.catalog.connections.values()} == {False, True}
    consumers = machine.consumers.values()
    assert {consumer.live for consumer in consumers} == {False, True}
    assert any(consumer.marks for consumer in consumers)
    queues = list(machine.queues())
    assert any(queue.active for queue in queues)
    assert any(queue.histories for queue in queues)
    assert any(queue.dead and bool(queue.retry_ms) == (version < 11) for queue in queues)
    moves = {move.id: (move.state, move.waits_for, move.moved) for move in dump.moves}
    assert version < 8 or moves == {
        "over": ("finished", "", 2),
        "waits": ("running", "full", 0),
        "fails": ("failed", "", 0),
        "again": ("running", "", 0),
    }
    assert any(leaving.count for queue in queues for leaving in queue.leaving)
    assert any(queue.returning and queue.came_back for queue in queues)
    assert any(queue.groups for queue in queues) == (version >= 12)
    set_by_clients = [each.client_credit for each in consumers if each.client_credit is not None]
    assert {credit.is_draining for credit in set_by_clients} == ({False, True} if version >= 13 else set())
    assert any(queue.to_report for queue in queues) == (version >= 13)
    users = {exchange.user for vhost in machine.vhosts.values() for exchange in vhost.exchanges.values()}
    assert users == ({"", "ann"} if version >= 12 else {""})
    assert {each.is_released for queue in queues for each in queue.ended} == (
        {False, True} if version >= 12 else set()
    )
    known = {id(vhost.policies.get(name, operator=False)) for name in ("keep", "calm")}
    assert {id(queue.policies[0]) in known for queue in queues if queue.policies[0]} == {False, True}
    backlogs = [queue.backlog.freeze() for queue in queues]
    assert any(runs.chunks for backlog in backlogs for _, _, runs, _ in backlog.lanes)
    assert any(shelf.blocks for backlog in backlogs for _, _, _, shelf in backlog.lanes)
    assert any(len(backlog.lanes) > 1 for backlog in backlogs)
    assert any(backlog.returns.blocks for backlog in backlogs)
    assert any(backlog.delayed.blocks for backlog in backlogs)


def test_no_two_fields_of_a_row_are_alike_in_the_golden_state(golden: bytes) -> None:
    """Swapping two fields in both reading and writing must be noticed."""
    dump = read_dump(golden)
    vhosts, backlogs = list(dump.vhosts), [row.backlog for row in dump.queues]
    lanes = [LaneRow(*lane) for backlog in backlogs for lane in backlog[3]]
    tables: list[Iterable[Sequence[object]]] = [
        *(rows for rows in dump if isinstance(rows, list) and rows and isinstance(rows[0], tuple)),
        [row for vhost in vhosts for row in vhost.policies],
        [row for vhost in vhosts for row in vhost.exchanges],
        [row for vhost in vhosts for row in vhost.bindings],
        [row for vhost in vhosts for row in vhost.parameters],
        [row for vhost in vhosts for row in vhost.publishers[2]],
        [row.dead for row in dump.queues],
        [dead for rows in dump.dead for dead in rows],
        [stuck for row in dump.stuck for stuck in row.messages],
        [held.messages for rows in dump.unacked for held in rows],
        [row.histories for row in dump.queues],
        [lease for row in dump.groups for lease in row.leases],
        [chunk for row in dump.groups for lease in row.leases for chunk in lease.chunks],
        [row.settings for row in dump.groups],
        [each for row in dump.ended for each in row.chunks],
        [row.client_credit for row in dump.consumers if row.client_credit],
        [each.modification for row in dump.behind for each in row.leaving],
        [each for row in dump.sinks for each in row.attempts],
        [each for row in dump.sinks for attempt in row.attempts for each in attempt.runs],
        backlogs,
        *([backlog[part] for backlog in backlogs] for part in range(3)),
        lanes,
        [lane.runs for lane in lanes],
        [chunk for lane in lanes for chunk in lane.runs[1]],
    ]
    for rows in filter(None, tables):
        columns = list(zip(*rows, strict=True))
        names = getattr(type(next(iter(rows))), "_fields", range(len(columns)))
        pairs = combinations(zip(names, columns, strict=True), 2)
        assert [(one, other) for (one, mine), (other, theirs) in pairs if repr(mine) == repr(theirs)] == []


def story(monkeypatch: pytest.MonkeyPatch, version: int) -> QueueMachine:
    """Everything happens that leaves something behind, and no two fields of a row are alike in all rows."""
    driver = Driver()
    driver.machine.raise_to(version)
    monkeypatch.setattr("qq.machine.queue.runs._CHUNK_WORDS", 2 * _WORDS)
    driver.apply(*OPERATED)
    if version >= 8:
        driver.apply(*OPERATED_SINCE_8)
    driver.apply(*CONNECTED)
    driver.apply(*CONNECTED_TOO, node="n2")
    driver.apply(*DECLARED)
    for size in (1, 1, 1, 2, 5, 1):
        driver.apply(publish(2, "plain"), messages=[b"x" * size, b"y"])
    driver.apply(*PUBLISHED)
    driver.apply(publish(1, "priorities", delay_ms=70_000_000), messages=[b"delayed"])
    driver.apply(publish(6, "single"), messages=[b"xy"] * 6)
    if version >= 8:
        for commands in MOVED_SINCE_8:
            driver.time_ms += 1
            driver.apply(*commands)
        if version >= 11:
            driver.apply(*MOVED_SINCE_11)
        driver.apply(*STORED_SINCE_8, messages=[b"f" * size for size in (3, 4, 5, 6)])
        driver.apply(*PUBLISHED_SINCE_8, messages=[b"large", b"g" * 7, b"larger"])
    driver.machine.outage(77)
    driver.apply(*CONSUMED)
    driver.apply(*CONSUMED_TOO, node="n2")
    driver.time_ms += 20_000
    driver.apply(c.Return(30, 0, 0), c.Reject(30, 1, 1), c.Discard(31, 0, 1))
    driver.lead()
    driver.time_ms += 1_500
    for _ in range(8):
        driver.apply(publish(1, "held"))
    driver.apply(*ANSWERED)
    if version >= 8:
        driver.apply(*ANSWERED_SINCE_8)
    if version >= 11:  # before, stuck messages are among the rest
        driver.apply(publish(2, "dies", ttl_ms=1))
        driver.time_ms += 2
        driver.apply()
    if version >= 12:
        for commands, size in LEASED_SINCE_12:
            driver.time_ms += 1
            driver.apply(*commands, messages=[b"l" * size] * 3 if size else [])
        for each in STORED_IN_SINKS:
            driver.time_ms += 1
            driver.apply(each, messages=[b"sss"] * messages_of(each))
    if version >= 13:
        driver.apply(*ATTACHED_SINCE_13)
        driver.apply(*MODIFIED_SINCE_13)
    # From now on hardly any postponed work is done.
    for module, least in (
        (queue_module, {"RANGES_AT_ONCE": 0}),
        (core_module, {"RANGES_AT_ONCE": 0, "RANGES_MAX": 1, "RANGES_OF_QUEUE_MAX": 1}),
        (core_module, {"LOST_MAX": 1, "QUEUES_GONE_MAX": 1, "REVIEW_STEPS_MAX": 1, "SERVED_MAX": 0}),
        (vhost_module, {"REVIEW_STEPS_MAX": 1}),
    ):
        for name, most in least.items():
            monkeypatch.setattr(module, name, most)
    later = [] if version < 12 else [*LEFT_SINCE_12] if version < 13 else [*LEFT_SINCE_12, *LEFT_SINCE_13]
    driver.apply(*LEFT, *later)
    driver.machine.origin_down("n2", driver.time_ms, evicted=False)
    return driver.machine


def queue_of(
    name: str, *, durable: bool = True, exclusive: bool = False, **arguments: object
) -> c.DeclareQueue:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    return c.DeclareQueue(1, 7, name, False, durable, exclusive, False, False, table)


VALUES = {
    "x-match": "any",
    "a": 1,
    "b": [None, True, b"\xfe", Decimal("-1.25"), datetime(2026, 1, 2, tzinfo=UTC)],
}
OPERATED: Sequence[Command] = [
    c.PutUser("ann", b"salt", b"\x00hash", ["administrator", "x"]),
    c.PutHashedUser("bob", b"", b"\xff" * 16, [], "md5"),
    c.SetUserLimits("bob", {"max-channels": 9, "max-connections": -1}),
    c.PutVhost("v", "described", ["one", "two"], "quorum"),
    c.PutVhost("w", "", [], ""),
    c.SetVhostLimits("v", {"max-queues": 50}),
    c.SetPermissions("ann", "/", "configure", "write", "read"),
    c.SetPermissions("ann", "w", "", "", ".*"),
    c.SetPermissions("bob", "v", "", "^w", ""),
    c.SetTopicPermissions("ann", "/", "amq.topic", "write", "read"),
    c.LimitPublishers(5_000, 600_000),
    c.PutPolicy("/", "keep", False, "^p", "queues", 1, {"max-length": 100}),
    c.PutPolicy("/", "calm", False, "^s", "queues", 1, {"max-length": 200}),
    c.PutPolicy("/", "limit", True, "^p", "queues", 2, {"message-ttl": 10**9}),
    c.PutPolicy("/", "alternate", False, "^ex", "exchanges", 3, {"alternate-exchange": "amq.fanout"}),
]
OPERATED_SINCE_8: Sequence[Command] = [
    c.ProtectVhost("v", True),
    c.PutParameter("v", "component", "first", '{"a": [1, null]}'),
    c.PutParameter("v", "component", "second", '"b"'),
    c.PutGlobalParameter("cluster_name", '"golden"'),
    c.PutGlobalParameter("other", "[2.5]"),
]
MOVED_SINCE_8: Sequence[Sequence[Command]] = [
    [
        c.BeginMove("/", "over", "ann", "single", "automatic", 2, 0, "", "", {}, "", False),
        c.BeginMove("/", "waits", "bob", "priorities", "full", 9, 70, "rejected", "", {"h": 1}, "", False),
        c.BeginMove("/", "fails", "ann", "levels", "", 0, 5, "expired", "dies", {"h": "text"}, "", False),
    ],
    [
        # The third message of two: the step ends there.
        c.MoveMessages("/", "over", 0, 28, [1, 2, 1, NO_PRIORITY, NO_TTL, 4, 1, 3, 7, 10**9], 5, 28, 6),
        c.MoveMessages("/", "waits", 0, 28, [0, 3, 0, NO_PRIORITY, NO_TTL], 3, 28, 3),
        c.EndMove("/", "fails", "it could not go on"),
        c.PutParameter("/", "shovel", "again and again", "{}"),
        c.BeginMove("/", "again", "", "single", "automatic", 1, 2, "", "", {}, "again and again", True),
    ],
]
MOVED_SINCE_11: Sequence[Command] = [
    c.BeginTextMove("/", "text", "ann", "single", "automatic", 0, 3, "rejected", "dies", {"h": 1}, "Ünique"),
    c.EndMove("/", "text", ""),
]
STORED_SINCE_8: Sequence[Command] = [c.StoreFragment(session) for session in (1, 1, 2, 5)]
PUBLISHED_SINCE_8: Sequence[Command] = [
    c.JoinFragments(1),
    publish(1, "held"),
    c.StoreFragment(5),
    c.JoinFragments(5),
    publish(1, "held", session=5, priority=3),
]
CONNECTED: Sequence[Command] = [
    c.Connect(7, "/", "ann"),
    c.Connect(8, "v", "bob"),
    c.Connect(9, "w", "ann"),
    c.OpenChannel(1, 7),
    c.OpenChannel(2, 8),
    c.OpenChannel(3, 9),
    c.DeleteVhost("w"),
]
CONNECTED_TOO: Sequence[Command] = [c.Connect(7, "/", "ann"), c.OpenChannel(1, 7), c.OpenChannel(2, 7)]
DECLARED: Sequence[Command] = [
    c.DeclareExchange(
        1, "exchange", "topic", False, True, False, False, {"alternate-exchange": "amq.direct"}
    ),
    c.DeclareExchange(1, "ex.passing", "fanout", False, False, True, True, {}),
    queue_of("plain", x_queue_type="quorum"),
    queue_of("priorities", x_queue_type="quorum", x_delivery_limit=5),
    queue_of("levels", durable=False, x_max_priority=9),
    queue_of("single", x_queue_type="quorum", x_single_active_consumer=True),
    queue_of(
        "dies",
        x_queue_type="quorum",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="buried",
        x_message_ttl=10_000,
    ),
    queue_of(
        "stays",
        x_queue_type="quorum",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="full",
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        x_message_ttl=10_000,
    ),
    queue_of("full", x_queue_type="quorum", x_max_length=1, x_overflow="reject-publish"),
    queue_of("buried", x_queue_type="quorum", x_max_length_bytes=1_000),
    queue_of("held", x_queue_type="quorum"),
    queue_of("settled", x_queue_type="quorum"),
    queue_of("mine", exclusive=True, x_expires=10**9),
    queue_of("automatic")._replace(auto_delete=True),
    *(queue_of(f"gone {number}", exclusive=True)._replace(session=4, connection=10) for number in range(5)),
    c.BindQueue(1, 7, "plain", "amq.headers", "", VALUES),
    c.BindQueue(1, 7, "priorities", "exchange", "a.*.#", {}),
    c.BindExchange(1, "ex.passing", "exchange", "key", {"c": {"d": 0.5}}),
]
PUBLISHED: Sequence[Command] = [
    publish(3, "priorities"),
    publish(2, "priorities", priority=9),
    publish(2, "priorities", priority=9, ttl_ms=90_000_000),
    publish(2, "priorities", priority=9, ttl_ms=80_000_000),
    publish(3, "levels", priority=5),
    publish(1, "levels", priority=0),
    publish(4, "dies"),
    publish(2, "dies", more_keys=["stays", "none"]),
    publish(3, "stays"),
    publish(2, "full", publisher="first", publish_seq=3),
    publish(1, "full", publisher="second", publish_seq=9),
    publish(1, "plain", publisher="second", publish_seq=10),
    *(publish(1, "settled", publisher=str(number), publish_seq=1) for number in range(6)),
]
CONSUMED: Sequence[Command] = [
    c.Limit(5, 40),
    consume(30, "priorities", 3, session=5, timeout_ms=60_000, can_be_cancelled=True),
    consume(31, "plain", 4, session=5, auto_credit=False),
    c.Checkout(5, 7, 3, 32, "levels", "tag", 2, True, False, True, False, False, 0, {"x-priority": -3}),
    c.Checkout(5, 7, 4, 39, "mine", "tag 2", 3, False, True, True, True, False, 0, {}),
    c.Checkout(5, 7, 5, 40, "levels", "tag 3", 1, False, False, True, True, False, 0, {}),
    consume(33, "single", 2, session=6, arguments={"x-consumer-timeout": 50_000}),
    consume(34, "single", 1, session=6, arguments={"x-priority": 0}),
    consume(35, "held", 10, session=11),
    consume(36, "held", 10, session=11),
    consume(37, "settled", 10, session=12),
    consume(38, "plain", 1, session=12),
    c.Cancel(12, 38),
    c.SetPrefetch(30, 6),
]
CONSUMED_TOO: Sequence[Command] = [
    consume(30, "priorities", 1),
    consume(31, "plain", 1, session=2),
    consume(32, "held", 3, session=3),
    consume(33, "held", 3, session=4),
]
ANSWERED: Sequence[Command] = [
    declare("answers", session=20),
    c.PurgeQueue(21, 7, "answers"),
    c.DeleteQueue(22, 7, "none", False, False),
    c.BindQueue(23, 7, "answers", "amq.direct", "key", {}),
    c.Get(24, 7, 2, 50, "buried", False, 30_000),
    c.Get(25, 7, 2, 51, "answers", True, 0),
    c.Recover(26),
    c.Commit(27, 1),
    publish(1, "plain", session=27),
    c.Limit(28, 3),
    c.ReplyTo(29, 60, REPLY_PREFIX + "r" * 22),
    c.DeclareQueue(30, 7, "answers", False, True, False, False, False, {"x-queue-type": "quorum"}),
    publish(2, "plain", session=31, exchange="none"),
    c.CloseConnection("n1", 8, "an operator wants it"),
]
ANSWERED_SINCE_8: Sequence[Command] = [
    c.GetMessages(32, 7, 2, 52, "buried", False, 30_000, 2),
    c.GetMessages(33, 7, 2, 53, "answers", True, 0, 2),
]
LEASED_SINCE_12: Sequence[tuple[Sequence[Command], int]] = [
    ([queue_of("leased", x_queue_type="quorum"), publish(3, "leased", priority=7)], 1),
    ([publish(3, "leased", ttl_ms=95_000_000)], 9),
    ([c.OpenGroup("/", "leased", "readers", 7, "a driver", "ann", "arrival", True, 86_400_000)], 0),
    ([c.LeaseMessages("/", "leased", "readers", 7, 20, 1, 1_000)], 0),
    ([c.LeaseMessages("/", "leased", "readers", 7, 21, 4, 1_000)], 0),
    ([c.CommitLeases("/", "leased", "readers", 7, 20)], 0),
    ([publish(3, "leased")], 5),
    ([c.LeaseMessages("/", "leased", "readers", 7, 22, 1, 1_000)], 0),
    ([c.LeaseMessages("/", "leased", "readers", 7, 25, 2, 1_000)], 0),
    ([c.OpenGroup("/", "buried", "others", 3, "", "bob", "ready", False, 0)], 0),
    ([c.LeaseMessages("/", "buried", "others", 3, 1, 2, 1_000)], 0),
    ([c.LeaseMessages("/", "buried", "others", 3, 2, 1, 1_000)], 0),
]
STORED_IN_SINKS: Sequence[Command] = [
    c.OpenSink("/", "sink", "ann", 90_000_000),
    c.StageMessages("/", "sink", "ann", 4, "over", 0, 3, "", "leased", 1, [], 6, 96_000_000, 0),
    c.StageMessages("/", "sink", "ann", 4, "over", 1, 2, "", "leased", 1, [], 6, 96_000_000, 0),
    c.StageMessages(
        "/", "sink", "ann", 9, "next", 0, 2, "amq.fanout", "", 1, ["leased"], 5, 97_000_000, 98_000_000
    ),
    c.StageMessages("/", "sink", "ann", 9, "failed", 0, 2, "", "nowhere", 1, [], 5, 97_000_000, 0),
    c.StageMessages("/", "sink", "ann", 9, "late", 0, 2, "", "plain", 1, [], 5, 97_000_000, 99_000_000),
    c.OpenSink("/", "other", "bob", 0),
]
LEFT_SINCE_12: Sequence[Command] = [
    c.CommitEpoch("/", "sink", "ann", 4, ["over"], [2]),
    c.ReleaseLease("/", "leased", "readers", 7, 25),
    c.CommitLeases("/", "buried", "others", 3, 1),
]
ATTACHED_SINCE_13: Sequence[Command] = [
    queue_of("linked", x_queue_type="quorum"),
    publish(4, "linked"),
    attach(70, "linked", session=40),
    attach(71, "single", session=40, wants_activity=True),
    attach(72, "linked", session=41, wants_activity=True),
    attach(73, "linked", session=41),
    attach(74, "nowhere", session=41),
    c.SetCredit(70, 2, 3, False, False),
]
MODIFIED_SINCE_13: Sequence[Command] = [c.Modify(70, 0, 0, True, False, ["x-a", "x-b"], [b"v", b""], 0)]
LEFT_SINCE_13: Sequence[Command] = [
    c.SetCredit(70, 3, 9, True, True),
    c.SetCredit(71, 5, 4, False, True),
    c.SetCredit(72, 4, 2, True, False),
    c.Modify(70, 1, 1, True, False, ["x-c"], [b"w"], 88_000_000),
    c.Modify(70, 2, 2, False, True, ["x-a"], [b"x"], 0),
]
LEFT: Sequence[Command] = [
    c.PutPolicy("/", "keep", False, "^pl", "queues", 5, {"max-length": 99, "delivery-limit": 3}),
    c.SessionDown(11),
    c.Settle(37, 0, 3),
    c.ConnectionDown(10),
    publish(2, "settled"),
]


DUMP = max(GOLDEN.iterdir(), key=lambda file: int(file.stem.removeprefix("state-"))).read_bytes()
"""The newest golden state, which may be older than a version that is being made."""


@settings(max_examples=max(5, settings.default.max_examples // 4), deadline=None)
@example(place=280, octet=0xC0, cut=0)  # the name of a virtual host is invalid
@example(place=280, octet=0x90, cut=0)
@given(place=st.integers(0, len(DUMP) - 1), octet=st.integers(0, 255), cut=st.integers(0, 8))
def test_a_damaged_dump_is_read_or_named_as_such(place: int, octet: int, cut: int) -> None:
    """Counts in the dump must not be trusted: a few KiB must not use more than a few MiB."""
    tracemalloc.start()
    try:
        QueueMachine().read(DUMP[:place] + bytes([octet]) + DUMP[place + 1 + cut :])
    except MalformedDump:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 * 2**20
