"""The command `check`: lost manifests, and manifests that contradict themselves or their files. No node is needed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from qq_spark.archive.__main__ import main
from qq_spark.archive.store import Archive, ArchiveError, DataFile, Manifest, Series, data_name, partition

if TYPE_CHECKING:
    from pathlib import Path

PRESENT, EARLIER = "c0ffee112233", "0699e1357c1f"
FIRST_DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)
MESSAGES = 3
"""Messages of a lease."""


def write_lease(archive: Archive, series: str, lease: int, day: int) -> None:
    taken_ms = int((FIRST_DAY + timedelta(days=day)).timestamp() * 1000)
    name = data_name(series, lease, 0)
    with archive.writing(f"{partition('orders', taken_ms)}/{name}") as file:
        parquet.write_table(pa.table({"body": [b"text"] * MESSAGES}), file)
    files = (DataFile(name, MESSAGES, file.length, file.sha256()),)
    archive.write_manifest(Manifest("orders", series, 1, lease, taken_ms, MESSAGES, files))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An archive of a queue with leases 0 to 5: each day has two leases."""
    archive = Archive(str(tmp_path / "archive"))
    archive.create("/")
    archive.write_series(Series("orders", PRESENT, is_snapshot=False))
    for lease in range(6):
        write_lease(archive, PRESENT, lease, lease // 2)
    return tmp_path / "archive"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def check(directory: Path) -> str:
    """Return the output of the command. Raise ArchiveError."""
    result = invoke("check", str(directory))
    if result.exception is not None:
        raise result.exception
    return result.output


def manifest(directory: Path, lease: int) -> Path:
    (found,) = directory.glob(f"queue=orders/*/_manifest-*-{lease:012}.json")
    return found


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def delete_older(directory: Path, days: int) -> None:
    Archive(str(directory)).delete_older(days, FIRST_DAY.date() + timedelta(days=2))


# Leases


def test_whole_archive_is_unchanged(directory: Path) -> None:
    assert check(directory) == "18 messages in 6 files: unchanged\n"


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (
            [3, 4],
            "leases 3 to 4 of queue 'orders' are missing: their manifests were lost, or somebody released them",
        ),
        ([0], "lease 0 of queue 'orders' is missing: its manifest was lost, or somebody released it"),
    ],
)
def test_lost_manifests_are_named(directory: Path, lost: list[int], reason: str) -> None:
    for lease in lost:
        manifest(directory, lease).unlink()
    with pytest.raises(ArchiveError, match=f"^{directory}: {reason}$"):
        check(directory)


def test_leases_of_deleted_partitions_are_not_missing(directory: Path) -> None:
    delete_older(directory, 1)
    assert check(directory) == "12 messages in 4 files: unchanged\n"
    manifest(directory, 2).unlink()
    with pytest.raises(ArchiveError, match="lease 2 of queue 'orders' is missing"):
        check(directory)


def test_deleted_leases_may_be_above_an_incomplete_partition(directory: Path) -> None:
    kept = manifest(directory, 0).parent
    (kept / data_name(PRESENT, 1, 1)).touch()
    delete_older(directory, 0)
    assert check(directory) == "12 messages in 4 files: unchanged\n"


def test_leases_of_an_interrupted_deletion_are_not_missing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "delete", lambda *_: None)
        delete_older(directory, 1)
    assert check(directory) == "12 messages in 4 files: unchanged\n"


def test_earlier_series_may_lack_leases(directory: Path) -> None:
    write_lease(Archive(str(directory)), EARLIER, 7, 0)
    assert check(directory) == "21 messages in 7 files: unchanged\n"


def test_unfinished_snapshot_may_lack_leases(directory: Path) -> None:
    Archive(str(directory)).write_series(Series("orders", PRESENT, is_snapshot=True))
    manifest(directory, 3).unlink()
    assert check(directory) == "0 messages in 0 files: unchanged\n"


def test_files_are_checked_although_a_lease_is_missing(directory: Path) -> None:
    """A lease that an operator has released is missing for ever."""
    manifest(directory, 3).unlink()
    data = next(directory.glob("queue=orders/*/*-000000000005-0000.parquet"))
    data.unlink()
    with pytest.raises(ArchiveError, match=f"{data.name} is missing: the archive was cut"):
        check(directory)


# Counts


def test_manifest_that_contradicts_its_files_is_named(directory: Path) -> None:
    file = manifest(directory, 2)
    for values, reason in (
        ({"messages": 1}, "counts 1 messages, and 3 in its files"),
        ({"messages": 3, "files": []}, "counts 3 messages, and 0 in its files"),
    ):
        change(file, **values)
        with pytest.raises(ArchiveError, match=f"{file.name} is damaged: it {reason}"):
            check(directory)


def test_count_that_is_no_number_is_named(directory: Path) -> None:
    file = manifest(directory, 2)
    files = json.loads(file.read_text())["files"]
    change(file, files=[files[0] | {"messages": "3"}])
    with pytest.raises(ArchiveError, match=f"{file.name} is damaged: its list of files cannot be read"):
        check(directory)


def test_file_with_a_wrong_row_count_is_named(directory: Path) -> None:
    file = manifest(directory, 2)
    (data,) = json.loads(file.read_text())["files"]
    change(file, messages=4, files=[data | {"messages": 4}])
    with pytest.raises(ArchiveError, match=rf"{data['name']} has 3 messages, not the 4 of its manifest"):
        check(directory)


def test_file_without_a_readable_footer_is_named(directory: Path) -> None:
    file = manifest(directory, 2)
    (data,) = json.loads(file.read_text())["files"]
    with Archive(str(directory)).writing(f"{file.parent.relative_to(directory)}/{data['name']}") as written:
        written.write(b"text")
    change(file, files=[data | {"bytes": written.length, "sha256": written.sha256()}])
    with pytest.raises(ArchiveError, match=f"{data['name']}: "):
        check(directory)


# Options of other commands


def test_number_of_days_is_bounded(directory: Path) -> None:
    result = invoke("delete", str(directory), "--older-than", "99999999999")
    assert result.exit_code == 2
    assert "99999999999 is not in the range 1<=x<=36500" in result.output
    assert invoke("delete", str(directory), "--older-than", "36500").exit_code == 0
    assert check(directory) == "18 messages in 6 files: unchanged\n"
