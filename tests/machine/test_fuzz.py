"""No command that a node can submit makes a machine raise, or makes two machines differ."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.catalog.reply_names import REPLY_PREFIX
from qq.machine.catalog.vhost import binding_arguments
from qq.machine.handlers import core as core_module
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import MalformedBatch, decode_commands, messages_of, unpack
from qq.machine.protocol.commands import (
    OPCODES,
    SINCE,
    AttachConsumer,
    BeginMove,
    BindExchange,
    BindQueue,
    Cancel,
    Checkout,
    Command,
    Commit,
    Connect,
    ConnectionDown,
    ConnectVouched,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeletePolicy,
    DeleteUser,
    DeleteVhost,
    Discard,
    EndMove,
    Enqueue,
    Get,
    GetMessages,
    JoinFragments,
    Limit,
    Modify,
    MoveMessages,
    OpenChannel,
    Publish,
    PurgeQueue,
    PutHashedUser,
    PutPolicy,
    PutUser,
    PutVhost,
    Reject,
    ReplyTo,
    Return,
    SessionDown,
    SetCredit,
    SetPermissions,
    Settle,
    StageMessages,
    StoreFragment,
    UnbindExchange,
    UnbindQueue,
)
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue import queue as queue_module
from qq.machine.queue.backlog import PLACES, RETURNED, place_of
from qq.machine.queue.queue import UNROUTED
from qq.machine.queue.stuck_lines import Target
from qq.ranges import LEVELS
from qq.routing.content import Content
from qq.routing.routers import DestinationKind
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.likeness import differences
from tests.machine.machine_driver import (
    Log,
    assert_kept_is_current,
    batch,
    dead_ranges,
    live_messages,
    reloaded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qq.machine.catalog.vhost import Exchange
    from qq.machine.protocol.codec import Buffer
    from qq.machine.queue.queue import Consumer, Queue, Tally
    from qq.routing.routers import Binding

NEVER_RAISED: Mapping[int, int] = MappingProxyType({})
HUGE = [2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1]

REPLY_NAMES = [REPLY_PREFIX + octet * 22 for octet in "ab"]
NAMES = [
    "",
    "q",
    "q",
    "q",
    "r",
    "r",
    "x",
    "amq.direct",
    "amq.fanout",
    "amq.headers",
    "a.\nb",
    "#.*",
    "\udcfe",
    *REPLY_NAMES,
]
names = st.sampled_from(NAMES)
small = st.integers(0, 4)
numbers = st.one_of(small, small, small, st.sampled_from(HUGE))
times = st.sampled_from([0, 1, 10, 1_000, 60_000, *HUGE])
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), names, st.binary(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
    max_leaves=4,
)

MEANT: dict[str, list[Any]] = {
    "max-length": [0, 1, 2, 3],
    "max-length-bytes": [0, 1, 3, 9],
    "overflow": ["drop-head", "reject-publish", "reject-publish-dlx"],
    "message-ttl": [0, 1, 10, 1_000],
    "expires": [1, 10, 1_000],
    "dead-letter-exchange": NAMES,
    "dead-letter-routing-key": NAMES,
    "dead-letter-strategy": ["at-least-once", "at-most-once"],
    "delivery-limit": [-1, 0, 1, 2],
    "consumer-timeout": [0, 1, 1_000],
    "consumer-timeout-action": ["close-channel", "cancel-consumer"],
    "single-active-consumer": [True, True, False],
    "delayed-retry-type": ["disabled", "all", "failed", "returned"],
    "delayed-retry-min": [1, 10, 1_000],
    "delayed-retry-max": [1, 10, 1_000],
    "priority-mode": ["ratio", "strict"],
    "return-position": ["returns", "original"],
    "delivery-count-mode": ["4.0", "4.3"],
    "max-priority": [0, 1, 9, 255],
    "priority": [-2, 0, 1],
    "live-prefetch": [True, True, False],
    "delayed-type": ["direct", "fanout", "topic", "x-delayed-message"],
    "alternate-exchange": NAMES,
    "match": ["all", "any", "all-with-x", "any-with-x"],
    "size": [1, 2, 3],
}
"""Values of arguments and policies; most are valid."""


def settings_table(prefix: str, wrong: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    pair = st.sampled_from(list(MEANT)).flatmap(
        lambda key: st.tuples(st.just(prefix + key), st.one_of(*[st.sampled_from(MEANT[key])] * 3, wrong))
    )
    return st.lists(pair, max_size=5).map(dict)


tables = st.one_of(st.just({}), st.dictionaries(names, values, max_size=2), settings_table("x-", values))
queue_types = st.sampled_from(["quorum", "quorum", "classic"])
declared = st.one_of(
    st.builds(lambda table, kind: {"x-queue-type": kind, **table}, settings_table("x-", values), queue_types),
    tables,
)
definitions = st.one_of(settings_table("", values), st.dictionaries(names, values, max_size=2))
PATTERNS = [".*", "^q", "q|r", "(", "", "^(a+)+$", "\\", "x{1,99999}", "[", "(?i)Q", "\udcfe"]
KINDS = [
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-random",
    "x-consistent-hash",
    "x-delayed-message",
    "strange",
]
VHOSTS = ["/", "/", "v", "\udcfe"]
USERS = ["u", "u", "w", ""]
APPLIES_TO = ["all", "queues", "quorum_queues", "classic_queues", "exchanges", "streams", ""]

BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    str: names,
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    dict[str, Any]: tables,
    list[str]: st.lists(names, max_size=2),
    list[int]: st.lists(numbers, max_size=12),
    list[bytes]: st.lists(st.binary(max_size=4), max_size=2),
}
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(KINDS),
    "apply_to": st.sampled_from(APPLIES_TO),
    "pattern": st.sampled_from(PATTERNS),
    "definition": definitions,
    "ttl_ms": st.one_of(st.just(NO_TTL), times),
    "delay_ms": st.one_of(st.just(0), times),
    "timeout_ms": times,
    "age_ms": times,
    "priority": st.one_of(st.just(NO_PRIORITY), numbers),
    "more_keys": st.lists(names, max_size=2),
    "publisher": st.sampled_from(["", "", "a", "b"]),
    "vhost": st.sampled_from(VHOSTS),
    "user": st.sampled_from(USERS),
    "node": st.sampled_from(["n1", "n2"]),
    "limits": st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("max-connections", "max-channels", "max-queues"), values)
    ),
    "default_queue_type": st.sampled_from(["", "quorum", "classic", "stream"]),
}


def fields(command: type[Command]) -> st.SearchStrategy[Command]:
    hints = get_type_hints(command)
    parts = {name: BY_NAME.get(name, BY_TYPE[hints[name]]) for name in command._fields}
    if command in (Enqueue, Publish, StageMessages):
        parts["count"] = st.integers(1, 5)
    if command is DeclareQueue:
        # Most declarations succeed.
        parts |= {
            "durable": st.sampled_from([True, True, False]),
            "passive": st.sampled_from([False, False, True]),
            "exclusive": st.sampled_from([False, False, False, True]),
            "auto_delete": st.sampled_from([False, False, False, True]),
            "arguments": declared,
        }
    if command in (Checkout, AttachConsumer):
        parts["tag"] = st.text("abcdefgh", min_size=3, max_size=3)
        parts["arguments"] = settings_table("x-", values)
    if command is PutPolicy:
        parts["priority"] = numbers
    if command in NAMED:
        parts["name"] = st.sampled_from(NAMED[command])
    return st.builds(command, **parts)


NAMED: dict[type[Command], list[str]] = {
    PutVhost: VHOSTS,
    DeleteVhost: VHOSTS,
    PutUser: USERS,
    PutHashedUser: USERS,
    DeleteUser: USERS,
    ReplyTo: [*REPLY_NAMES, "q"],
}


def content_of(message: Buffer, number: int) -> Content:
    """Messages differ in their size only."""
    return Content({"x-size": len(message)}, {"message_id": str(len(message))}, number)


def transaction(session: int, parts: list[Command]) -> list[Command]:
    return [Commit(session, len(parts)), *parts]


def large(session: int, fragments: int, publish: Command) -> list[Command]:
    """A message in fragments, or without any, as if they had been lost."""
    return [StoreFragment(session)] * fragments + [JoinFragments(session), publish]


single = st.sampled_from([kind for kind in OPCODES if kind not in (Commit, JoinFragments)]).flatmap(fields)
published = st.sampled_from([Enqueue, Publish]).flatmap(fields)
busy = st.sampled_from(
    [
        Enqueue,
        Publish,
        Checkout,
        AttachConsumer,
        SetCredit,
        DeclareQueue,
        Settle,
        Return,
        Reject,
        Modify,
        Discard,
    ]
).flatmap(fields)
transactional = st.sampled_from([Enqueue, Publish, Settle, Return, Reject, Discard]).flatmap(fields)
groups = st.one_of(
    *[busy.map(lambda command: [command])] * 3,
    single.map(lambda command: [command]),
    st.builds(transaction, numbers, st.lists(transactional, max_size=3)),
    st.builds(large, small, small, published),
    st.builds(lambda publish, count: large(publish.session, count, publish), published, small),
)
commands = st.lists(groups, max_size=6).map(lambda parts: [command for part in parts for command in part])
origins = st.sampled_from(["n1", "n2"])
pauses = st.sampled_from([0, 0, 1, 10, 1_000, 5_000, 10**7, 10**12])
entries = st.lists(
    st.tuples(origins, st.one_of(commands, commands, commands, st.booleans()), pauses), max_size=15
)


def published_by(batch_commands: Sequence[Command]) -> int:
    return sum(map(messages_of, batch_commands))


SMALL = {
    "qq.machine.handlers.core.DUE_QUEUES_MAX": 2,
    "qq.machine.handlers.core.REVIEW_STEPS_MAX": 60,
    "qq.machine.handlers.core.WOKEN_MAX": 2,
    "qq.machine.protocol.death_history._BLOCK_ROWS": 3,
    "qq.machine.protocol.death_history.ANNOTATIONS_MAX": 6,
    "qq.machine.protocol.death_history.HISTORIES_BYTES_MAX": 300,
    "qq.machine.queue.moves.ENDED_IN_VHOST_MAX": 2,
    "qq.machine.queue.moves.ENDED_MAX": 3,
    "qq.machine.queue.moves.RUNNING_IN_VHOST_MAX": 3,
    "qq.machine.handlers.moving.MOVED_AT_ONCE": 4,
    "qq.routing.masks.FEW_MAX": 1,
    "qq.machine.catalog.deduplication.REFUSED_MAX": 2,
    "qq.machine.handlers.publishing.COPIES_MAX": 20,
    "qq.machine.handlers.publishing.FEW_QUEUES": 1,
    "qq.machine.queue.queue.DUE_MAX": 3,
    "qq.machine.queue.queue.DYING_MAX": 6,
    "qq.machine.queue.queue.TRIM_MAX": 3,
    "qq.machine.queue.runs._CHUNK_WORDS": 12,
    "qq.machine.queue.shelf.BLOCK_MOMENTS": 4,
    "qq.machine.queue.shelf.BLOCK_ROWS": 4,
    "qq.machine.queue.shelf.PACK_ROWS": 3,
    "qq.machine.queue.timers.BLOCK_KEYS": 2,
    "qq.machine.catalog.vhost.REVIEW_STEPS_MAX": 60,
    "qq.machine.catalog.vhost.ROUTES_MAX": 3,
    "qq.machine.protocol.work_meter.COPIES_MAX": 20,
    "qq.machine.protocol.work_meter.DEAD_STEPS_MAX": 60,
}


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """Lower limits, so that the small states of these tests are processed in portions too."""
    with ExitStack() as stack:
        for name, limit in SMALL.items():
            stack.enter_context(mock.patch(name, limit))
        yield


def newest_machine() -> QueueMachine:
    """A machine that knows all commands."""
    return machine_of(VERSIONS[1])


def machine_of(version: int) -> QueueMachine:
    machine = QueueMachine(content_of)
    machine.raise_to(version)
    return machine


class Pair:
    """Two machines; the second is loaded from its dump after every entry."""

    def __init__(self, version: int = VERSIONS[1]) -> None:
        self.one, self.other = machine_of(version), machine_of(version)
        self.log = Log()
        self.index = 0
        self.time_ms = 1
        self.counted: dict[Queue, Counted] = {}
        """Counts of each queue at the end of the last entry."""

    def pass_ms(self, time_ms: int, *, is_outage: bool) -> None:
        self.time_ms += time_ms
        if is_outage:
            self.one.outage(time_ms)
            self.other.outage(time_ms)

    def raise_to(self, version: int) -> None:
        self.one.raise_to(version)
        self.other.raise_to(version)
        assert differences(self.one, self.other) == []

    def entry(self, origin: str, batch_commands: list[Command]) -> None:
        self.index += 1
        payload = batch(
            batch_commands, [b"x" * (1 + number % 3) for number in range(published_by(batch_commands))]
        )
        assert len(decode_commands(payload)) == len(batch_commands)
        self.log.record(self.index, 254, batch_commands, bcc=["r"])
        effects = self.one.apply_batch(origin, self.index, 254, self.time_ms, payload)
        assert effects == self.other.apply_batch(origin, self.index, 254, self.time_ms, payload)

    def down(self, origin: str, *, evicted: bool) -> None:
        self.index += 1
        effects = self.one.origin_down(origin, self.time_ms, evicted=evicted)
        assert effects == self.other.origin_down(origin, self.time_ms, evicted=evicted)

    def end_entry(self) -> None:
        assert self.one.end_entry(self.time_ms) == self.other.end_entry(self.time_ms)
        self.check_revisions()
        self.other = reloaded(self.other)
        assert self.one.digest() == self.other.digest()
        assert differences(self.one, self.other) == []

    def lead(self) -> None:
        """Apply entries of a leader for a while: it may be killed before it is done."""
        for _ in range(5):
            dead = self.log.dead_letters(self.one, 2)
            # A leader may choose the order of the queues.
            assert sorted(dead) == sorted(self.log.dead_letters(self.other, 2))
            due_ms = self.one.due_ms()
            if not dead and (due_ms is None or due_ms > self.time_ms):
                break
            self.entry("n1", dead)
            self.end_entry()
        for origin in ("n1", "n2"):
            assert self.one.outstanding(origin) == self.other.outstanding(origin)

    def check_revisions(self) -> None:
        """Assert that each change in a queue changes its revision, on which observers rely."""
        before, self.counted = self.counted, {queue: counted(queue) for queue in self.one.queues()}
        for queue in before.keys() & self.counted.keys() - self.one._core.dirty.keys():
            if before[queue] != self.counted[queue]:
                assert before[queue].revision < self.counted[queue].revision

    def check_catalog(self) -> None:
        """Assert that counts of connections and channels are right, and that removed objects have no members."""
        catalog, sessions = self.one.catalog, self.one._core.sessions.values()
        for vhost in catalog.vhosts.values():
            mine = [connection for connection in catalog.connections.values() if connection.vhost is vhost]
            assert vhost.connections == len(mine)
            assert not vhost.is_deleted
        assert catalog._connections_of == Counter(each.user for each in catalog.connections.values())
        assert catalog._channels_of == Counter(each.user for each in sessions if each.user is not None)
        for there in [*sessions, *catalog.connections.values()]:
            assert there.vhost.is_deleted == (catalog.vhosts.get(there.vhost.name) is not there.vhost)
        assert all(each.closing for each in catalog.connections.values() if each.vhost.is_deleted)
        for user, name in catalog.access.all_permissions:
            assert user in self.one.users
            assert name in catalog.vhosts
        queues = set(self.one.queues())
        assert {consumer.queue for consumer in self.one.consumers.values()} <= queues
        assert queues.issuperset(self.one._core.queues_with_dead)
        stuck = self.one.stuck_lines
        assert {queue for queue in queues if queue.stuck} == set(stuck.queues)
        lines = {(queue, target) for target in stuck.targets for queue in stuck.queues_of(target)}
        assert lines == {
            (queue, Target(queue.vhost, name)) for queue in queues for name in queue.stuck if name != UNROUTED
        }
        assert queues.issuperset(self.one._core.abandoned)
        requesting = [each for each in sessions if each.requester is not None]
        for vhost in [*catalog.vhosts.values(), *(each.vhost for each in requesting)]:
            mine = [each.requester for each in requesting if each.vhost is vhost]
            assert sorted(vhost.requesters.values()) == sorted(filter(None, mine))

    def check(self) -> None:
        self.check_catalog()
        assert_kept_is_current(self.one)
        for queue in self.one.queues():
            check_counts(queue)
            if queue not in self.one._core.dirty:
                check_reports(queue, self.time_ms)
        for consumer in self.one.consumers.values():
            assert consumer.client_credit is None or consumer.credit >= 0
        live = live_messages(self.one)
        frozen = self.one.freeze()
        bounds = [0, *range(1, self.index + 2, 2), self.index + 2]
        counts = [sum(first <= place[0] < end for place in live) for first, end in pairwise(bounds)]
        assert frozen.counts(bounds) == counts
        found = {
            (index, ordinal, message)
            for index, batches in frozen.live(0, self.index + 1).items()
            for ordinal, ranges in batches.items()
            for start, number in ranges
            for message in range(start, start + number)
        }
        assert found == set(live)


class Counted(NamedTuple):
    revision: int
    tally: Tally
    numbers: tuple[int, ...]


def counted(queue: Queue) -> Counted:
    backlog = queue.backlog
    numbers = (queue.consumers, queue.unacked, queue.unacked_size, queue.dead_count, queue.dead_size)
    waiting = (backlog.count, backlog.size, backlog.delayed, backlog.delayed_size)
    tally = replace(queue.tally, died=dict(queue.tally.died))
    return Counted(queue.revision, tally, (*numbers, *waiting))


def history_rows(queue: Queue) -> list[Any]:
    _, blocks = queue.histories.freeze().dump()
    return [row for block in blocks for row in unpack(block)]


def check_counts(queue: Queue) -> None:
    """Assert that the maintained counts equal computed counts."""
    backlog = queue.backlog
    held = [piece for holder in queue.holders for piece in holder.unacked.pieces()]
    held += [piece for each in (*queue.leaving, *queue.returning) for piece in each.pieces()]
    assert queue.coming_back == sum(piece.count for each in queue.returning for piece in each.pieces())
    assert queue.unacked == sum(piece.count for piece in held)
    assert queue.unacked_size == sum(piece.value.part(piece.offset, piece.count).size for piece in held)
    assert queue.consumers == sum(holder.live for holder in queue.holders)
    assert queue.dead_count == sum(dead.count for dead in dead_ranges(queue))
    assert queue.dead_size == sum(dead.size for dead in dead_ranges(queue))
    assert all(queue.stuck.values())
    browsed = backlog.browse(0, backlog.count + 1)
    assert backlog.count == sum(messages.count for messages in browsed)
    assert backlog.size == sum(messages.size for messages in browsed)
    delayed = list(backlog._delayed.browse())
    assert backlog.delayed == sum(messages.count for messages in delayed)
    assert backlog.delayed_size == sum(messages.size for messages in delayed)
    befell: dict[int, int] = {}
    for messages in [*browsed, *delayed, *dead_ranges(queue)]:
        befell[messages.history] = befell.get(messages.history, 0) + messages.count
    for piece in held:
        befell[piece.value.history] = befell.get(piece.value.history, 0) + piece.count
    befell.pop(0, None)
    assert {number: count for number, _, count in history_rows(queue)} == befell


def check_reports(queue: Queue, time_ms: int) -> None:
    """Assert that the states to be reported of a queue that was served are those of unfinished drains."""
    for consumer in queue.to_report:
        assert consumer.live
        assert consumer.client_credit is not None
        assert consumer.client_credit.is_draining
        assert consumer in queue.rotation
        due_ms = queue.backlog.due_ms()
        assert queue.returning or (due_ms is not None and due_ms <= time_ms)


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(entries)
def test_any_commands_leave_two_machines_equal(
    entries: Sequence[tuple[str, list[Command] | bool, int]],
) -> None:
    pair = Pair()
    for origin, batch_commands, pause_ms in entries:
        pair.pass_ms(pause_ms, is_outage=pause_ms % 4 == 1)
        if isinstance(batch_commands, bool):
            pair.down(origin, evicted=batch_commands)
        else:
            pair.entry(origin, batch_commands)
        pair.end_entry()
        pair.lead()
        pair.check()


ARGUMENTS_ONLY = {
    "single-active-consumer",
    "max-priority",
    "priority",
    "live-prefetch",
    "delayed-type",
    "match",
    "size",
}
"""Valid keys that policies must not have."""
EXCHANGES = ["e", "f", "g", "h"]


def unbind(session: int, binding: Binding) -> UnbindQueue | UnbindExchange:
    source, (kind, name), key, _ = binding
    arguments = binding_arguments(binding)
    if kind is DestinationKind.QUEUE:
        return UnbindQueue(session, 1, name, source, key, arguments)
    return UnbindExchange(session, name, source, key, arguments)


class Chance(Random):
    """Commands that mostly have to do with each other, and often are absurd."""

    def number(self) -> int:
        return self.choice(HUGE) if self.random() < 0.05 else self.randrange(3)

    def name(self) -> str:
        return self.choice(NAMES) if self.random() < 0.05 else self.choice(["q", "r", "q", "r", "s"])

    def table(self, prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {"x-queue-type": "quorum"} if prefix and self.random() < 0.6 else {}
        for key in self.sample(list(MEANT), self.randrange(7)):
            if prefix and found and key in ("max-priority", "delayed-type", "alternate-exchange"):
                continue
            wrong = [None, -1, 2**64 - 1, -(2**63), 0.5, b"\xff", [1, ["x"]], {"a": {}}, "", True]
            found[prefix + key] = self.choice(wrong if self.random() < 0.02 else MEANT[key])
        return found

    def field(self, command: type[Command], name: str, kind: Any) -> Any:
        absurd = self.random() < 0.05
        match name:
            case "count" if command in (Enqueue, Publish, StageMessages):
                return self.randrange(1, 6)
            case "credit":
                return self.choice([*HUGE, 0]) if absurd else self.randrange(8)
            case "first" | "last" if not absurd:
                return self.randrange(9) + (name == "last")
            case "ttl_ms" | "delay_ms" | "timeout_ms" | "age_ms":
                return self.choice(
                    HUGE if absurd else [0, 0, 1, 100, 1_000, NO_TTL if name == "ttl_ms" else 0]
                )
            case "priority" if command in (Publish, StageMessages):
                return self.choice([NO_PRIORITY, 0, 4, 5, 9, 255, *HUGE])
            case "exchange" | "source" if not absurd:
                return self.choice(["", "", "", "amq.fanout", "amq.headers", *EXCHANGES])
            case "routing_key" if self.random() < 0.1:
                return self.choice(REPLY_NAMES)
            case "publisher":
                return self.choice(["", "", "a"])
            case "type":
                return self.choice(KINDS)
            case "apply_to":
                return self.choice(APPLIES_TO[:3])
            case "pattern":
                return self.choice(PATTERNS[:3] if not absurd else PATTERNS)
            case "vhost":
                return self.choice(VHOSTS[:3])
            case "user":
                return self.choice(USERS[:3])
            case "name" if command in NAMED:
                return self.choice(NAMED[command][:3])
            case "limits":
                return {name: self.randrange(-1, 4) for name in ("max-connections", "max-channels")}
            case "definition" if self.random() < 0.7:
                return self.policy()
            case "arguments" if command in (Checkout, AttachConsumer) and not absurd:
                return {"x-priority": self.randrange(2)} if self.random() < 0.5 else {}
            case "consumer":
                return self.choice(HUGE) if absurd else self.randrange(20)
            case "node":
                return self.choice(["n1", "n2"])
            case "tag":
                return str(self.random())
            case "durable":
                return not absurd
            case "passive" | "exclusive" | "auto_delete" | "internal":
                return self.random() < 0.1
            case _:
                pass
        if kind is int:
            return self.number()
        if kind is str:
            return self.name()
        if kind is bool:
            return self.random() < 0.5
        if kind is bytes:
            return b"\xfe"
        if kind == list[int]:
            return [self.number() for _ in range(self.randrange(12))]
        if kind == list[bytes]:
            return [self.choice([b"", b"\x40", b"\xfe\xff"]) for _ in range(self.randrange(3))]
        if kind == list[str]:
            return [self.name() for _ in range(self.randrange(-3, 3))]
        return self.table("" if name == "definition" else "x-")

    def policy(self) -> dict[str, Any]:
        names = self.sample([name for name in MEANT if name not in ARGUMENTS_ONLY], self.randrange(1, 4))
        return {name: self.choice(MEANT[name]) for name in names}

    def command(self, command: type[Command]) -> Command:
        hints = get_type_hints(command)
        return command(*(self.field(command, name, hints[name]) for name in command._fields))

    def repairs(self, machine: QueueMachine, origin: str) -> list[Command]:
        """Return repairs: closes of failed sessions, declarations of missing queues."""
        found: list[Command] = []
        for (node, number), session in machine._core.sessions.items():
            if node == origin and session.failed and self.random() < 0.7:
                found.append(SessionDown(number))
        for vhost in ("/", "v"):
            if vhost not in machine.vhosts and self.random() < 0.7:
                found.append(PutVhost(vhost, "", [], ""))
            if machine.catalog.access.permissions("u", vhost) is None and self.random() < 0.5:
                found += [PutUser("u", b"", b"", []), SetPermissions("u", vhost, "", "", "")]
        for number in (200, 201):
            connection = machine.catalog.connections.get((origin, number))
            if connection is None and self.random() < 0.3:
                is_vouched = machine.version >= SINCE[ConnectVouched] and self.random() < 0.3
                kind = ConnectVouched if is_vouched else Connect
                found += [SessionDown(number), kind(number, self.choice(["/", "v"]), "u")]
            elif connection is not None and (connection.closing or self.random() < 0.03):
                found.append(ConnectionDown(number))
            elif self.random() < 0.1:
                found += [SessionDown(number - 199), OpenChannel(number - 199, number)]
        there = machine.vhosts["/"].queues if "/" in machine.vhosts else {}
        for name in ("q", "r"):
            if name not in there and self.random() < 0.7:
                # On sessions of their own, as many a table is refused.
                number = 100 + len(machine._core.sessions)
                found.append(
                    DeclareQueue(number, 1, name, False, True, False, False, False, self.table("x-"))
                )
                found.append(BindQueue(number, 1, name, "amq.fanout", "", {}))
                conditions = {"x-match": "all-with-x", "x-size": self.randrange(1, 4)}
                found.append(BindQueue(number, 1, name, "amq.headers", "", conditions))
        return found

    def topology(self, machine: QueueMachine, origin: str) -> list[Command]:
        """Exchanges of all types and bindings that suit them, which come and go."""
        sessions = machine._core.sessions
        mine = [
            number for (node, number), session in sessions.items() if node == origin and not session.failed
        ]
        number = self.choice([*mine, 100 + len(sessions)])
        vhost = machine._core.session(origin, number).vhost if number in mine else machine.vhosts.get("/")
        if vhost is None or vhost.is_deleted:
            return []
        found: list[Command] = []
        for _ in range(self.randrange(4)):
            # Each starts at existing objects, and so perhaps at none.
            source = self.choice(list(vhost.exchanges.values()))
            other = self.choice(list(vhost.exchanges))
            key, conditions = self.binding_key(source), self.conditions()
            match self.randrange(10):
                case 0 | 1:
                    found.append(self.exchange(number))
                case 2 | 3 | 4 if vhost.queues:
                    queue = self.choice(list(vhost.queues))
                    found.append(BindQueue(number, 1, queue, source.name, key, conditions))
                case 5:
                    found.append(BindExchange(number, other, source.name, key, conditions))
                case 6 | 7 if vhost.bindings:
                    found.append(unbind(number, self.choice(list(vhost.bindings))))
                case 8:
                    found.append(DeleteExchange(number, other, self.random() < 0.3))
                case 9:
                    # Exclusive, auto-delete, or both.
                    flags = self.choice([(True, True), (True, False), (False, True)])
                    name, owner = self.choice(["s", "t"]), self.choice([1, 200, 201])
                    arguments = {"x-single-active-consumer": True} if self.random() < 0.5 else {}
                    found.append(DeclareQueue(number, owner, name, False, True, *flags, False, arguments))
                case _:
                    pass
        return found

    def consumption(self, machine: QueueMachine, origin: str) -> list[Command]:
        """Return consumers of present queues, on channels with limits, and their settlements."""
        sessions, consumers = machine._core.sessions, machine.consumers
        open_sessions = [
            (number, session.vhost)
            for (node, number), session in sessions.items()
            if node == origin and not session.failed and session.vhost.queues
        ]
        if not open_sessions:
            return []
        found: list[Command] = []
        for _ in range(self.randrange(5)):
            number, vhost = self.choice(open_sessions)
            queue = self.choice(list(vhost.queues.values()))
            connection = queue.owner[1] if queue.owner else 1
            mine = [consumer for (node, _), consumer in consumers.items() if node == origin]
            free = self.choice([name for name in range(20) if (origin, name) not in consumers])
            match self.randrange(14):
                case 0 | 1 if len(mine) < 12:
                    arguments = {"x-priority": self.randrange(2)} if self.random() < 0.5 else {}
                    ids = number, connection, 1, free, queue.name, str(self.random()), self.randrange(6)
                    flags = self.random() < 0.1, False, self.random() < 0.8, False, self.random() < 0.5
                    found.append(Checkout(*ids, *flags, self.choice([0, 1_000]), arguments))
                case 2:
                    batch_commands = (number, connection, 1, free, queue.name, self.random() < 0.3, 1_000)
                    several = GetMessages(*batch_commands, self.randrange(1, 5))
                    found.append(several if self.random() < 0.5 else Get(*batch_commands))
                case 3:
                    found.append(Limit(number, self.randrange(4)))
                case 4 | 5:
                    found.append(Enqueue(number, 0, self.randrange(1, 6), "", queue.name, False, 1))
                case 6 if mine:
                    found.append(Credit(self.choice(mine).id, self.randrange(3)))
                case 7:
                    found.append(PurgeQueue(number, connection, queue.name))
                case 8 | 9 if mine:
                    consumer = self.choice(mine)
                    first = consumer.unacked.first() or 0
                    if self.random() < 0.1:
                        found.append(Cancel(consumer.session, consumer.id))
                    else:
                        kind = self.choice([Settle, Settle, Return, Reject, Discard])
                        found.append(kind(consumer.id, first, first + self.randrange(4)))
                case 10 if len(mine) < 12 and machine.version >= SINCE[AttachConsumer]:
                    arguments = {"x-priority": self.randrange(2)} if self.random() < 0.5 else {}
                    ids = number, connection, 1, free, queue.name, str(self.random())
                    flags = self.random() < 0.1, self.random() < 0.5
                    found.append(AttachConsumer(*ids, *flags, self.choice([0, 1_000]), arguments))
                case 11 | 12 | 13 if mine:
                    found += self.flow(self.choice(mine))
                case _:
                    pass
        return found

    def flow(self, consumer: Consumer) -> list[Command]:
        """Return a change of the credit or an outcome, for a consumer whose client sets the credit."""
        credit = consumer.client_credit
        if credit is None:
            return []
        if self.random() < 0.6:
            number = credit.number + self.choice([1, 1, 1, 2, 0])
            limit = self.choice(HUGE) if self.random() < 0.1 else consumer.next_id + self.randrange(-2, 6)
            is_drain, wants_state = self.random() < 0.4, self.random() < 0.3
            return [SetCredit(consumer.id, number, max(limit, 0), is_drain, wants_state)]
        first = consumer.unacked.first() or 0
        keys = self.sample(["x-a", "x-b"], self.randrange(3))
        values = [self.choice([b"\x40", b"\x41", b"\xa1\x01x"]) for _ in keys]
        fate = self.random() < 0.5, self.random() < 0.2
        return [Modify(consumer.id, first, first + self.randrange(4), *fate, keys, values, self.number())]

    def moves(self, machine: QueueMachine) -> list[Command]:
        """Moves between queues that are there, and steps of those under way: mostly as a leader takes them."""
        found: list[Command] = []
        vhost = machine.vhosts.get("/")
        if vhost is not None and vhost.queues and self.random() < 0.3:
            source, destination = self.choice(list(vhost.queues)), self.choice(["", *vhost.queues])
            name = self.choice(["m", "n", str(self.random())])
            count = self.choice([0, 0, 2])
            found.append(BeginMove("/", name, "u", source, destination, count, 0, "", "", {}, "", False))
        for move in machine.moves.running.values():
            source = machine.vhosts[move.vhost].queues.get(move.source)
            if self.random() < 0.1:
                found.append(EndMove(move.vhost, move.id, self.choice(["", "it cannot go on"])))
            elif source is not None:
                places = [RETURNED, *(place_of(level) for level in range(LEVELS))]
                place = next((p for p in sorted(places) if source.peek(p, 0, 2**64, 1)), PLACES)
                place = self.choice([move.place, place])
                peeked = source.peek(place, self.choice([0, move.key]), 2**64, self.randrange(1, 6))
                pieces = [
                    (key, self.randrange(1, messages.count + 2), 0, NO_PRIORITY, NO_TTL)
                    for key, messages in peeked
                    if self.random() < 0.8
                ]
                numbers = [number for piece in pieces for number in piece]
                then = self.choice([(place, self.randrange(9)), (PLACES, 0), (place, move.key)])
                step = move.step + (self.random() < 0.1)
                found.append(MoveMessages(move.vhost, move.id, step, place, numbers, len(pieces), *then))
        return found

    def operations(self) -> list[Command]:
        """Policies that change and go again, now and then with their virtual host."""
        if self.random() < 0.8:
            return []
        vhost, name = self.choice(["/", "/", "v"]), self.choice(["one", "two"])
        found: list[Command] = [DeletePolicy(vhost, name, False)]
        if self.random() < 0.7:
            definition = self.policy() | {"alternate-exchange": self.choice(EXCHANGES)}
            found = [PutPolicy(vhost, name, False, "", "all", self.randrange(2), definition)]
        if self.random() < 0.1:
            found.append(DeleteVhost(vhost))
        return found

    def exchange(self, session: int) -> DeclareExchange:
        arguments: dict[str, Any] = {"x-delayed-type": self.choice(KINDS[:-2])}
        if self.random() < 0.4:
            arguments["alternate-exchange"] = self.choice(EXCHANGES)
        if self.random() < 0.3:
            arguments |= self.choice([{"hash-header": "x-size"}, {"hash-property": "message_id"}])
        flags = (False, True, self.random() < 0.4, self.random() < 0.1)
        return DeclareExchange(session, self.choice(EXCHANGES), self.choice(KINDS), *flags, arguments)

    def binding_key(self, source: Exchange) -> str:
        if source.type in ("topic", "x-delayed-message"):
            return ".".join(self.choice(["q", "r", "*", "#"]) for _ in range(self.randrange(4)))
        if source.type == "x-consistent-hash":
            return str(self.randrange(1, 4))
        return self.choice(["q", "r"])

    def conditions(self) -> dict[str, Any]:
        if self.random() < 0.5:
            return {}
        names = self.sample(["x-size", "a", "b", "c"], self.randrange(4))
        how = {"x-match": self.choice(MEANT["match"])} if self.random() < 0.8 else {}
        return how | {name: self.choice([1, 2, 3, None, "x"]) for name in names}

    def commands(self) -> list[Command]:
        found: list[Command] = []
        often = [Enqueue, Publish, Publish, Checkout, ReplyTo, DeclareQueue, Settle, Return, Reject, Discard]
        content = [Enqueue, Publish, Settle, Return, Reject, Discard]
        for _ in range(self.randrange(6)):
            kind = self.choice(often if self.random() < 0.6 else list(OPCODES))
            if kind is Commit:
                parts = [self.command(self.choice(content)) for _ in range(self.randrange(4))]
                found += [Commit(self.number(), len(parts)), *parts]
            elif kind is JoinFragments or (kind in (Enqueue, Publish) and self.random() < 0.1):
                found += large(
                    self.number(), self.randrange(3), self.command(self.choice([Enqueue, Publish]))
                )
            else:
                found.append(self.command(kind))
        return found


@pytest.mark.slow
@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(settings.default.max_examples // 10))
def test_long_run_of_absurd_commands_does_not_raise(seed: int) -> None:
    absurd_run(seed)


@pytest.mark.slow
@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(100, 100 + settings.default.max_examples // 10))
def test_long_run_in_the_smallest_portions_does_not_raise(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(queue_module, "RANGES_AT_ONCE", 0)
    least = {
        "LOST_MAX": 1,
        "RANGES_AT_ONCE": 0,
        "RANGES_MAX": 2,
        "RANGES_OF_QUEUE_MAX": 1,
        "SERVED_MAX": 2,
        "QUEUES_GONE_MAX": 1,
    }
    for name, most in least.items():
        monkeypatch.setattr(core_module, name, most)
    absurd_run(seed)


@pytest.mark.slow
@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(200, 200 + settings.default.max_examples // 10))
def test_long_run_with_raised_versions_does_not_raise(seed: int) -> None:
    chance = Random(seed)
    first, *later = sorted(chance.sample(range(VERSIONS[0], VERSIONS[1] + 1), chance.choice([2, 3])))
    raises = zip(sorted(chance.sample(range(5, 55), len(later))), later, strict=True)
    absurd_run(seed, first, dict(raises))


def known_to(version: int, batch_commands: Sequence[Command]) -> list[Command]:
    """Those of the commands that there are in this version of the state; transactions go as a whole."""
    found: list[Command] = []
    left = deque(batch_commands)
    while left:
        command = left.popleft()
        count = command.count if isinstance(command, Commit) else 0
        group = [command, *(left.popleft() for _ in range(count))]
        if all(SINCE.get(type(each), 0) <= version for each in group):
            found += group
    return found


def absurd_run(seed: int, version: int = VERSIONS[1], raises: Mapping[int, int] = NEVER_RAISED) -> None:
    """Run from this version of the state on; `raises` maps entries to the versions raised before them."""
    chance = Chance(seed)
    pair = Pair(version)
    for number in range(60):
        if number in raises:
            pair.raise_to(raises[number])
        pair.pass_ms(chance.choice([0, 0, 1, 100, 1_000, 5_000]), is_outage=chance.random() < 0.2)
        origin = chance.choice(["n1", "n2"])
        if chance.random() < 0.05:
            pair.down(origin, evicted=chance.random() < 0.5)
        else:
            machine = pair.one
            known = [*chance.repairs(machine, origin), *chance.topology(machine, origin)]
            known += [*chance.consumption(machine, origin), *chance.operations(), *chance.moves(machine)]
            pair.entry(origin, known_to(machine.version, [*known, *chance.commands()]))
        pair.end_entry()
        if chance.random() < 0.8:
            pair.lead()
        pair.check()


@given(
    commands,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    st.integers(0, 300),
)
def test_damaged_batch_is_applied_or_refused_without_effect(
    batch_commands: list[Command], flips: list[tuple[int, int]], cut: int
) -> None:
    payload = bytearray(batch(batch_commands, [b"x"] * published_by(batch_commands)))
    for place, mask in flips:
        payload[place % len(payload)] ^= mask
    machine = newest_machine()
    apply_damaged(machine, bytes(payload[: len(payload) - cut]))
    machine.end_entry(1)
    reloaded(machine)


@given(st.binary(max_size=200))
def test_noise_has_no_effect(noise: bytes) -> None:
    machine = newest_machine()
    apply_damaged(machine, noise)
    machine.end_entry(1)
    reloaded(machine)


def apply_damaged(machine: QueueMachine, payload: bytes) -> None:
    before = machine.digest()
    try:
        decode_commands(payload)
    except MalformedBatch:
        with pytest.raises(MalformedBatch):
            machine.apply_batch("n1", 1, 0, 1, memoryview(payload))
        assert machine.digest() == before
    else:
        machine.apply_batch("n1", 1, 0, 1, memoryview(payload))
