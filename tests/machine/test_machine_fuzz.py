"""Nothing that a node can send makes a machine raise, or makes two machines differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st
from machine_driver import batch, reloaded

from qq.machine.codec import MalformedBatch, decode_commands
from qq.machine.commands import OPCODES, Command, Enqueue
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

names = st.sampled_from(
    ["", "q", "r", "x", "y", "amq.direct", "amq.topic", "amq.headers", "a.\r\nb", "#.*", "\udcfe"]
)
small = st.integers(0, 4)
numbers = st.one_of(small, small, small, st.sampled_from([2**31 - 1, 2**63, 2**64 - 1]))
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), names, st.binary(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=2)),
    max_leaves=4,
)
tables = st.one_of(
    st.just({}),
    st.sampled_from(
        [{"x-queue-type": "quorum"}, {"x-queue-type": "classic"}, {"x-max-length": 1}, {"x-priority": "a"}]
    ),
    st.dictionaries(
        st.one_of(names, st.sampled_from(["x-queue-type", "x-expires", "x-overflow"])), values, max_size=2
    ),
)
kinds = st.sampled_from(["direct", "fanout", "topic", "headers", "strange"])

BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    str: names,
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    dict[str, Any]: tables,
    list[str]: st.lists(names, max_size=2),
}


def fields(command: type[Command]) -> st.SearchStrategy[Command]:
    hints = get_type_hints(command)
    parts = {name: kinds if name == "type" else BY_TYPE[hints[name]] for name in command._fields}
    if command is Enqueue:
        parts["count"] = st.integers(1, 5)
    return st.builds(command, **parts)


commands = st.lists(st.sampled_from(list(OPCODES)).flatmap(fields), max_size=6)
origins = st.sampled_from(["n1", "n2"])
entries = st.lists(
    st.one_of(st.tuples(origins, commands), st.tuples(origins, commands), st.tuples(origins, st.booleans())),
    max_size=15,
)


@settings(max_examples=300, deadline=None)
@given(entries)
def test_any_commands_leave_two_machines_equal(entries: Sequence[tuple[str, list[Command] | bool]]) -> None:
    one, other = QueueMachine(), QueueMachine()
    for index, (origin, asked) in enumerate(entries, 1):
        if isinstance(asked, bool):
            assert one.origin_down(origin, expelled=asked) == other.origin_down(origin, expelled=asked)
        else:
            published = sum(command.count for command in asked if isinstance(command, Enqueue))
            payload = batch(asked, [b""] * published)
            assert len(decode_commands(payload)) == len(asked)
            effects = one.apply_batch(origin, index, 254, 0, payload)
            assert effects == other.apply_batch(origin, index, 254, 0, payload)
            other = reloaded(other)
        assert one.end_entry() == other.end_entry()
        assert one.digest() == other.digest()
    for queue in one.queues.values():
        held = [len(holder.unacked) for holder in queue.holders]
        assert (queue.unacked, queue.consumers) == (sum(held), sum(holder.live for holder in queue.holders))


@settings(max_examples=300, deadline=None)
@given(
    commands,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    st.integers(0, 300),
)
def test_a_damaged_batch_is_carried_out_or_refused_but_never_raises(
    asked: list[Command], flips: list[tuple[int, int]], cut: int
) -> None:
    published = sum(command.count for command in asked if isinstance(command, Enqueue))
    payload = bytearray(batch(asked, [b"x"] * published))
    for place, mask in flips:
        payload[place % len(payload)] ^= mask
    damaged = bytes(payload[: len(payload) - cut])
    machine = QueueMachine()
    before = machine.digest()
    effects = machine.apply_batch("n1", 1, 0, 0, memoryview(damaged))
    try:
        decode_commands(damaged)
    except MalformedBatch:
        assert effects == []
        assert machine.digest() == before
    machine.end_entry()
    reloaded(machine)


@given(st.binary(max_size=200))
def test_noise_has_no_effect(noise: bytes) -> None:
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 0, noise)
    machine.end_entry()
    reloaded(machine)
