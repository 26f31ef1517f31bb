"""The waiting time of a change that was requested over HTTP."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from qq.machine.machine import QueueMachine
from qq.machine.protocol.commands import DeleteUser, PutVhost
from qq.management.changes import request_session
from qq.management.changes.request_session import outcome_of, until_applied
from qq.management.errors import Unavailable
from qq.sessions.broker import OPERATORS_BYTES
from tests.harness.lone_broker import LoneBroker


def waits(monkeypatch: pytest.MonkeyPatch, batches: int) -> str:
    """Request a change behind some batches. Each batch takes most of the timeout, and the change is never applied.

    Return the number of applied batches when the request failed, and the reason.
    """
    monkeypatch.setattr(request_session, "CHANGE_TIMEOUT_S", 0.05)

    async def wait() -> str:
        submissions = SimpleNamespace(batches_applied=0, add=lambda *_: None, read=lambda *_: None)

        async def go_on() -> None:
            for _ in range(batches):
                await asyncio.sleep(0.03)
                submissions.batches_applied += 1

        log = asyncio.ensure_future(go_on())
        broker: Any = SimpleNamespace(
            is_full_for_operators=False,
            submissions=submissions,
            machine=SimpleNamespace(version=QueueMachine.versions[1]),
            why_undecided=lambda: "no majority: n2 does not answer",
        )
        with pytest.raises(Unavailable) as caught:
            await until_applied(broker, [DeleteUser("u")], lambda: None)
        applied = submissions.batches_applied
        await log
        return f"{applied}: {caught.value}"

    return asyncio.run(wait())


@pytest.mark.parametrize("batches", [0, 10])
def test_missing_majority_is_not_reported_while_the_log_advances(
    monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """An import of policies behind earlier imports once failed after 10 s."""
    result = waits(monkeypatch, batches)
    why = "no majority: n2 does not answer; outcome unknown: it may still be carried out"
    assert result == f"{batches}: {why}"


def test_operator_deletes_while_messages_fill_the_node() -> None:
    """A flood of large messages once made the deletion of its virtual host fail, too (503)."""
    with LoneBroker() as lone:
        broker = lone.broker
        broker.submissions.waiting_bytes += broker.limits.node_uncommitted_bytes + 1
        assert broker.is_full
        lone.await_on_loop(until_applied(broker, [DeleteUser("u")], lambda: None))
        broker.submissions.waiting_bytes += OPERATORS_BYTES
        with pytest.raises(Unavailable, match="node_uncommitted_bytes"):
            lone.await_on_loop(until_applied(broker, [DeleteUser("u")], lambda: None))


def test_outcome_that_the_node_has_missed_is_unknown() -> None:
    """The command was given up, so the state is as before: a commit of a lease was once answered as done."""
    with LoneBroker() as lone:

        async def given_up() -> None:
            lone.group.holding = True
            asked = asyncio.ensure_future(outcome_of(lone.broker, [PutVhost("v", "", [], "")], lambda: None))
            await asyncio.sleep(0)
            lone.evict()
            lone.group.release()
            with pytest.raises(Unavailable, match="the node was away from its cluster; outcome unknown"):
                await asked
            assert "v" not in lone.machine.vhosts
            await outcome_of(lone.broker, [PutVhost("v", "", [], "")], lambda: None)
            assert "v" in lone.machine.vhosts

        lone.await_on_loop(given_up())
