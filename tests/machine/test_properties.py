from __future__ import annotations

from itertools import count, pairwise
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol import death_history
from qq.machine.protocol import effects as e
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue import runs
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.likeness import differences
from tests.machine.machine_driver import (
    TICKS_MAX,
    Log,
    Shell,
    attach,
    batch,
    consume,
    live_messages,
    never_later,
    publish,
    reloaded,
)
from tests.machine.message_oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.machine.snapshot.state import FrozenMachine
    from tests.machine.machine_driver import Place

NODES = ("n1", "n2", "n3")
QUEUES = ("q", "r", "s")
SESSIONS = 3

LIMITS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 5},
    {"x-max-length": 5, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 40},
    {"x-max-length-bytes": 40, "x-overflow": "reject-publish"},
    {"x-max-length": 7, "x-max-length-bytes": 60},
]
KINDS: list[dict[str, Any]] = [
    {},
    {"x-max-priority": 3},
    {"x-queue-type": "quorum"},
    {"x-queue-type": "quorum", "x-delivery-limit": 1},
    {"x-queue-type": "quorum", "x-delivery-limit": -1},
    {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-delivery-count-mode": "4.3"},
    {"x-queue-type": "quorum", "x-priority-mode": "strict"},
    {"x-queue-type": "quorum", "x-return-position": "original"},
    {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 100},
    {"x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-min": 100},
    {"x-queue-type": "quorum", "x-delayed-retry-type": "returned", "x-delayed-retry-min": 100},
]
TIMES: list[dict[str, Any]] = [{}, {}, {"x-message-ttl": 0}, {"x-message-ttl": 300}]
DEAD_LETTERS: list[dict[str, Any]] = [
    {},
    {"x-dead-letter-exchange": ""},
    *({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name} for name in (*QUEUES, "nowhere")),
]
SINGLE: list[dict[str, Any]] = [{}, {}, {"x-single-active-consumer": True}]
LEAST: list[dict[str, Any]] = [{}, {"x-dead-letter-strategy": "at-least-once"}]
CHOICES = (LIMITS, KINDS, TIMES, DEAD_LETTERS, SINGLE, LEAST)

number = st.integers(0, 2**16)
queue_choice = st.tuples(*(st.integers(0, len(choices) - 1) for choices in CHOICES))
verbs = (
    *["publish"] * 5,
    *["publish-odd"] * 4,
    *["settle"] * 4,
    *["consume"] * 3,
    *["return", "reject", "discard"] * 2,
    *["publish-to-both", "credit", "set-prefetch", "cancel", "get", "recover", "session-down"],
    *["limit", "commit", "commit", "purge", "delete"],
    *["open-sink", "stage", "stage", "stage", "commit-epoch", "commit-epoch", "close-sink"],
    *["open-group", "open-group", "lease", "lease", "commit-leases", "release", "close-group"],
    *["attach", "attach", "set-credit", "set-credit", "set-credit", "modify", "modify"],
)
requests = st.tuples(st.sampled_from(verbs), number, number, number)
PAUSES = (0, 0, 0, 1, 99, 100, 300, 5_000)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(NODES), st.lists(requests, min_size=1, max_size=4), st.sampled_from(PAUSES)
        ),
        st.tuples(st.sampled_from(NODES), st.just("down"), st.sampled_from(PAUSES)),
    ),
    max_size=25,
)


def queue_arguments(choice: Sequence[int]) -> dict[str, Any]:
    """Return arguments of a queue, without those that its type does not know."""
    found: dict[str, Any] = {}
    for number, choices in zip(choice, CHOICES, strict=True):
        found |= choices[number]
    if "x-delayed-retry-min" in found:
        found["x-delayed-retry-max"] = 250
    if "x-queue-type" not in found:
        found.pop("x-dead-letter-strategy", None)
    return found


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Backlogs of a few messages are packed, too."""
    with mock.patch.object(runs, "_CHUNK_WORDS", 12), mock.patch.object(death_history, "ANNOTATIONS_MAX", 20):
        yield


class Moment:
    """A frozen state, and its contents at that time."""

    def __init__(self, machine: QueueMachine) -> None:
        self.frozen: FrozenMachine = machine.freeze()
        self.dump = machine.dump()
        self.live: list[Place] = live_messages(machine)

    def check(self, last_index: int) -> None:
        assert self.frozen.dump() == self.dump
        bounds = [*range(0, last_index, 3), last_index + 1]
        counts = [sum(first <= place[0] < end for place in self.live) for first, end in pairwise(bounds)]
        assert self.frozen.counts(bounds) == counts
        for first, end in ((0, last_index + 1), (last_index // 3, last_index // 2)):
            found = self.frozen.live(first, end)
            places = [
                (index, ordinal, message)
                for index, batches in found.items()
                for ordinal, ranges in batches.items()
                for start, number in ranges
                for message in range(start, start + number)
            ]
            assert places == sorted({place for place in self.live if first <= place[0] < end})


class Run:
    """A machine, copies that are reloaded from dumps, and the oracle, under the same commands."""

    def __init__(self, choices: Sequence[Sequence[int]], *, varied: bool) -> None:
        self.arguments = dict(zip(QUEUES, map(queue_arguments, choices), strict=True))
        self.varied = varied
        """Messages of a batch have different sizes."""
        if varied:
            # The octets of a dead letter are only known if each message has a size of its own.
            for arguments in self.arguments.values():
                arguments.pop("x-dead-letter-exchange", None)
                arguments.pop("x-dead-letter-routing-key", None)
        self.machine = QueueMachine()
        self.twin = QueueMachine()
        """Loaded at every entry."""
        for machine in (self.machine, self.twin):
            machine.raise_to(VERSIONS[1])
        self.heirs: list[QueueMachine] = []
        """Each was loaded once, and followed the log from there."""
        self.moments: list[Moment] = []
        self.shells = {node: Shell(node) for node in NODES}
        self.oracle = Oracle(self.arguments)
        self.log = Log()
        self.moved: list[c.DeadLetter] = []
        """Earlier commands of leaders."""
        self.index = 0
        self.now_ms = 1_000_000
        self.ids = count(1)
        self.sequences = {"p1": count(1, 3), "p2": count(1, 3)}

    def entry(self, node: str, drawn_commands: Sequence[tuple[str, int, int, int]], pause_ms: int) -> None:
        self.now_ms += pause_ms
        # A queue that was deleted comes back, so that there is always something to do.
        commands: list[c.Command] = []
        for name in QUEUES:
            if name not in self.oracle.queues:
                arguments = self.arguments[name]
                commands.append(c.DeclareQueue(9, 9, name, False, True, False, False, False, arguments))
                commands.append(c.BindQueue(9, 9, name, "amq.fanout", "", {}))
        for drawn in drawn_commands:
            command = self._command(node, *drawn)
            if isinstance(command, list):
                commands += command
            elif command is not None:
                commands.append(command)
            if isinstance(command, (c.DeleteQueue, c.SessionDown)):
                break
        self._apply(node, commands)
        last = commands[-1] if commands else None
        if isinstance(last, c.SessionDown):
            self.shells[node].forget(last.session)
        self.lead(hurried=self.index % 4 == 0)

    def _apply(self, node: str, commands: list[c.Command]) -> None:
        self.index += 1
        messages = len(self.log.record(self.index, 0, commands, bcc=["s"]))
        sizes = [1 + (slot * 7 if self.varied else self.index) % 13 for slot in range(messages)]
        payload = batch(commands, [b"x" * size for size in sizes])
        effects = self.machine.apply_batch(node, self.index, 0, self.now_ms, payload)
        for other in (self.twin, *self.heirs):
            assert other.apply_batch(node, self.index, 0, self.now_ms, payload) == effects
        self.oracle.apply(node, self.index, self.now_ms, commands, sizes, effects)
        self._receive(effects)
        self._end_entry()

    def node_down(self, node: str, pause_ms: int, *, evicted: bool) -> None:
        self.now_ms += pause_ms
        self.index += 1
        effects = self.machine.origin_down(node, self.now_ms, evicted=evicted)
        for other in (self.twin, *self.heirs):
            assert other.origin_down(node, self.now_ms, evicted=evicted) == effects
        self.shells[node] = Shell(node)
        assert effects == ([e.OriginEvicted(node)] if evicted else [])
        self.oracle.node_down(node, self.now_ms)
        self._end_entry()
        self.lead(hurried=False)

    def lead(self, *, hurried: bool) -> None:
        """Apply entries of a leader; it may lose its office in between, and be late for due timers."""
        for _ in range(1 if hurried else TICKS_MAX):
            dead = self.log.dead_letters(self.machine, 3)
            # A leader may choose the order of the queues.
            assert sorted(dead) == sorted(self.log.dead_letters(self.twin, 3))
            due_ms = self.machine.due_ms()
            if not dead and (due_ms is None or due_ms > self.now_ms):
                return
            # An earlier leader's commands come again, or late.
            late = self.moved[-2:] if self.index % 2 else []
            self.moved += dead
            self._apply("n1", [*late, *dead, *(dead[:1] if self.index % 3 else [])])
        assert hurried

    def _end_entry(self) -> None:
        self.twin = reloaded(self.twin)
        served = self.machine.end_entry(self.now_ms)
        self.oracle.end_entry(self.now_ms, served)
        self._receive(served)
        dump = self.machine.dump()
        for other in (self.twin, *self.heirs):
            assert other.end_entry(self.now_ms) == served
            assert other.dump() == dump
            assert never_later(other, reloaded(other))
        if self.index % 5 == 0:
            assert differences(self.machine, reloaded(self.twin)) == []
        self.oracle.compare(self.machine, sizes=not self.varied)
        if self.index % 10 == 0:
            self.moments.append(Moment(self.machine))
            self.heirs = [*self.heirs[-2:], reloaded(self.machine)]

    def _receive(self, effects: Sequence[e.Effect]) -> None:
        """Each node receives some entries, and the state in place of others."""
        for number, shell in enumerate(self.shells.values()):
            if (self.index // 5 + number) % 3:
                if shell.missed:
                    shell.resume(self.machine)
                else:
                    shell.receive(effects)
            else:
                shell.missed = True

    def check_moments(self) -> None:
        for moment in self.moments:
            moment.check(self.index)

    def _command(
        self, node: str, verb: str, one: int, two: int, three: int
    ) -> c.Command | list[c.Command] | None:
        session, queue = one % SESSIONS, QUEUES[two % len(QUEUES)]
        mine = [key[1] for key in self.oracle.consumers if key[0] == node]
        consumer = mine[one % len(mine)] if mine else 99_999
        # Ids near those that are there, so that most settle something, in the middle or at the front.
        known = self.oracle.consumers.get((node, consumer))
        newest = known.delivered if known else 1
        first = two % (newest + 1) if two % 3 else 0
        last = first + three % 6
        match verb:
            case "publish":
                return publish(1 + three % 12, queue, session=session, first_seq=three % 2)
            case "publish-to-both":
                return publish(1 + three % 12, "", "amq.fanout", session=session)
            case "publish-odd":
                return self._odd(session, queue, one, two, three)
            case "settle":
                return c.Settle(consumer, first, last)
            case "discard":
                return c.Discard(consumer, first, last)
            case "return":
                return c.Return(consumer, first, last)
            case "reject":
                return c.Reject(consumer, first, last)
            case "commit":
                return self._transaction(session, queue, consumer, first, last, three)
            case "credit":
                return c.Credit(consumer, three % 8)
            case "set-prefetch":
                return c.SetPrefetch(consumer, three % 8)
            case "limit":
                return c.Limit(session, three % 6)
            case "consume":
                flags = {"no_ack": one % 5 == 0, "auto_credit": two % 4 != 0}
                arguments = {"x-priority": one % 7 - 3} if one % 2 else {}
                new = next(self.ids)
                return consume(new, queue, three % 9, session, arguments=arguments, **flags)
            case "attach":
                flags = {
                    "no_ack": one % 7 == 0,
                    "wants_activity": two % 3 != 0,
                    "timeout_ms": three % 2 * 400,
                }
                arguments = {"x-priority": one % 7 - 3} if one % 2 else {}
                return attach(next(self.ids), queue, session, arguments=arguments, **flags)
            case "set-credit" | "modify":
                return self._flow_command(verb, node, one, two, three)
            case "cancel":
                return c.Cancel(known.session if known else session, consumer)
            case "get":
                drawn_commands = (session, 9, 1, next(self.ids), queue, three % 4 == 0, 0)
                return c.GetMessages(*drawn_commands, 1 + two % 5) if one % 2 else c.Get(*drawn_commands)
            case "recover":
                return c.Recover(session)
            case "session-down":
                failed = [number for there, number in sorted(self.oracle.failed) if there == node]
                return c.SessionDown(failed[0] if failed else session)
            case "open-group" | "lease" | "commit-leases" | "release" | "close-group":
                return self._group_command(verb, queue, one, two, three)
            case "open-sink" | "stage" | "commit-epoch" | "close-sink":
                return self._sink_command(verb, queue, one, two, three)
            case "purge":
                return c.PurgeQueue(session, 9, queue) if three % 4 == 0 else None
            case _:
                return c.DeleteQueue(session, 9, queue, False, three % 8 == 0) if three % 4 == 0 else None

    def _odd(self, session: int, queue: str, one: int, two: int, three: int) -> c.Command:
        """Return publishes with properties; some repeat a message of a publisher with numbers."""
        publisher = ("", "", "p1", "p2")[two % 4]
        sequence = next(self.sequences[publisher]) if publisher else 0
        return publish(
            1 + three % 5,
            queue,
            session=session,
            first_seq=1 + three % 2,
            more_keys=QUEUES[: one % 3] if one % 5 == 0 else (),
            priority=(NO_PRIORITY, 0, 5, 9, 255)[one % 5],
            ttl_ms=(NO_TTL, NO_TTL, 0, 100, 250, 5_000)[two % 6],
            delay_ms=(0, 0, 100, 150)[three % 4],
            publisher=publisher,
            publish_seq=sequence,
        )

    def _flow_command(self, verb: str, node: str, one: int, two: int, three: int) -> c.Command | None:
        """Return a command for a consumer whose client sets the credit, mostly with the next number."""
        mine = [(key[1], each) for key, each in self.oracle.consumers.items() if key[0] == node and each.flow]
        if not mine:
            return None
        number, consumer = mine[one % len(mine)]
        assert consumer.flow is not None
        if verb == "set-credit":
            command_number = consumer.flow.number + (two % 9 != 0)
            limit = 2**63 + three if two % 11 == 0 else max(consumer.delivered + three % 9 - 2, 0)
            return c.SetCredit(number, command_number, limit, one % 3 == 0, two % 4 == 0)
        first = min(consumer.held, default=0) + two % 3
        annotations = {f"x-{letter}": bytes(three % 6) for letter in "abc"[: one % 4]}
        lists = list(annotations), list(annotations.values())
        ready_ms = self.now_ms + two % 200 if two % 3 == 0 else 0
        flags = one % 2 == 0, two % 7 == 0
        return c.Modify(number, first, first + three % 4, *flags, *lists, ready_ms)

    def _sink_command(self, verb: str, queue: str, one: int, two: int, three: int) -> c.Command:
        """Return a command of a sink, mostly of its user, with an attempt that is there and its next step."""
        name = ("s", "t")[one % 2]
        there = self.oracle.sinks.get(name)
        place = "/", name, "eve" if two % 16 == 5 else "ann"
        epoch = max((there.first_free if there else 0) + (0, 0, 0, 1, -1)[three % 5], 0)
        attempt = ("a", "b")[two % 2]
        known = there.attempts.get(attempt) if there else None
        if known is not None and three % 8:
            epoch = known.epoch
        match verb:
            case "close-sink" if three % 3 == 0:
                return c.CloseSink(*place)
            case "open-sink" | "stage" | "commit-epoch" if there is None or (
                verb == "open-sink" and three % 3 == 0
            ):
                return c.OpenSink(*place, (0, 0, 250)[three % 3])
            case "commit-epoch" if there and there.attempts:
                epoch = next(iter(there.attempts.values())).epoch if three % 8 else epoch
                mine = {each: row.steps for each, row in there.attempts.items() if row.epoch == epoch}
                chosen = list(mine) if one % 3 else list(mine)[:1]
                chosen += chosen[:1] if three % 16 == 3 else []
                steps = [mine[each] + (three % 16 == 7) for each in chosen]
                return c.CommitEpoch(*place, epoch, chosen, steps)
            case _:
                step = max((known.steps if known else 0) + (0, 0, 0, 0, 1, -1)[one % 6], 0)
                exchange, key = ("amq.fanout", "") if one % 7 == 3 else ("", queue if one % 13 else "nowhere")
                more_keys = QUEUES[: one % 3] if key == queue and one % 5 == 0 else ()
                where = exchange, key, 1, list(more_keys)
                priority = (NO_PRIORITY, 0, 5, 9, 255)[one % 5]
                ttl_ms, delay_ms = (NO_TTL, NO_TTL, 0, 100, 250)[two % 5], (0, 0, 0, 100, 150)[three % 5]
                count = 1 + three % 5
                return c.StageMessages(
                    *place, epoch, attempt, step, count, *where, priority, ttl_ms, delay_ms
                )

    def _group_command(self, verb: str, queue: str, one: int, two: int, three: int) -> c.Command:
        """Return a command of a group, mostly with the fence and the number of a lease that are there."""
        name = ("g", "h")[one % 2]
        there = self.oracle.queues[queue].groups.get(name) if queue in self.oracle.queues else None
        fence = (there.fence if there else 1) + (two % 8 == 0) - (two % 8 == 1 and there is not None)
        place = ("/", queue, name, max(fence, 0))
        numbers = sorted(there.leases) if there else []
        number = numbers[three % len(numbers)] if numbers and two % 6 else three % 9
        generation = (0, 0, there.generation, max(there.generation - 1, 0))[one % 4] if there else one % 2
        match verb:
            case "open-group" if there is None or two % 3 == 0:
                settings = (("ready", "arrival")[three % 2], one % 16 == 3, (0, 0, 250)[three % 3])
                return c.OpenGroup(*place, f"owner {two % 2}", "ann", *settings)
            case "open-group" | "lease":
                octets = 2**40 if self.varied or one % 3 else three % 60
                new = max((there.last if there else -1) + three % 3, 0)
                return c.LeaseMessages(*place, number if two % 4 == 0 else new, one % 12, octets, generation)
            case "commit-leases":
                return c.CommitLeases(*place, number, generation)
            case "release":
                return c.ReleaseLease(*place, number, generation)
            case _:
                return c.CloseGroup(*place, three % 4 == 0, generation)

    def _transaction(
        self, session: int, queue: str, consumer: int, first: int, last: int, three: int
    ) -> list[c.Command]:
        kind = (c.Settle, c.Return, c.Reject, c.Discard)[three % 4]
        if three % 5 == 0:
            leases = self._group_command("commit-leases", queue, session, first, last)
            return [c.Commit(session, 2), publish(2, queue, session=session), leases]
        content: list[c.Command] = [
            publish(1 + three % 3, queue, session=session),
            kind(consumer, first, last),
            publish(1 + three % 2, "r", session=session, priority=three % 9),
        ]
        content = content[: 1 + three % 3]
        return [c.Commit(session, len(content)), *content]


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(st.tuples(queue_choice, queue_choice, queue_choice), st.booleans(), steps)
def test_machine_agrees_with_the_oracle_after_every_entry(
    choices: tuple[tuple[int, ...], ...], varied: bool, steps: list[tuple[str, object, int]]
) -> None:
    run = Run(choices, varied=varied)
    for node, drawn_commands, pause_ms in steps:
        if isinstance(drawn_commands, list):
            run.entry(node, drawn_commands, pause_ms)
        else:
            run.node_down(node, pause_ms, evicted=run.index % 2 == 0)
    run.moments.append(Moment(run.machine))
    run.check_moments()


@pytest.mark.slow
@pytest.mark.seeds
@pytest.mark.parametrize("seed", range(1, 1 + settings.default.max_examples // 12))
def test_machine_agrees_with_the_oracle_in_a_long_run(seed: int) -> None:
    """Hypothesis finds short stories; these are long enough for ranges to be split, returned and split again."""
    live(seed, 80)


def live(seed: int, entries: int) -> None:
    chance = Random(seed)
    choices = [[chance.randrange(len(choices)) for choices in CHOICES] for _ in QUEUES]
    run = Run(choices, varied=chance.random() < 0.3)
    for _ in range(entries):
        node = chance.choice(NODES)
        pause_ms = chance.choice(PAUSES)
        if chance.random() < 0.03:
            run.node_down(node, pause_ms, evicted=chance.random() < 0.5)
        else:
            drawn_commands = [
                (chance.choice(verbs), *(chance.randrange(2**16) for _ in range(3)))
                for _ in range(chance.randrange(1, 6))
            ]
            run.entry(node, drawn_commands, pause_ms)
    run.check_moments()
