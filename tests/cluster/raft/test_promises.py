"""Which directories have shown less than they promised."""

from __future__ import annotations

from cluster.raft.promises import NOTHING, Promise, Promises


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


def test_promises_of_former_members_are_forgotten() -> None:
    promises = Promises()
    for directory in (b"d", b"e"):
        promises.begin(directory, b"first").record(5, 20)
    promises.forget_all_but({b"e"})
    assert promises.begin(b"d", b"second").before == NOTHING
    assert promises.begin(b"e", b"second").before == Promise(5, 20)
