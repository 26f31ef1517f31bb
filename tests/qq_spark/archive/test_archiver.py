"""Runs of an archive: a run that ends at any step is continued, and each message is in the archive once."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from qq_spark import LeaseClient, Refusal
from qq_spark.archive import archiver
from qq_spark.archive.store import Archive, ArchiveError
from tests.qq_spark.archive.local_archive import (
    Crash,
    CrashError,
    bodies,
    delete_queue,
    publish,
    ready,
    rows,
    run,
)

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import LocalCluster
    from qq_spark import Access


def series_of(directory: Path, queue: str) -> str:
    return Archive(str(directory)).contents().series[queue].group


def has_no_leftovers(directory: Path) -> bool:
    manifests = Archive(str(directory)).contents().manifests
    return len(list(directory.rglob("*.parquet"))) == sum(len(each.files) for each in manifests)


@pytest.fixture
def small_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of 4 messages, in 2 parts, of which 2 are archived at once."""
    monkeypatch.setattr(archiver, "LEASE_MESSAGES", 4)
    monkeypatch.setattr(archiver, "PART_BYTES", 50)
    monkeypatch.setattr(archiver, "BATCH_LEASES", 2)


@pytest.mark.usefixtures("small_leases")
def test_messages_are_archived_once_when_runs_end_at_each_step(
    cluster: LocalCluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = Crash(monkeypatch)
    sent: list[str] = []
    crashes = 0
    for steps in range(50):
        more = [f"message {steps}.{number}" for number in range(2)]
        publish(cluster, "crashing", more)
        sent += more
        crash.left = steps
        try:
            run(tmp_path, access, "crashing")
        except CrashError:
            crashes += 1
        crash.left = -1
    run(tmp_path, access, "crashing")
    assert crashes > 30
    assert bodies(tmp_path) == sent
    assert ready(cluster, "crashing") == 0
    assert not list(tmp_path.rglob("_temporary*"))
    assert has_no_leftovers(tmp_path)


@pytest.mark.usefixtures("small_leases")
def test_snapshot_is_complete_once_when_runs_end_at_each_step(
    cluster: LocalCluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [f"message {number}" for number in range(10)]
    publish(cluster, "snapshot", sent)
    crash = Crash(monkeypatch)
    for steps in itertools.count():
        crash.left = steps
        with suppress(CrashError):
            run(tmp_path, access, "snapshot", keep=True)
            break
        crash.left = -1
        if not (tmp_path / "_archive.json").exists():
            continue
        if any(series.is_complete for series in Archive(str(tmp_path)).contents().series.values()):
            break
        assert bodies(tmp_path) == []
    assert steps > 20
    crash.left = -1
    assert bodies(tmp_path) == sent
    with pytest.raises(ArchiveError, match="has a snapshot of queue 'snapshot' already"):
        run(tmp_path, access, "snapshot", keep=True)
    with LeaseClient(access) as client:
        assert client.group("snapshot", series_of(tmp_path, "snapshot")) is None
    assert ready(cluster, "snapshot") == 10


@pytest.mark.usefixtures("small_leases")
def test_snapshot_whose_group_has_expired_begins_anew(
    cluster: LocalCluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cluster, "expired", map(str, range(10)))
    crash = Crash(monkeypatch)
    crash.left = 32
    with pytest.raises(CrashError):
        run(tmp_path, access, "expired", keep=True)
    crash.left = -1
    assert list(tmp_path.rglob("*.parquet"))
    with LeaseClient(access) as client:
        client.end_group("expired", series_of(tmp_path, "expired"), 0, release=True)
    publish(cluster, "expired", ["more"])
    assert [taken.messages for taken in run(tmp_path, access, "expired", keep=True)] == [11]
    assert bodies(tmp_path) == [*map(str, range(10)), "more"]
    assert has_no_leftovers(tmp_path)


def test_messages_of_a_queue_declared_again_are_archived_beside(
    cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    for text in ("first", "second"):
        publish(cluster, "again", [text])
        run(tmp_path, access, "again")
        delete_queue(cluster, "again")
    assert bodies(tmp_path) == ["first", "second"]
    with pytest.raises(Refusal, match="no queue 'again'"):
        run(tmp_path, access, "again")


def test_group_with_fewer_leases_than_the_archive_is_replaced(
    cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    """A cluster that was restored from a backup has such a group."""
    publish(cluster, "restored", ["first"])
    run(tmp_path, access, "restored")
    group = series_of(tmp_path, "restored")
    with LeaseClient(access) as client:
        client.end_group("restored", group, 0)
        client.open_group("restored", group, 0, "")
        publish(cluster, "restored", ["second"])
        run(tmp_path, access, "restored")
        assert client.group("restored", group) is None
    assert bodies(tmp_path) == ["first", "second"]


def test_run_that_was_taken_over_fails(cluster: LocalCluster, access: Access, tmp_path: Path) -> None:
    publish(cluster, "taken", ["text"])
    run(tmp_path, access, "taken")
    with LeaseClient(access) as client, pytest.raises(Refusal, match="fence"):
        client.take("taken", series_of(tmp_path, "taken"), 7, 1, 1, 1)


def test_columns_hold_properties_and_extreme_values(
    cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    headers = {"x-publisher-id": "shop", "x-publish-seq": 7, "tenant": "ü\0"}
    publish(cluster, "columns", [""])
    publish(cluster, "columns", ["text"], headers=headers, timestamp=2**63 - 1)
    run(tmp_path, access, "columns")
    empty, text = rows(tmp_path)
    assert (empty["body"], text["body"], text["row"], text["queue"]) == (b"", b"text", 1, "columns")
    assert (text["publisher_id"], text["publish_seq"], text["timestamp"]) == ("shop", 7, None)
    assert str(2**63 - 1) in text["properties"]
    assert text["archived"].year >= 2024


@pytest.mark.parametrize("queue", ["a/b=c%{*}?", "..", "1", "ü" * 127, "q" * 255])
def test_name_of_any_queue_is_a_directory(
    cluster: LocalCluster, access: Access, tmp_path: Path, queue: str
) -> None:
    publish(cluster, queue, ["text"])
    run(tmp_path, access, queue)
    assert bodies(tmp_path, queue) == ["text"]
    assert next(path.name for path in tmp_path.iterdir() if path.is_dir()).startswith("queue=")
