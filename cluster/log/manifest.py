"""The manifest: which segment files make up a log.

    body = msgpack [next_serial, [[name, first, end, file_bytes, sparse]... sealed, ascending], open name or nil,
                    first index of the open one, [[index, term]... of the sealed ones]]

The runs of terms are here, once for all sealed segments, and not fetched from their footers: a start then opens no
segment but the last, a segment that is rewritten or dropped changes nothing in them, and a reign costs a few bytes.

Invariant: a file that is in it is there, whole; a file that is not is a leftover of a crash. It is replaced atomically,
after what it names is durable and before what it does not name any more is removed. If you change the format, increment
`FORMAT_VERSION`.
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
    """A sealed segment, as the manifest lists it."""

    name: str
    first: int
    end: int
    file_bytes: int
    sparse: bool


class Manifest(NamedTuple):
    next_serial: int = 1
    """The serial number of the next file, higher than that of any file that was ever part of the log."""

    sealed: tuple[Row, ...] = ()
    """The sealed segments, ascending; their ranges do not overlap."""

    open_name: str | None = None
    """The name of the segment that is written to; None if there is none."""

    open_first: int = 0
    runs: tuple[Run, ...] = ()
    """The terms of the entries of the sealed segments."""

    def names(self) -> list[str]:
        names = [row.name for row in self.sealed]
        return names if self.open_name is None else [*names, self.open_name]

    def begun(self, name: str, first: int) -> Manifest:
        """The manifest with a new open segment, which replaces one that holds nothing if there is one."""
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
        """The manifest without the segments from `end` on; the one that `end` lies within is open, again or still."""
        whole = tuple(row for row in self.sealed if row.end <= end)
        name, first = (self.open_name, self.open_first) if self.open_first < end else (None, 0)
        for row in self.sealed:
            if row.first < end < row.end:
                name, first = row.name, row.first
        runs = tuple(run for run in self.runs if run[0] < (first or end))
        return self._replace(sealed=whole, open_name=name, open_first=first, runs=runs)

    def replaced(self, old: Sequence[str], new: Row | None) -> Manifest:
        """The manifest with `new`, or nothing, in place of the consecutive segments `old`."""
        position = self.names().index(old[0])
        rows = (() if new is None else (new,)) + self.sealed[position + len(old) :]
        changed = self._replace(sealed=self.sealed[:position] + rows)
        terms = TermRuns(self.runs)
        if changed.sealed:
            terms.cut_to(changed.sealed[0].first)
        changed = changed._replace(runs=tuple(terms.all()) if changed.sealed else ())
        return changed if new is None else changed.counting(new.name)

    def adopted(self, rows: Sequence[Row], runs: Sequence[Run]) -> Manifest:
        """The manifest of a log that consists of these sealed segments only."""
        changed = Manifest(self.next_serial, tuple(rows), runs=tuple(runs))
        for row in rows:
            changed = changed.counting(row.name)
        return changed

    def counting(self, name: str) -> Manifest:
        """The manifest with a next serial number above that in this file name."""
        return self._replace(next_serial=max(self.next_serial, serial_of(name) + 1))


def row_of(segment: Segment) -> Row:
    return Row(segment.name, segment.first, segment.end, segment.file_bytes, segment.sparse)


def log_start(sealed: Sequence[Row | Segment], start: int) -> int:
    """Find where the entries without a gap begin: at `start`, or where dense segments that reach up to it begin."""
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
    """Read a manifest. Raises CorruptJournal, UnknownFormat, ForeignJournal or FileNotFoundError."""
    return whole_of(load_copies(disk, path, identity), path)


def load_copies(disk: Disk, path: str, identity: bytes) -> list[Manifest | None]:
    """Read both copies, None for a damaged one. Raises UnknownFormat, ForeignJournal or FileNotFoundError."""
    bodies = read_copies(disk, path, _MAGIC, FORMAT_VERSION, identity)
    return [None if body is None else _unpack(body) for body in bodies]


def _unpack(body: bytes) -> Manifest:
    next_serial, rows, open_name, open_first, runs = msgpack.unpackb(body)
    sealed = tuple(Row(*row) for row in rows)
    return Manifest(next_serial, sealed, open_name, open_first, tuple((index, term) for index, term in runs))


def store_manifest(disk: Disk, path: str, identity: bytes, manifest: Manifest) -> None:
    """Store a manifest, durably when this returns, with the names of all files in the directory; raises OSError."""
    disk.replace_file(path, pack_twice(_MAGIC, FORMAT_VERSION, identity, pack(manifest)))
