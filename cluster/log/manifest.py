"""The manifest: the file that lists the segment files of a log.

    body = msgpack [next_serial, [[name, first, end, file_bytes, sparse]... sealed, ascending], open name or nil,
                    first index of the open segment, [[index, term]... of the sealed segments]]

The manifest also holds the runs of terms of all sealed segments. So a start opens no segment but the last, and a
rewritten or removed segment leaves the runs unchanged. A term costs a few bytes.

Invariant: a listed segment file exists and is whole; a segment file that is not listed is a leftover of a crash. The
manifest is replaced atomically. New files are durable before the manifest lists them, and old files are removed after
it stops listing them. If you change the format, increment `FORMAT_VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from cluster.log.mirrored_file import pack_twice, read_copies, whole_of
from cluster.log.term_runs import TermRuns
from cluster.runtime.ports import pack

if TYPE_CHECKING:
    from cluster.log.segment import Run, Segment
    from cluster.runtime.ports import Disk

MANIFEST_NAME = "manifest"
FORMAT_VERSION = 2

_MAGIC = b"RMAN"
_NAME = re.compile(r"\d{20}-(\d{8,})\.(?:segment|sparse)", re.ASCII)


class Row(NamedTuple):
    """The manifest's row for a sealed segment."""

    name: str
    first: int
    end: int
    file_bytes: int
    sparse: bool


class Manifest(NamedTuple):
    next_serial: int = 1
    """Serial number of the next file, higher than the number of any file that was ever part of the log."""

    sealed: tuple[Row, ...] = ()
    """Sealed segments, ascending; their ranges do not overlap."""

    open_name: str | None = None
    """File name of the open segment; `None` if no segment is open."""

    open_first: int = 0
    runs: tuple[Run, ...] = ()
    """Terms of the entries of the sealed segments."""

    def names(self) -> list[str]:
        names = [row.name for row in self.sealed]
        return names if self.open_name is None else [*names, self.open_name]

    def begun(self, name: str, first: int) -> Manifest:
        """Return the manifest with a new open segment.

        The new segment replaces an open segment without entries, if the manifest has such a segment.
        """
        return self._replace(open_name=name, open_first=first).counting(name)

    def with_open_sealed(self, end: int, file_bytes: int, runs: Sequence[Run]) -> Manifest:
        name = self.open_name
        if name is None:
            raise ValueError("no segment is open")
        row = Row(name, self.open_first, end, file_bytes, sparse=False)
        terms = TermRuns(self.runs)
        terms.extend(runs)
        return self._replace(
            sealed=(*self.sealed, row), open_name=None, open_first=0, runs=tuple(terms.all())
        )

    def cut(self, end: int) -> Manifest:
        """Return the manifest without the segments from the index `end` on.

        If `end` lies within a segment, this segment is the open segment of the result.
        """
        whole = tuple(row for row in self.sealed if row.end <= end)
        name, first = (self.open_name, self.open_first) if self.open_first < end else (None, 0)
        for row in self.sealed:
            if row.first < end < row.end:
                name, first = row.name, row.first
        runs = tuple(run for run in self.runs if run[0] < (first or end))
        return self._replace(sealed=whole, open_name=name, open_first=first, runs=runs)

    def replaced(self, old: Sequence[str], new: Row | None) -> Manifest:
        """Return the manifest with `new` in place of the consecutive segments `old`; `None`: without replacement."""
        position = self.names().index(old[0])
        rows = (() if new is None else (new,)) + self.sealed[position + len(old) :]
        changed = self._replace(sealed=self.sealed[:position] + rows)
        terms = TermRuns(self.runs)
        if changed.sealed:
            terms.cut_to(changed.sealed[0].first)
        changed = changed._replace(runs=tuple(terms.all()) if changed.sealed else ())
        return changed if new is None else changed.counting(new.name)

    def adopted(self, rows: Sequence[Row], runs: Sequence[Run]) -> Manifest:
        """Return the manifest of a log that consists of these sealed segments only."""
        changed = Manifest(self.next_serial, tuple(rows), runs=tuple(runs))
        for row in rows:
            changed = changed.counting(row.name)
        return changed

    def counting(self, name: str) -> Manifest:
        """Return the manifest with a next serial number above the number in this file name."""
        return self._replace(next_serial=max(self.next_serial, serial_of(name) + 1))


def row_of(segment: Segment) -> Row:
    return Row(segment.name, segment.first, segment.end, segment.file_bytes, segment.sparse)


def log_start(sealed: Sequence[Row | Segment], start: int) -> int:
    """Return the first index of the gapless entries that end at `start`.

    The result is `start`, or the first index of the dense segments that reach up to `start` without a gap.
    """
    for segment in reversed(sealed):
        if segment.sparse or segment.end != start:
            break
        start = segment.first
    return start


def segment_name(first: int, serial: int, *, sparse: bool = False) -> str:
    return f"{first:020}-{serial:08}.{'sparse' if sparse else 'segment'}"


def is_segment_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def serial_of(name: str) -> int:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a segment")
    return int(match[1])


def load_manifest(disk: Disk, path: str, identity: bytes) -> Manifest:
    """Return the manifest. Raises CorruptJournal, UnknownFormat, ForeignJournal or FileNotFoundError."""
    return whole_of(load_copies(disk, path, identity), path)


def load_copies(disk: Disk, path: str, identity: bytes) -> list[Manifest | None]:
    """Return both copies of the manifest, `None` for a damaged copy.

    Raises UnknownFormat, ForeignJournal or FileNotFoundError.
    """
    bodies = read_copies(disk, path, _MAGIC, FORMAT_VERSION, identity)
    return [None if body is None else _unpack(body) for body in bodies]


def _unpack(body: bytes) -> Manifest:
    next_serial, rows, open_name, open_first, runs = msgpack.unpackb(body)
    sealed = tuple(Row(*row) for row in rows)
    return Manifest(next_serial, sealed, open_name, open_first, tuple((index, term) for index, term in runs))


def store_manifest(disk: Disk, path: str, identity: bytes, manifest: Manifest) -> None:
    """Store a manifest durably, and with it the names of all files in the directory. Raises OSError."""
    disk.replace_file(path, pack_twice(_MAGIC, FORMAT_VERSION, identity, pack(manifest)))
