"""The numbers of messages: no message is lost after any redelivery, and none is duplicated without need."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.machine.catalog.deduplication import Publishers
from qq.machine.catalog.limits import PARAMETER_BYTES_MAX
from qq.shovels.ledger import ENTRIES_MAX, KEY_BYTES, Ledger, Number, decode_entries, encode_entries

MESSAGES = 5


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


@dataclass
class World:
    """A source, a target that knows publishers, and a shovel between them whose runs break off."""

    ready: list[tuple[int, bool]] = field(default_factory=lambda: [(each, False) for each in range(MESSAGES)])
    held: list[int] = field(default_factory=list)
    """Messages that a second consumer of the source holds."""
    unacked: list[int] = field(default_factory=list)
    wire: list[tuple[int, Number]] = field(default_factory=list)
    """Messages sent and not arrived."""
    ghosts: list[tuple[int, Number]] = field(default_factory=list)
    """Messages that former runs have sent, not arrived."""
    taken: list[int] = field(default_factory=list)
    text: str | None = None
    publishers: Publishers = field(default_factory=Publishers)
    runs: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger("p0"))

    def deliver(self) -> None:
        if not self.ready:
            return
        message, is_redelivered = self.ready.pop(0)
        self.unacked.append(message)
        number = self.ledger.number(key(message), is_redelivered=is_redelivered)
        if self.ledger.is_changed:
            self.text = encode_entries(self.ledger.entries(), "s")
            self.ledger.is_changed = False
        self.wire.append((message, number))

    def arrive(self) -> None:
        """The target takes the next message, confirms it, and it is acknowledged."""
        if self.wire:
            message = self.take(self.wire)
            if message in self.unacked:
                self.unacked.remove(message)
                self.ledger.forget(key(message))

    def take(self, wire: list[tuple[int, Number]]) -> int:
        message, (publisher, number) = wire.pop(0)
        if self.publishers.new((publisher,), number, 1, 0):
            self.publishers.admit((publisher,), (number, number), 0)
            self.taken.append(message)
        return message

    def take_unconfirmed(self) -> None:
        """The target takes the next message, and its confirm is lost."""
        if self.wire:
            self.take(self.wire)

    def break_off_unnoticed(self) -> None:
        """The next run begins, and messages on the wire may still arrive."""
        self.ghosts += self.wire
        self.break_off()

    def take_late(self) -> None:
        """The target takes a message of a former run."""
        if self.ghosts:
            self.take(self.ghosts)

    def break_off(self) -> None:
        """The next run begins with the stored numbers, and messages on the wire are lost."""
        self.wire.clear()
        self.ready[:0] = [(message, True) for message in self.unacked]
        self.unacked.clear()
        self.runs += 1
        self.ledger = Ledger(f"p{self.runs}", decode_entries(self.text, "s"))

    def steal(self) -> None:
        """A second consumer gets the next message."""
        if self.ready:
            self.held.append(self.ready.pop(0)[0])

    def give_back(self) -> None:
        self.ready[:0] = [(message, True) for message in self.held]
        self.held.clear()

    def finish(self) -> None:
        self.give_back()
        while self.ready or self.wire:
            self.deliver()
            self.arrive()


QUIET = ["deliver", "arrive", "take_unconfirmed", "break_off", "break_off_unnoticed", "take_late"]


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.sampled_from([*QUIET, "steal", "give_back"]), max_size=60))
def test_no_message_is_lost_when_consumers_share_the_source(steps: list[str]) -> None:
    world = World()
    for step in steps:
        getattr(world, step)()
    world.break_off()
    world.finish()
    assert set(world.taken) == set(range(MESSAGES))


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.sampled_from(QUIET), max_size=60))
def test_sole_consumer_shovel_duplicates_no_message(steps: list[str]) -> None:
    world = World()
    for step in steps:
        getattr(world, step)()
    world.break_off()
    world.finish()
    assert sorted(world.taken) == list(range(MESSAGES))


@pytest.mark.parametrize("is_broken_off_again", [False, True])
def test_skipped_number_is_not_reused(is_broken_off_again: bool) -> None:
    """Message 0 has number 1 and was never sent; the target has taken number 2 meanwhile, and would drop it."""
    world = World()
    for step in ("deliver", "deliver", "break_off", "steal", "deliver", "take_unconfirmed", "give_back"):
        getattr(world, step)()
    if is_broken_off_again:
        world.break_off()
        world.ready.sort()
    world.finish()
    assert set(world.taken) == set(range(MESSAGES))


def test_message_is_doubled_without_the_stored_numbers() -> None:
    world = World()
    world.deliver()
    world.take_unconfirmed()
    world.text = None
    world.break_off()
    world.finish()
    assert world.taken.count(0) == 2


def test_message_that_is_not_redelivered_gets_a_new_number() -> None:
    ledger = Ledger("p1", [(key(1), Number("p0", 5))])
    assert ledger.number(key(1), is_redelivered=False) == ("p1", 1)


def test_redelivered_message_keeps_its_number_within_a_run() -> None:
    ledger = Ledger("p1", [(key(1), Number("p0", 5))])
    for each, number in ((1, ("p0", 5)), (2, ("p1", 1)), (3, ("p1", 2)), (2, ("p1", 1)), (1, ("p0", 5))):
        assert ledger.number(key(each), is_redelivered=each != 3) == number


def test_ledger_keeps_the_last_messages_within_a_parameter() -> None:
    ledger = Ledger("a cluster's name, and 32 digits more " * 2)
    for each in range(ENTRIES_MAX + 5):
        ledger.number(key(each), is_redelivered=False)
    text = encode_entries(ledger.entries(), "x" * 16)
    assert len(text) < PARAMETER_BYTES_MAX
    entries = decode_entries(text, "x" * 16)
    assert [entry for entry, _ in entries] == [key(each) for each in range(5, ENTRIES_MAX + 5)]
    assert entries == list(ledger.entries())
    assert decode_entries(text, "another shovel") == decode_entries(None, "s") == []
