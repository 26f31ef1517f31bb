"""Which directories have shown less than they promised."""

from __future__ import annotations

from cluster.raft.promises import NOTHING, PROCESSES_KEPT, Promise, Promises


def test_promises_of_a_process_count_for_the_next_process() -> None:
    promises = Promises()
    assert promises.begin(b"d", b"first").before == NOTHING
    for promise in (Promise(5, 20), Promise(5, 15), Promise(4, 90)):
        promises.begin(b"d", b"first").record(*promise)
    assert promises.begin(b"d", b"first").latest == Promise(5, 20)
    assert promises.begin(b"d", b"first").before == NOTHING, "the same process has promised that itself"
    assert promises.begin(b"d", b"second").before == Promise(5, 20)
    promises.begin(b"d", b"second").record(6, 0)
    assert promises.begin(b"d", b"second").before == Promise(5, 20)
    assert promises.begin(b"d", b"third").before == Promise(6, 0), (
        "a later leader may have cut what was acknowledged"
    )


def test_late_connection_of_an_earlier_process_changes_no_memory() -> None:
    """A successor's own promises were taken for those of the process before it, so it gave up its vote."""
    promises = Promises()
    promises.begin(b"d", b"first").record(5, 20)
    promises.begin(b"d", b"second").record(5, 40)
    late = promises.begin(b"d", b"first")
    assert (late.before, late.is_outdated) == (NOTHING, True)
    again = promises.begin(b"d", b"second")
    assert (again.before, again.latest, again.is_outdated) == (Promise(5, 20), Promise(5, 40), False)


def test_memory_of_processes_is_bounded() -> None:
    promises = Promises()
    for number in range(3 * PROCESSES_KEPT):
        promises.begin(b"d", b"%d" % number).record(number, 0)
    assert len(promises.begin(b"d", b"last")._before) == PROCESSES_KEPT


def test_promises_of_former_members_are_forgotten() -> None:
    promises = Promises()
    for directory in (b"d", b"e"):
        promises.begin(directory, b"first").record(5, 20)
    promises.forget_all_but({b"e"})
    assert promises.begin(b"d", b"second").before == NOTHING
    assert promises.begin(b"e", b"second").before == Promise(5, 20)
