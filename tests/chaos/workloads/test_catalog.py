"""The workloads as a whole."""

from __future__ import annotations

import pytest

from chaos.promises import PROMISES
from chaos.workloads.catalog import WORKLOADS, UnknownWorkload, chosen


def test_every_promise_is_owed_by_a_workload() -> None:
    """Else a run in which nothing was judged of the promise would be valid."""
    assert {promise for workload in WORKLOADS.values() for promise in workload.owes} == PROMISES.keys()


def test_workloads_have_different_queues() -> None:
    queues = [plan.name for workload in WORKLOADS.values() for plan in workload.queues()]
    assert len(queues) == len(set(queues))


def test_transactions_use_0_9_1_in_every_run() -> None:
    protocols = ("0-9-1", "1.0")
    assert {
        name for name, workload in WORKLOADS.items() if "proton" not in workload.libraries(protocols)
    } == {"tx"}
    assert WORKLOADS["tx"].libraries(["1.0"]) == ["pika"]


def test_unknown_workload_is_refused() -> None:
    with pytest.raises(UnknownWorkload, match="unknown workload 'juggle'"):
        chosen(["tx", "juggle"])
