"""The judge in memory and the job find the same, whatever has happened."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from pipeline_histories import History, Story

from chaos.judge import Violation, violations
from chaos.pipeline import job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

STORIES = 600
JUDGED_BY_BOTH = ("lost", "phantom", "unmarked_duplicate", "dedup_duplicate", "order", "tx_atomic")


def tell_anything(story: Story, random: Random) -> None:
    """What clients may see of a few messages, likely or not."""
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


@pytest.fixture(scope="module")
def anything() -> History:
    history = History()
    for number in range(STORIES):
        tell_anything(Story(history, f"story-{number}"), Random(number))
    history.rows.sort(key=lambda row: row["time_ns"])
    return history


def test_both_judges_find_the_same(
    anything: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "EXAMPLES", 10_000)
    anything.write(tmp_path)
    found = {
        Violation(promise.name, example["queue"], example["id"])
        for promise in job.check(tmp_path).promises
        if promise.name in JUDGED_BY_BOTH
        for example in promise.examples
    }
    expected = violations(anything.rows)
    assert found == expected
    broken = {violation.promise for violation in expected}
    assert broken == {*JUDGED_BY_BOTH}
