"""Which directories have shown less than they promised."""

from __future__ import annotations

from cluster.raft.promises import NOTHING, Promise, Promises


def test_promises_of_a_process_count_for_the_next_process() -> None:
    promises = Promises()
    assert promises.begin(b"d", b"first") == NOTHING
    for promise in (Promise(5, 20), Promise(5, 15), Promise(4, 90)):
        promises.record(b"d", promise)
    assert promises.latest(b"d") == Promise(5, 20)
    assert promises.begin(b"d", b"first") == NOTHING, "the same process has promised that itself"
    assert promises.begin(b"d", b"second") == Promise(5, 20)
    promises.record(b"d", Promise(6, 0))
    assert promises.begin(b"d", b"second") == Promise(5, 20)
    assert promises.begin(b"d", b"third") == Promise(6, 0), (
        "a later leader may have cut what was acknowledged"
    )


def test_promises_of_former_members_are_forgotten() -> None:
    promises = Promises()
    for directory in (b"d", b"e"):
        promises.begin(directory, b"first")
        promises.record(directory, Promise(5, 20))
    promises.forget_all_but({b"e"})
    assert promises.begin(b"d", b"second") == NOTHING
    assert promises.begin(b"e", b"second") == Promise(5, 20)
