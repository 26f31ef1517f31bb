"""Archives that were cut, mixed up or changed; and partitions that are deleted because of their age."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from qq_spark.archive.store import Archive, ArchiveError, Series
from tests.qq_spark.archive.local_archive import bodies, publish, run

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import LocalCluster
    from qq_spark import Access

TODAY = datetime.now(UTC).date()


@pytest.fixture(scope="module")
def original(cluster: LocalCluster, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the queues `orders` and `dead`."""
    directory = tmp_path_factory.mktemp("archive")
    for queue in ("orders", "dead"):
        publish(cluster, queue, [f"{queue} {number}" for number in range(3)])
    run(directory, access, "orders", "dead")
    return directory


@pytest.fixture
def archive(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "archive")


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def test_missing_file_is_named(archive: Path) -> None:
    file = only(archive, "queue=orders/*/*.parquet")
    file.unlink()
    with pytest.raises(ArchiveError, match=rf"{file.name} is missing: the archive was cut"):
        bodies(archive)
    assert len(bodies(archive, "dead")) == 3


def test_cut_file_is_named(archive: Path) -> None:
    file = only(archive, "queue=orders/*/*.parquet")
    octets = file.read_bytes()
    file.write_bytes(octets[:-1])
    with pytest.raises(
        ArchiveError, match=rf"{file.name} has {len(octets) - 1} bytes, not the {len(octets)}"
    ):
        bodies(archive)


def test_changed_file_is_named(archive: Path) -> None:
    file = only(archive, "queue=orders/*/*.parquet")
    octets = bytearray(file.read_bytes())
    octets[len(octets) // 2] ^= 1
    file.write_bytes(octets)
    with pytest.raises(ArchiveError, match=rf"{file.name} was changed"):
        bodies(archive)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is damaged: "),
        ("[]", "has a format that this release does not know"),
        ('{"format": 2}', "has a format that this release does not know"),
        ('{"format": 1}', "is damaged: queue is missing"),
    ],
)
def test_damaged_manifest_is_named(archive: Path, text: str, reason: str) -> None:
    manifest = only(archive, "queue=orders/*/_manifest*")
    manifest.write_text(text)
    with pytest.raises(ArchiveError, match=f"{manifest.name} {reason}"):
        bodies(archive)


def test_manifest_with_a_damaged_list_of_files_is_named(archive: Path) -> None:
    manifest = only(archive, "queue=orders/*/_manifest*")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": [1]}))
    with pytest.raises(ArchiveError, match="its list of files cannot be read"):
        bodies(archive)


def test_manifest_of_another_queue_is_named(archive: Path) -> None:
    manifest = only(archive, "queue=dead/*/_manifest*")
    shutil.copy(manifest, only(archive, "queue=orders/date=*") / manifest.name)
    with pytest.raises(
        ArchiveError, match=rf"queue=orders/.*{manifest.name} belongs to another queue: 'dead'"
    ):
        bodies(archive)


def test_renamed_manifest_is_named(archive: Path) -> None:
    manifest = only(archive, "queue=dead/*/_manifest*")
    renamed = manifest.rename(manifest.with_name(manifest.name.replace("-0000", "-0001")))
    with pytest.raises(ArchiveError, match=rf"{renamed.name} is the manifest of .*{manifest.name}"):
        bodies(archive)


def test_archive_without_its_newest_lease_is_not_continued(archive: Path, access: Access) -> None:
    shutil.rmtree(only(archive, "queue=orders/date=*"))
    with pytest.raises(
        ArchiveError, match="lacks leases 0 to 0 of queue 'orders', which have left the queue"
    ):
        run(archive, access, "orders")


def test_directory_that_is_no_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"is no archive: it has no _archive\.json"):
        bodies(tmp_path)
    with pytest.raises(ArchiveError, match="is no archive"):
        bodies(tmp_path / "absent")


def test_archive_of_another_virtual_host_is_refused(archive: Path, access: Access) -> None:
    with pytest.raises(ArchiveError, match="is an archive of the virtual host '/', not of 'shop'"):
        run(archive, access._replace(vhost="shop"), "orders")


def test_unknown_queue_of_an_archive_is_named(archive: Path) -> None:
    with pytest.raises(ArchiveError, match="has no queue 'order'; its queues are: dead, orders"):
        bodies(archive, "order")


def test_option_keep_contradicts_an_archive_without_it(archive: Path, access: Access) -> None:
    with pytest.raises(
        ArchiveError, match="messages that left the queue of queue 'orders': archive it without --keep"
    ):
        run(archive, access, "orders", keep=True)


def test_file_in_place_of_a_directory_is_named(tmp_path: Path, access: Access) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="file/archive: "):
        run(tmp_path / "file" / "archive", access, "orders")
    with pytest.raises(ArchiveError, match="nowhere://x: "):
        run("nowhere://x", access, "orders")


# Age


def aged(archive: Path, queue: str, days: int) -> Path:
    """Move the partition of a queue to an earlier date."""
    found = only(archive, f"queue={queue}/date=*")
    day = TODAY - timedelta(days=days)
    manifest = only(found, "_manifest*")
    taken = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() * 1000
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"taken_ms": int(taken)}))
    return found.rename(found.with_name(f"date={day.isoformat()}"))


def test_old_partitions_are_deleted(archive: Path, access: Access) -> None:
    old, young = aged(archive, "orders", 8), aged(archive, "dead", 7)
    deleted, incomplete = Archive(str(archive)).delete_older(7, TODAY)
    assert deleted == [str(old.relative_to(archive))]
    assert incomplete == []
    assert (old.exists(), young.exists()) == (False, True)
    assert bodies(archive, "orders") == []
    assert len(bodies(archive)) == 3
    run(archive, access, "orders")  # its leases that have left the queue are known to be deleted


def test_incomplete_partitions_are_kept(archive: Path) -> None:
    old = aged(archive, "orders", 8)
    file = only(old, "*.parquet")
    (old / file.name.replace("-000000000000-", "-000000000001-")).touch()
    snapshot = aged(archive, "dead", 8)
    manifest = json.loads(only(snapshot, "_manifest*").read_text())
    Archive(str(archive)).write_series(Series("dead", manifest["series"], is_snapshot=True))
    deleted, incomplete = Archive(str(archive)).delete_older(7, TODAY)
    assert deleted == []
    assert incomplete == [str(each.relative_to(archive)) for each in (snapshot, old)]


def test_interrupted_deletion_is_hidden_and_finished(archive: Path) -> None:
    old = aged(archive, "orders", 8)
    (old / "_deleted.json").write_text('{"format": 1}')
    only(old, "*.parquet").unlink()
    assert bodies(archive, "orders") == []
    assert Archive(str(archive)).delete_older(7, TODAY)[0] == [str(old.relative_to(archive))]
    assert not old.exists()
