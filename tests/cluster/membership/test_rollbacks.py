"""Members whose data directories are put back as they were earlier."""

from __future__ import annotations

import logging

import pytest

from cluster.log.hardstate import VoterStatus
from cluster.raft.messages import Memory, Status, encode
from tests.cluster.harness import Growing, Member


@pytest.fixture
def trio() -> Growing:
    trio = Growing()
    trio.start()
    trio.pass_ms(1500)
    return trio


def voter_statuses(member: Member) -> list[VoterStatus]:
    """The voter statuses of a member from now on, each time it changes."""
    seen: list[VoterStatus] = []
    advance = member.group.rejoin.advance

    def watched(*arguments: object) -> bool:
        is_changed = advance(*arguments)  # type: ignore[arg-type]
        now = member.group.rejoin.voter_status
        if now not in seen[-1:]:
            seen.append(now)
        return is_changed

    member.group.rejoin.advance = watched  # type: ignore[method-assign]
    return seen


def put_back(trio: Growing, member: Member) -> list[VoterStatus]:
    """Put a member's directory back as it was before the last entries."""
    snapshot = member.disk.snapshot()
    trio.all_submit()
    trio.pass_ms(1500)
    member.end()
    member.disk.put_back(snapshot)
    trio.pass_ms(1500)
    member.start()
    return voter_statuses(member)


@pytest.mark.parametrize("leads", [False, True])
def test_member_put_back_as_it_was_is_repaired_before_it_votes(
    trio: Growing, caplog: pytest.LogCaptureFixture, leads: bool
) -> None:
    """It had voted at once, though the leader knew that it had acknowledged more."""
    member = trio.leader() if leads else trio.followers()[0]
    seen = put_back(trio, member)
    assert not member.group.engine.may_vote
    trio.until(lambda: len(seen) == 3)
    assert seen == [VoterStatus.VOTER, VoterStatus.LEARNER, VoterStatus.VOTER]
    assert member.group.engine.applied_index >= trio.leader().group.engine.commit_index - 1
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("this node's data directory was put back as it was earlier: " in text for text in texts)
    assert any(
        f"the data directory of node {member.name} is older than its promises" in text for text in texts
    )
    trio.pass_ms(1500)
    for other in trio.members:
        found = {status.name: status.rolled_back_ms for status in other.group.statuses.all()}
        assert found.pop(member.name) is not None
        assert set(found.values()) == {None}
    trio.all_submit()


def test_resumed_process_of_a_machine_put_back_is_repaired(trio: Growing) -> None:
    """A snapshot with the machine's memory brings an ended process back. Its peers told it nothing."""
    member = trio.followers()[0]
    processes = trio.network._processes
    member.end()
    member.start()
    trio.pass_ms(1500)
    snapshot = member.disk.snapshot()
    member.end()
    member.start()
    trio.all_submit()
    trio.pass_ms(1500)
    member.end()
    member.disk.put_back(snapshot)
    trio.network._processes = processes  # the process before has this name
    member.start()
    seen = voter_statuses(member)
    trio.until(lambda: len(seen) == 3)
    assert seen == [VoterStatus.VOTER, VoterStatus.LEARNER, VoterStatus.VOTER]


def test_restarted_member_is_no_learner(trio: Growing, caplog: pytest.LogCaptureFixture) -> None:
    for member in trio.members:
        trio.all_submit()
        member.end()
        trio.pass_ms(500)
        member.start()
        seen = voter_statuses(member)
        trio.pass_ms(3000)
        assert seen == [VoterStatus.VOTER]
        assert member.group.engine.may_vote
    assert "put back" not in caplog.text


def test_cut_of_unacknowledged_entries_is_no_rollback(
    trio: Growing, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader alone with its entries is cut off, and comes back to a leader without them."""
    led = trio.leader()
    others = [member for member in trio.members if member is not led]
    for other in others:
        trio.network.cut(led.name, other.name)
        trio.network.cut(other.name, led.name)
    led.runtime.enter(lambda: led.group.propose([b"\x90" * 1]) and None)
    trio.pass_ms(4000)
    for other in others:
        trio.network.heal(led.name, other.name)
        trio.network.heal(other.name, led.name)
    trio.pass_ms(2000)
    led.end()
    trio.pass_ms(500)
    led.start()
    seen = voter_statuses(led)
    trio.pass_ms(3000)
    assert seen == [VoterStatus.VOTER]
    assert "put back" not in caplog.text


def test_leader_counts_no_acknowledgement_that_a_member_has_lost(trio: Growing) -> None:
    leader, member = trio.leader(), trio.followers()[0]
    snapshot = member.disk.snapshot()
    trio.all_submit()
    held = leader.group.engine.acknowledged_index(member.name)
    member.end()
    member.disk.put_back(snapshot)
    for other in trio.members:
        trio.network.lag(leader.name, other.name, 0.2)
    member.start()
    ended_at = member.group.journal.last_index
    assert ended_at < held
    trio.until(lambda: leader.group.engine.acknowledged_index(member.name) <= ended_at)
    trio.all_submit()


def test_no_member_votes_for_a_log_without_a_committed_entry(trio: Growing) -> None:
    led, *others = trio.leader(), *trio.followers()
    led.end()
    for other in others:
        other.group.engine.record_committed(other.group.journal.last_index + 1)
    trio.pass_ms(5000)
    assert not any(other.group.engine.is_leader for other in others)
    why = others[0].group.why_undecided()
    assert why is not None
    assert "was committed, and the logs of the nodes that answer end with entry" in why
    assert "`qq recover`" in why
    led.start()
    for other in others:
        other.end()
        other.start()
    trio.pass_ms(3000)
    assert trio.leader() in trio.members


def test_earlier_programs_get_no_message_about_losses(trio: Growing) -> None:
    leader, member = trio.leader(), trio.followers()[0]
    outbox = leader.group._outbox
    sent: list[bytes] = []
    send = leader.group._links.send

    def watched(peer: str, group_id: int, buffers: list[bytes]) -> None:
        sent.append(b"".join(buffers))
        send(peer, group_id, buffers)

    leader.group._links.send = watched  # type: ignore[method-assign]
    status = leader.group.own_status.now()
    outbox._reports_losses = lambda: False
    outbox.transmit(member.name, status)
    outbox._encoded = (None, [])
    leader.group.inbox._rollbacks.link_began(member.name)
    outbox._reports_losses = lambda: True
    outbox.transmit(member.name, status)
    leader.group.inbox._rollbacks.link_began(member.name)
    told, new, memory = sent
    assert memory[0] == encode(Memory(0, 0, 0))[0][0]
    assert (len(told), len(new)) == (len(new) - 2 - (status.vouched_index > 127), len(new))
    assert len(Status._fields) == 20
