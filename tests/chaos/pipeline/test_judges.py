"""The judge in memory and the job find the same violations in any history."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from chaos import history
from chaos.judge.memory import UNKNOWN_SESSIONS, Violation, findings, with_ends
from chaos.judge.run import Run
from chaos.judge.verdict import Promise, promises
from chaos.pipeline import job
from chaos.promises import PROMISES
from chaos.sim.recorded import OPTIONS, record
from chaos.sim.run import Simulation
from chaos.sim.workload.client_workload import ClientWorkload, LoggedMessages
from chaos.sim.workload.shared_queues import QUEUES
from chaos.sim.world.cluster import SimulationOptions
from chaos.workloads.world import QUORUM, QueuePlan
from qq.amqp_server.channel.publishing import PublishingMethods
from tests.chaos.judge.damage import QUICK, SECONDS, SEED, in_order, renamed
from tests.chaos.judge.histories import History, Story
from tests.chaos.judge.stories.collection import add_stories

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.history import Row

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(600),
]

STORIES = 600
PART_BYTES = 100_000
"""So few that there are many buckets and slices."""
CLIENT_RUN = SimulationOptions(
    queues=True, clients=True, duration_s=10.0, submit_interval_s=0.1, faults={"kill": 1.0}
)


def add_random_story(story: Story, random: Random) -> None:
    """Add random rows that clients may record for a few messages."""
    story.queue(dedup=True)
    uncommitted = [f"{story.name}/{number}" for number in (1, 2)]
    clients = [f"con-{number}#1" for number in (1, 2)]
    is_settled = random.random() < 0.7
    one_by_one = iter(range(1, 20)) if random.random() < 0.4 else None
    """Each is published once, and confirmed."""
    for _ in range(random.randint(3, 14)):
        number, client = random.randint(1, 4), random.choice(clients)
        tx = f"{story.name}/{random.randint(1, 2)}" if random.random() < 0.3 else None
        outcome = random.choice(("ok", "ok", "ok", "unknown", "fail", None))
        match random.choices(
            ("connect", "consume", "publish", "deliver", "settle", "commit"), (1, 1, 6, 6, 3, 1)
        ):
            case ["connect"]:
                story.connect(client)
            case ["consume"]:
                story.call("consume", client, queue=story.name, consumer=f"{client}.1")
            case ["publish"] if one_by_one:
                story.publish(next(one_by_one), by=f"pub#{random.randint(1, 2)}")
            case ["publish"]:
                fields = {"attempt": random.choice((1, 1, 1, 2)), "dedup": random.random() < 0.1 or None}
                story.publish(number, outcome, f"pub#{random.randint(1, 2)}", **fields, tx=tx)
            case ["deliver"]:
                tag = random.choice((f"{client}.1", f"{client}.1", None))
                story.deliver(number, client, redelivered=random.random() < 0.3, consumer=tag)
            case ["settle"] if is_settled:
                story.settle(number, random.choice(("ack", "ack", "nack", "reject")), client, tx=tx)
            case ["commit"] if uncommitted:
                story.call("tx_commit", client, outcome, tx=uncommitted.pop())
            case _:
                pass


def seen_by_simulated_clients() -> list[Row]:
    """Return the history of simulated nodes that confirm refused messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PublishingMethods, "refuse", lambda self, _, last, __="": PublishingMethods.confirm(self, last)
        )
        patch.setattr(LoggedMessages, "check", lambda *_: None)
        patch.setattr(ClientWorkload, "judge", lambda _: None)
        simulation = Simulation(1, CLIENT_RUN)
        simulation.run()
    assert isinstance(simulation.workload, ClientWorkload)
    return simulation.workload.history.rows


class Found(NamedTuple):
    """What a judge has found, by promise."""

    checked: dict[str, int]
    causes: dict[str, dict[str, int]]
    violations: set[Violation]


def as_found(promises: Sequence[Promise]) -> Found:
    return Found(
        {promise.name: promise.checked for promise in promises},
        {promise.name: {group.cause: group.violations for group in promise.groups} for promise in promises},
        {
            Violation(promise.name, row["queue"], row.get("id", ""))
            for promise in promises
            for row in promise.examples
        },
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found]:
    """What the judge in memory and the job found in a history of all stories, and of simulated clients."""
    history = History()
    add_stories(history)
    for number in range(STORIES):
        add_random_story(Story(history, f"story-{number}"), Random(number))
    history.rows += with_ends(seen_by_simulated_clients())
    history.queues |= {
        name: QueuePlan(name, QUORUM).described("clients", drained=True) for name in QUEUES.names
    }
    directory = tmp_path_factory.mktemp("judged")
    history.write(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "EXAMPLES", len(history.rows))
        patch.setattr(job, "PART_BYTES", PART_BYTES)
        verdict = job.check(directory)
    assert verdict.error is None
    run = Run.described(history.meta())
    in_memory = promises(findings(history.in_order(), run, limit=len(history.rows)), run)
    return as_found(in_memory), as_found(verdict.promises)


def test_both_judges_find_the_same(found: tuple[Found, Found]) -> None:
    in_memory, by_the_job = found
    assert in_memory == by_the_job
    assert {violation.promise for violation in in_memory.violations} >= PROMISES.keys()


def test_damaged_histories_are_found_in_a_single_job(tmp_path: Path) -> None:
    """Each damaged copy of a recorded history has names of its own, as has the untouched history."""
    recorded = tmp_path / "recorded"
    assert record(SEED, recorded, replace(OPTIONS, duration_s=SECONDS)) == []
    meta = json.loads((recorded / "meta.json").read_text())
    rows = history.read(recorded / "history")
    copies = {operator.name: operator.damaged(rows, 1) for operator in QUICK} | {"untouched": rows}
    merged = in_order(
        row for name, copy in copies.items() for row in renamed(cast("Sequence[Any]", copy), f"{name}/")
    )
    queues = {
        f"{name}/{queue}": settings
        | {"dead_letters_to": settings["dead_letters_to"] and f"{name}/{settings['dead_letters_to']}"}
        for name in copies
        for queue, settings in meta["queues"].items()
    }
    directory = tmp_path / "merged"
    (directory / "history").mkdir(parents=True)
    (directory / "history" / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in merged))
    (directory / "meta.json").write_text(json.dumps(meta | {"rows": len(merged), "queues": queues}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "EXAMPLES", len(merged))
        verdict = job.check(directory)
    assert verdict.error is None
    broken: dict[str, set[str]] = {}
    for promise in verdict.promises:
        for group in promise.groups:
            for row in group.examples:
                broken.setdefault(row["queue"].partition("/")[0], set()).add(promise.name)
    assert [
        operator.name for operator in QUICK if not operator.promises & broken.get(operator.name, set())
    ] == []
    assert broken.keys() == copies.keys() - {"untouched"}


def test_simulated_history_breaks_only_the_planted_promise(found: tuple[Found, Found]) -> None:
    broken = {violation.promise for violation in found[1].violations if violation.queue in QUEUES.names}
    assert broken - set(UNKNOWN_SESSIONS) == {"lost"}
