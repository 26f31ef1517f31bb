from __future__ import annotations

from itertools import count, pairwise
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_driver import Shell, batch, live_messages, reloaded
from message_oracle import Oracle

from qq.machine import commands as c
from qq.machine import effects as e
from qq.machine import runs
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from machine_driver import Place

    from qq.machine.state import Frozen

NODES = ("n1", "n2", "n3")
QUEUES = ("q", "r")
SESSIONS = 3

number = st.integers(0, 2**16)
verbs = (
    *["publish"] * 5,
    *["settle"] * 5,
    *["consume"] * 3,
    *["return"] * 2,
    *["publish-to-both", "discard", "credit", "cancel", "get", "recover", "session-down", "purge", "delete"],
)
asks = st.tuples(st.sampled_from(verbs), number, number, number)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NODES), st.lists(asks, min_size=1, max_size=4)),
        st.tuples(st.sampled_from(NODES), st.just("down")),
    ),
    max_size=25,
)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Backlogs of a few messages are packed, too."""
    with mock.patch.object(runs, "_CHUNK_WORDS", 6):
        yield


class Moment:
    """A state that was frozen, and what it was then."""

    def __init__(self, machine: QueueMachine) -> None:
        self.frozen: Frozen = machine.freeze()
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
    """A machine, others that live by dumps, and the oracle, under the same commands."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.twin = QueueMachine()
        """Loaded at every entry."""
        self.heirs: list[QueueMachine] = []
        """Each was loaded once, and followed the log from there."""
        self.moments: list[Moment] = []
        self.shells = {node: Shell(node) for node in NODES}
        self.oracle = Oracle()
        self.index = 0
        self.ids = count(1)

    def entry(self, node: str, asked: Sequence[tuple[str, int, int, int]]) -> None:
        # A queue that was deleted comes back, so that there is always something to do.
        commands: list[c.Command] = []
        for name in QUEUES:
            commands.append(c.DeclareQueue(9, 9, name, False, True, False, False, {}))
            commands.append(c.BindQueue(9, 9, name, "amq.fanout", "", {}))
        for ask in asked:
            command = self._command(node, *ask)
            if command is not None:
                commands.append(command)
            if isinstance(command, (c.DeleteQueue, c.SessionDown)):
                break
        self._apply(node, commands)
        last = commands[-1]
        if isinstance(last, c.SessionDown):
            self.shells[node].forget(last.session)

    def _apply(self, node: str, commands: list[c.Command]) -> None:
        self.index += 1
        messages = sum(command.count for command in commands if isinstance(command, c.Enqueue))
        payload = batch(commands, [b"x"] * messages)
        effects = self.machine.apply_batch(node, self.index, 0, 0, payload)
        for other in (self.twin, *self.heirs):
            assert other.apply_batch(node, self.index, 0, 0, payload) == effects
        self.oracle.apply(node, self.index, commands, effects)
        self._told(effects)
        self._end_entry()

    def node_down(self, node: str, *, expelled: bool) -> None:
        effects = self.machine.origin_down(node, expelled=expelled)
        for other in (self.twin, *self.heirs):
            assert other.origin_down(node, expelled=expelled) == effects
        self.shells[node] = Shell(node)
        assert effects == ([e.OriginExpelled(node)] if expelled else [])
        self.oracle.node_down(node)
        self._end_entry()

    def _end_entry(self) -> None:
        self.twin = reloaded(self.twin)
        served = self.machine.end_entry()
        self.oracle.follow(served, ended=True)
        self._told(served)
        dump = self.machine.dump()
        for other in (self.twin, *self.heirs):
            assert other.end_entry() == served
            assert other.dump() == dump
        self.oracle.compare(self.machine)
        if self.index % 10 == 0:
            self.moments.append(Moment(self.machine))
            self.heirs = [*self.heirs[-2:], reloaded(self.machine)]

    def _told(self, effects: Sequence[e.Effect]) -> None:
        """Each node hears of some entries and is given the state instead of others."""
        for number, shell in enumerate(self.shells.values()):
            if (self.index // 5 + number) % 3:
                if shell.missed:
                    shell.resume(self.machine)
                else:
                    shell.hear(effects)
            else:
                shell.missed = True

    def check_moments(self) -> None:
        for moment in self.moments:
            moment.check(self.index)

    def _command(self, node: str, verb: str, one: int, two: int, three: int) -> c.Command | None:
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
                return c.Enqueue(session, 0, 1 + three % 12, "", queue, False, 1)
            case "publish-to-both":
                return c.Enqueue(session, 0, 1 + three % 12, "amq.fanout", "", False, 1)
            case "settle":
                return c.Settle(consumer, first, last)
            case "discard":
                return c.Discard(consumer, first, last)
            case "return":
                return c.Return(consumer, first, last)
            case "credit":
                return c.Credit(consumer, three % 8)
            case "consume":
                new = next(self.ids)
                no_ack, auto = one % 5 == 0, two % 4 != 0
                return c.Checkout(
                    session, 9, new, queue, f"t{new}", three % 9, no_ack, False, auto, False, {}
                )
            case "cancel":
                return c.Cancel(known.session if known else session, consumer)
            case "get":
                return c.Get(session, 9, next(self.ids), queue, three % 4 == 0)
            case "recover":
                return c.Recover(session)
            case "session-down":
                return c.SessionDown(session)
            case "purge":
                return c.PurgeQueue(9, 9, queue) if three % 4 == 0 else None
            case _:
                return c.DeleteQueue(9, 9, queue, False, False) if three % 4 == 0 else None


@settings(max_examples=150, deadline=None)
@given(steps)
def test_every_message_is_where_the_oracle_has_it_after_every_entry(steps: list[tuple[str, object]]) -> None:
    run = Run()
    for node, asked in steps:
        if isinstance(asked, list):
            run.entry(node, asked)
        else:
            run.node_down(node, expelled=run.index % 2 == 0)
    run.moments.append(Moment(run.machine))
    run.check_moments()


@pytest.mark.parametrize("seed", range(12))
def test_so_it_is_in_a_long_life(seed: int) -> None:
    """Hypothesis finds short stories; these are long enough for ranges to be split, returned and split again."""
    chance = Random(seed)
    run = Run()
    for _ in range(120):
        node = chance.choice(NODES)
        if chance.random() < 0.03:
            run.node_down(node, expelled=chance.random() < 0.5)
        else:
            size = chance.randrange(1, 6)
            run.entry(
                node,
                [(chance.choice(verbs), *(chance.randrange(2**16) for _ in range(3))) for _ in range(size)],
            )
    run.check_moments()
