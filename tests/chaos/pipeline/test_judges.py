"""The judge in memory and the job find the same violations in any history."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from chaos.judge import Violation, violations
from chaos.pipeline import job
from chaos.sim.run import Simulation
from chaos.sim.workload.client_workload import ClientWorkload, LoggedMessages
from chaos.sim.workload.working_client import QUEUES
from chaos.sim.world.cluster import SimulationOptions
from chaos.workloads.world import QUORUM, QueuePlan
from qq.amqp_server.channel.publishing import PublishingMethods
from tests.chaos.pipeline.histories import History, Story

if TYPE_CHECKING:
    from collections.abc import Container

    from chaos.history import Row

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(600),
]

STORIES = 600
JUDGED_BY_BOTH = {"lost", "phantom", "unmarked_duplicate", "dedup_duplicate", "order", "tx_atomic"}
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
            PublishingMethods, "refuse", lambda self, _, last: PublishingMethods.confirm(self, last)
        )
        patch.setattr(LoggedMessages, "check", lambda *_: None)
        patch.setattr(ClientWorkload, "judge", lambda _: None)
        simulation = Simulation(1, CLIENT_RUN)
        simulation.run()
    assert isinstance(simulation.workload, ClientWorkload)
    return simulation.workload.history.rows


class Found(NamedTuple):
    in_memory: set[Violation]
    by_the_job: set[Violation]

    def of(self, queues: Container[str]) -> Found:
        return Found(*({each for each in found if each.queue in queues} for found in self))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Findings of both judges in a history of all following stories."""
    history = History()
    for number in range(STORIES):
        add_random_story(Story(history, f"story-{number}"), Random(number))
    history.rows += seen_by_simulated_clients()
    history.queues |= {name: QueuePlan(name, QUORUM).described("clients", drained=True) for name in QUEUES}
    history.rows.sort(key=lambda row: row["time_ns"])
    directory = tmp_path_factory.mktemp("judged")
    history.write(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "EXAMPLES", 10_000)
        verdict = job.check(directory)
    assert verdict.error is None
    by_the_job = {
        Violation(promise.name, example["queue"], example["id"])
        for promise in verdict.promises
        for example in promise.examples
    }
    return Found(violations(history.rows), by_the_job)


def test_both_judges_find_the_same(found: Found) -> None:
    in_memory, by_the_job = found.of([f"story-{number}" for number in range(STORIES)])
    assert in_memory == by_the_job
    assert {violation.promise for violation in in_memory} == JUDGED_BY_BOTH


def test_both_judges_agree_on_a_simulated_history(found: Found) -> None:
    in_memory, by_the_job = found.of(QUEUES)
    assert in_memory == by_the_job
    assert {violation.promise for violation in in_memory} == {"lost"}


def test_judges_find_only_the_planted_violations(found: Found) -> None:
    assert found == found.of([*(f"story-{number}" for number in range(STORIES)), *QUEUES])
