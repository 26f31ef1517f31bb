"""An invented next version of the state: its additions count from the agreement on, and not before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from qq.machine.catalog.permissions import Permissions, TopicPermissions, User
from qq.machine.machine import QueueMachine
from qq.machine.protocol import codec
from qq.machine.protocol.codec import InvalidCommand, MalformedBatch, check_command, pack, unpack
from qq.machine.protocol.commands import OPCODES, SINCE
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.queue import DeadMessages
from qq.machine.snapshot.rows import (
    CHANGES,
    BehindRow,
    Change,
    ConnectionRow,
    ConsumerRow,
    HeldRow,
    QueueRow,
    SessionRow,
    VhostRow,
    downgraded,
    upgraded,
)
from qq.machine.snapshot.state import Dump, MalformedDump
from qq.sessions.submissions import Submissions
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, declare, publish

if TYPE_CHECKING:
    from collections.abc import Generator

BEFORE, AFTER = VERSIONS
GOLDEN = Path(__file__).parents[1] / "golden"
OPCODE = max(OPCODES.values()) + 1


class Invented(NamedTuple):
    """A command that there is from the newest version on."""

    session: int


INVENTED: Any = Invented
"""To type checkers it is no command."""


@pytest.fixture
def _invented(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setitem(OPCODES, INVENTED, OPCODE)
    monkeypatch.setitem(SINCE, INVENTED, AFTER)
    codec._shapes.cache_clear()
    yield
    codec._shapes.cache_clear()


def batch_of(opcode: int) -> bytes:
    packed = pack([[opcode, 1]])
    return bytes(4) + len(packed).to_bytes(4, "little") + packed


def driver_that_knows() -> tuple[Driver, list[Any]]:
    """A machine that can carry out the invented command, and those that it has carried out."""
    driver, done = Driver(), list[Any]()
    driver.machine._handlers[INVENTED] = done.append
    return driver, done


# Commands


def test_each_opcode_belongs_to_a_single_known_version() -> None:
    assert len(set(OPCODES.values())) == len(OPCODES)
    assert set(SINCE) == set(OPCODES)
    assert max(SINCE.values()) <= AFTER


@pytest.mark.usefixtures("_invented")
def test_command_of_a_later_version_is_invalid_before_agreement() -> None:
    command = INVENTED(1)
    with pytest.raises(InvalidCommand) as caught:
        check_command(command, BEFORE)
    assert str(caught.value) == (
        f"Invented: command {OPCODE} (Invented) may be proposed from version {AFTER} of the state on, and the cluster "
        f"has agreed on version {BEFORE}"
    )
    assert check_command(command, AFTER) == len(pack([OPCODE, 1]))


@pytest.mark.usefixtures("_invented")
def test_submission_refuses_a_command_of_a_later_version() -> None:
    machine, command = QueueMachine(), INVENTED(1)
    runtime = SimpleNamespace(call_soon=lambda _flush: None, monotonic=lambda: 0.0)
    submissions = Submissions("n1", cast("Any", None), machine, cast("Any", runtime), 0.0)
    with pytest.raises(InvalidCommand):
        submissions.add(command)
    assert submissions.pending_bytes == 0
    machine.raise_to(AFTER)
    submissions.add(command)
    assert submissions.pending_bytes > 0


@pytest.mark.usefixtures("_invented")
def test_command_of_a_later_version_stops_the_replica() -> None:
    driver, done = driver_that_knows()
    before = driver.machine.digest()
    with pytest.raises(
        MalformedBatch, match=rf"\(Invented\) may be proposed from version {AFTER} of the state"
    ):
        driver.machine.apply_batch("n1", 1, 0, 0, batch_of(OPCODE))
    assert (driver.machine.digest(), done) == (before, [])
    driver.machine.raise_to(AFTER)
    driver.machine.apply_batch("n1", 1, 0, 0, batch_of(OPCODE))
    assert done == [Invented(1)]


@pytest.mark.parametrize("agreed", VERSIONS)
def test_unknown_command_error_names_known_and_agreed_versions(agreed: int) -> None:
    machine = QueueMachine()
    machine.raise_to(agreed)
    with pytest.raises(MalformedBatch) as caught:
        machine.apply_batch("n1", 1, 0, 0, batch_of(OPCODE))
    assert str(caught.value) == (
        f"command {OPCODE} is not known to this program, which can run versions {BEFORE} to {AFTER} of the state; "
        f"the cluster has agreed on version {agreed}"
    )


# Dumps


def test_machine_starts_at_the_lowest_version_or_that_of_a_dump() -> None:
    machine, other = QueueMachine(), QueueMachine()
    assert (machine.version, unpack(machine.dump())[0]) == (BEFORE, BEFORE)
    frozen = machine.freeze()
    machine.raise_to(AFTER)
    other.adopt(other.read(machine.dump()))
    assert (other.version, unpack(other.dump())[0]) == (AFTER, AFTER)
    assert unpack(frozen.dump())[0] == BEFORE  # it was frozen at that version
    other.adopt(other.read(frozen.dump()))
    assert other.version == BEFORE


@pytest.mark.parametrize("version", [BEFORE - 1, AFTER + 1])
def test_dump_of_an_unsupported_version_is_refused(version: int) -> None:
    machine = QueueMachine()
    sections = unpack(machine.dump())
    with pytest.raises(MalformedDump) as caught:
        machine.adopt(machine.read(pack([version, *sections[1:]])))
    assert str(caught.value) == (
        f"a state of version {version}, and this program can run {BEFORE} to {AFTER}"
    )


ROWS = (
    User,
    Permissions,
    TopicPermissions,
    VhostRow,
    QueueRow,
    DeadMessages,
    ConnectionRow,
    SessionRow,
    ConsumerRow,
    HeldRow,
    BehindRow,
    Dump,
)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_written_for_the_agreed_version_and_read_back(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of this kind had an additional field before the newest version, in this test."""
    for known in tuple(CHANGES):
        monkeypatch.delitem(CHANGES, known)
    machine, (_, *sections) = QueueMachine(), unpack((GOLDEN / f"state-{AFTER}.dump").read_bytes())
    now = pack([BEFORE, *sections])
    machine.adopt(machine.read(now))
    dropped = Change(lambda row: row[:-1], lambda row: (*row, "dropped"))
    monkeypatch.setitem(CHANGES, kind, {AFTER: dropped})
    then = machine.dump()
    assert then.count(b"dropped") >= 1
    with monkeypatch.context() as unchanged:
        unchanged.delitem(CHANGES, kind)
        with pytest.raises((TypeError, ValueError)):
            QueueMachine().read(then)
    other = QueueMachine()
    other.adopt(other.read(then))
    assert differences(machine, other) == []
    assert other.dump() == then
    other.raise_to(AFTER)
    assert b"dropped" not in other.dump()
    assert unpack(other.dump())[1:] == unpack(now)[1:]


def test_a_field_that_is_new_has_its_default_before_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest version knows the active consumer of a queue, in this test."""
    came = Change(lambda row: [*row, None], lambda row: row[:-1])
    monkeypatch.setitem(CHANGES, QueueRow, {AFTER: came})
    driver = Driver()
    driver.apply(declare("q"), publish(3, "q"))
    then = driver.machine.dump()
    queues = Dump._fields.index("queues")
    assert len(unpack(then)[queues][0]) == len(QueueRow._fields) - 1
    driver.machine.adopt(driver.machine.read(then))
    driver.machine.raise_to(AFTER)
    assert unpack(driver.machine.dump())[queues][0][-1] is None
    assert len(list(driver.machine.queues())) == 1


def test_several_row_changes_apply_in_order_and_undo_in_reverse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def adds(field_name: str) -> Change:
        def undo(row: tuple[str, ...]) -> tuple[str, ...]:
            assert row[-1] == field_name
            return row[:-1]

        return Change(lambda row: (*row, field_name), undo)

    monkeypatch.setitem(CHANGES, tuple, {9: adds("nine"), 10: adds("ten")})
    written = {8: (), 9: ("nine",), 10: ("nine", "ten")}
    for version, row in written.items():
        assert list(upgraded(tuple, version, [row])) == [("nine", "ten")]
        assert downgraded(tuple, version, ("nine", "ten")) == row
