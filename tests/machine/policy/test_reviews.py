"""Policies are applied in bounded steps: the next entries continue a change, equally on every node."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.catalog import vhost as vhost_module
from qq.machine.handlers import core as core_module
from qq.machine.machine import QueueMachine
from qq.machine.policy import policies as policies_module
from qq.machine.policy.patterns import Pattern
from qq.machine.policy.policies import policy_of
from qq.machine.policy.settings import settings_of
from qq.machine.protocol.commands import (
    Command,
    DeclareExchange,
    DeleteExchange,
    DeletePolicy,
    DeleteQueue,
    PutPolicy,
    PutVhost,
)
from qq.machine.protocol.work_meter import REVIEW_STEPS_MAX
from tests.machine.machine_driver import batch, declare, reloaded

NAMES = ["a", "b", "ab", "ba", "bb"]

names = st.sampled_from(NAMES)
policies = st.builds(
    PutPolicy,
    st.just("/"),
    st.sampled_from("pq"),
    st.booleans(),
    st.sampled_from(["a", "^b", "b$", ".*"]),
    st.just("all"),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(["max-length", "expires"]), st.integers(10, 20), min_size=1),
)
alternates = policies.map(
    lambda put: put._replace(operator=False, definition={"alternate-exchange": f"ae{put.priority}"})
)
commands = st.one_of(
    names.map(declare),
    names.map(lambda name: DeleteQueue(1, 1, name, False, False)),
    names.map(lambda name: DeclareExchange(1, name, "fanout", False, True, False, False, {})),
    names.map(lambda name: DeleteExchange(1, name, False)),
    policies,
    alternates,
    st.builds(DeletePolicy, st.just("/"), st.sampled_from("pq"), st.booleans()),
)


@given(st.lists(st.lists(commands, max_size=4), min_size=1, max_size=12))
def test_every_policy_finally_applies_to_its_matches(entries: list[list[Command]]) -> None:
    machine = QueueMachine()
    with (
        mock.patch.object(core_module, "REVIEW_STEPS_MAX", 30),
        mock.patch.object(vhost_module, "REVIEW_STEPS_MAX", 30),
    ):
        for index, entry in enumerate(entries, 1):
            loaded = reloaded(machine)
            for each in (machine, loaded):
                each.apply_batch("n1", index, 0, 7, batch(entry))
                each.end_entry(7)
            assert machine.digest() == loaded.digest()
        ticks = 0
        while machine.due_ms() == 0:
            ticks += 1
            assert ticks < 30
            loaded = reloaded(machine)
            assert loaded.end_entry(8) == machine.end_entry(8)
            assert machine.digest() == loaded.digest()
    vhost = machine.vhosts["/"]
    assert not vhost.is_unreviewed
    for queue in vhost.queues.values():
        assert queue.policies == vhost.policies.match(queue.name, queue.kind)
        assert queue.settings == settings_of(queue.kind, queue.arguments, *queue.policies)
    for exchange in vhost.exchanges:
        applied = vhost.exchange_policies.get(exchange, (None, None))
        assert applied == vhost.policies.match_exchange(exchange)


def put(number: int, pattern: str, vhost: str = "/") -> PutPolicy:
    return PutPolicy(vhost, f"p{number}", False, pattern, "all", 0, {"max-length": number})


def test_review_order_does_not_depend_on_finished_reviews(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A declaration goes on with the review of its virtual host, and may end it."""
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 7, batch([PutVhost("a", "", [], ""), PutVhost("b", "", [], "")]))
    monkeypatch.setattr(core_module, "REVIEW_STEPS_MAX", 0)
    machine.apply_batch("n1", 2, 0, 7, batch([put(1, "x"), put(1, "x", "a"), put(1, "x", "b")]))
    monkeypatch.setattr(core_module, "REVIEW_STEPS_MAX", 10_000)
    machine.apply_batch("n1", 3, 0, 7, batch([declare("x")]))
    monkeypatch.setattr(core_module, "REVIEW_STEPS_MAX", 3)
    machine.end_entry(7)
    loaded = reloaded(machine)
    for time_ms in range(8, 14):
        machine.end_entry(time_ms)
        loaded.end_entry(time_ms)
        assert machine.digest() == loaded.digest()


@pytest.mark.slow
def test_policy_for_thousands_of_queues_costs_bounded_steps() -> None:
    steps: list[int] = []
    search_within = Pattern.search_within

    def counting(pattern: Pattern, text: str, steps_max: int) -> tuple[bool, int]:
        found, taken = search_within(pattern, text, steps_max)
        steps.append(taken)
        return found, taken

    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 7, batch([declare(f"queue-{number}") for number in range(3000)]))
    machine.end_entry(7)
    with mock.patch.object(Pattern, "search_within", counting):
        machine.apply_batch("n1", 2, 0, 7, batch([put(number, "no.*such.*queue") for number in range(50)]))
        entries = 0
        while True:
            machine.end_entry(7)
            assert sum(steps) <= REVIEW_STEPS_MAX * 1.1
            steps.clear()
            entries += 1
            if machine.due_ms() is None:
                break
    assert entries > 10


class Name(str):
    """A name that counts its lookups."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Name.lookups += 1
        return super().__hash__()


def test_second_policy_review_waits_for_its_turn() -> None:
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 7, batch([declare(f"queue-{number}") for number in range(1000)]))
    machine.end_entry(7)
    vhost = machine.vhosts["/"]
    vhost.queues = {Name(name): queue for name, queue in vhost.queues.items()}
    assert vhost.put_policy(policy_of(put(1, "no.*such.*queue")), 7)
    Name.lookups = 0
    assert vhost.put_policy(policy_of(put(2, "no.*such.*queue")), 7)
    assert Name.lookups == 0
    vhost.review(0)
    assert Name.lookups == 1


def test_policies_that_cost_too_much_for_a_name_do_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = QueueMachine()
    machine.apply_batch("n1", 1, 0, 7, batch([put(number, "(.*)(.*)(.*)x") for number in range(50)]))
    operator = PutPolicy("/", "o", True, ".*", "all", 0, {"max-length": 9})
    machine.apply_batch("n1", 2, 0, 7, batch([put(99, "a"), operator]))
    machine.end_entry(7)
    name = "a" * 200
    machine.apply_batch("n1", 3, 0, 7, batch([declare(name), declare("a")]))
    while machine.due_ms() is not None:
        machine.end_entry(7)
    queues = machine.vhosts["/"].queues
    assert [policy and policy.name for policy in queues["a"].policies] == ["p99", "o"]
    assert [policy and policy.name for policy in queues[name].policies] == [
        None,
        "o",
    ]  # an operator's always may
    monkeypatch.setattr(policies_module, "MATCH_STEPS_MAX", 10**9)
    machine.apply_batch("n1", 4, 0, 7, batch([put(99, "a")]))
    while machine.due_ms() is not None:
        machine.end_entry(7)
    assert [policy and policy.name for policy in queues[name].policies] == ["p99", "o"]
