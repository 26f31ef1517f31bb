"""`qq inspect`: shows and checks the data directory of a stopped node, or a backup.

Invariant: no file is written. Names chosen by clients are escaped, so that a terminal only displays them. Of a user
only name and tags are printed, of messages only count and size.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from cluster.configuration.configuration import (
    CONFIGURATION,
    MalformedConfiguration,
    Versions,
    configuration_time_ms,
    read_configuration,
)
from cluster.log.entry import (
    KIND_EVICTION,
    KIND_OUTAGE,
    REGULAR,
    BatchView,
    MalformedEntry,
    batches_of,
    compacted_parts,
    entry_time_ms,
    is_compacted,
)
from cluster.log.hardstate import HardState, VoterStatus
from cluster.runtime.asyncio_runtime import DirectoryInUse, ReadOnlyDisk, check_not_in_use
from cluster.snapshots.backup import BadBackup, examine, read_contents
from cluster.snapshots.restore import UNFINISHED
from cluster.state.group_state import GroupState
from cluster.storage.inspect import (
    INDEX_MAX,
    CheckpointFound,
    EntryFound,
    Finding,
    HardStateFound,
    Leftover,
    LogFound,
    ManifestFound,
    MarkFound,
    OtherProblem,
    OwnerFound,
    Problem,
    Remedy,
    SegmentFound,
    entries,
)
from cluster.storage.inspect import inspect as find_all
from cluster.storage.paths import group_path
from qq.cli.local.archive import is_backup, opened
from qq.diagnosis.words import number
from qq.errors import CommandError
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import MalformedBatch, decode_batch, decode_kept, is_kept, messages_of
from qq.machine.protocol.commands import Command, PutHashedUser, PutUser

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from cluster.log.sync_mark import Mark
    from cluster.runtime.ports import Disk
    from qq.machine.protocol.codec import Publication

_HIDDEN: dict[type[Command], tuple[str, ...]] = {
    PutUser: ("salt", "hash"),
    PutHashedUser: ("salt", "hash"),
}
_ENTRY_TYPES = {1: "the beginning of a reign", 2: "a change of the members", 3: "a version of the code"}
"""Names of the entry types that pysyncobj itself writes to the log."""
_GROUP = group_path(0)
UNFINISHED_RESTORE = (
    f"holds a restore that did not end: give `qq restore` again, or remove {UNFINISHED} in it"
)
_SEGMENT_COLUMNS = "{:37}  {:6}  {:>11}  {:>11}  {:>8}  {:>13}  {:>9}  {}"
_BACKUP_COLUMNS = "{:37}  {:>13}  {}"
_CHECKPOINT_COLUMNS = "{:37}  {:>6}  {:>13}  {}"
_NEXT_START = {
    Remedy.SPARE: "puts right by itself what it has a second time or can make anew",
    Remedy.HEARING: "waits until it has heard from every other member, and then catches up",
    Remedy.REPAIR: "sets its log aside and is repaired from the others; without others it refuses to start",
}


def inspect(directory: Path) -> int:
    """Print the contents of the directory; exit status 1 if files are damaged or missing. Raises CommandError."""
    if is_backup(directory):
        return inspect_backup(directory)
    status = 0
    with _group_of(directory) as (group, disk):
        print(f"directory    {group}")
        problems: dict[str, Problem] = {}
        is_learner = False
        last_title = ""
        for finding in find_all(disk, "", describe_state, Versions(*QueueMachine.versions)):
            title = _title(finding)
            if title != last_title:
                print(f"\n{title}")
                last_title = title
            print(_line(finding))
            if isinstance(finding, HardStateFound) and finding.state is not None:
                is_learner = finding.state.voter_status is VoterStatus.LEARNER
            if not isinstance(finding, LogFound) and finding.problem is not None:
                problems[_name(finding)] = finding.problem
                status = 1
        print(f"\n{_verdict(problems, is_learner=is_learner)}")
    return status


def inspect_backup(path: Path) -> int:
    """Print the contents of the backup; exit status 1 if files are damaged or missing. Raises CommandError."""
    damaged: list[str] = []
    try:
        with opened(str(path)) as disk:
            contents = read_contents(disk)
            cluster_id = contents.cluster_id.hex() or "none yet"
            print(
                f"backup       of {contents.cluster}, cluster id {cluster_id}, given by node {contents.node}"
            )
            print(f"state        version {contents.version}")
            print(
                f"log          up to entry {contents.index} of term {contents.term}, made at "
                f"{describe_time(contents.time_ms)}\n\n{_BACKUP_COLUMNS.format('file', 'bytes', 'state')}"
            )
            for found in examine(disk, contents, describe_state):
                state = f"damaged: {found.problem}" if found.problem else f"ok: {found.what}"
                print(_BACKUP_COLUMNS.format(found.name, f"{found.file_bytes:,}", state))
                if found.problem:
                    damaged.append(found.name)
    except BadBackup as error:
        raise CommandError(f"{path}: {error}") from None
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror}") from None
    print(f"\ndamaged or missing: {', '.join(damaged)}" if damaged else "\nwhole: nothing is damaged")
    return 1 if damaged else 0


def dump(directory: Path, first: int, last: int | None) -> int:
    """Print log entries; exit status 1 if any entry is unreadable. Raises CommandError."""
    if is_backup(directory):
        raise CommandError(
            f"{directory}: is a backup; the entries can be printed of a node's data directory only"
        )
    status = 0
    with _group_of(directory) as (_, disk):
        for found in entries(disk, "", first, INDEX_MAX if last is None else last):
            if isinstance(found, OtherProblem):
                status = 1
                print(f"qq inspect: {found.path}: {found.problem.what}", file=sys.stderr)
            else:
                for line in _entry_lines(found):
                    print(line)
    return status


@contextmanager
def _group_of(directory: Path) -> Generator[tuple[Path, Disk]]:
    """Open the group's directory for reading. Raises CommandError on an error of files or a running node.

    If the reader of the output has closed the pipe, the block ends quietly.
    """
    try:
        group = find_group(directory)
        data_dir = group.parent.parent
        _check_stopped(data_dir)
        try:
            yield group, cast("Disk", ReadOnlyDisk(group))
        finally:
            _check_stopped(data_dir)  # changes of a running node may look like damage
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, so the interpreter would fail to flush its buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror}") from None


def _check_stopped(data_dir: Path) -> None:
    try:
        check_not_in_use(data_dir)
    except DirectoryInUse as error:
        raise CommandError(f"{error}; stop the node first, or ask it with `qq status`") from None


def find_group(directory: Path) -> Path:
    """Find the group's directory. Raises CommandError, also if an unfinished restore is there.

    `directory` may be the group's directory itself, a node's data directory, or a node's directory of `qq up`.
    """
    for data_dir in (directory, directory / "data"):
        if (data_dir / UNFINISHED).exists():
            raise CommandError(f"{data_dir}: {UNFINISHED_RESTORE}")
    for group in (directory / _GROUP, directory, directory / "data" / _GROUP):
        if (group / "identity").exists() or (group / "log").is_dir():
            return group.resolve()
    raise CommandError(f"{directory}: neither the data directory of a node nor a backup")


def describe_state(body: bytes) -> str:
    """Describe the state in a checkpoint in a line. Raises ValueError if this program cannot load it."""
    machine = QueueMachine()
    GroupState(machine).load(body)
    queues = list(machine.queues())
    ready, unacked = sum(queue.ready for queue in queues), sum(queue.unacked for queue in queues)
    sessions = len(machine.freeze().sessions)
    return (
        f"{number(len(queues), 'queue')}, {ready:,} ready, {unacked:,} unacked, {number(sessions, 'session')}"
    )


# Findings


def _title(finding: Finding) -> str:
    match finding:
        case SegmentFound():
            head = ("segment", "kind", "first", "end", "entries", "bytes", "terms", "state")
            return _SEGMENT_COLUMNS.format(*head)
        case CheckpointFound():
            return _CHECKPOINT_COLUMNS.format("checkpoint", "term", "bytes", "state")
        case Leftover() | OtherProblem():
            return "also"
        case _:
            return ""


def _line(finding: Finding) -> str:
    match finding:
        case OwnerFound():
            return f"identity     {_describe_identity(finding)}{_problem_suffix(finding.problem)}"
        case HardStateFound(state=state, copies=copies):
            return f"hardstate    {_describe_hard_state(state)}; copies: {', '.join(copies)}"
        case ManifestFound():
            state = "ok" if finding.present else "none yet"
            return f"manifest     {finding.problem.what if finding.problem else state}"
        case MarkFound():
            return f"synced       {finding.problem.what if finding.problem else _describe_mark(finding.mark)}"
        case LogFound():
            return f"log          {_describe_log(finding)}"
        case SegmentFound():
            return _segment_line(finding)
        case CheckpointFound():
            term = "-" if finding.term is None else finding.term
            state = _damaged(finding.problem) if finding.problem else f"ok: {finding.state}"
            return _CHECKPOINT_COLUMNS.format(finding.name, term, f"{finding.file_bytes:,}", state)
        case Leftover():
            what = finding.problem.what if finding.problem else finding.what
            return f"{finding.path}  {finding.file_bytes:,} bytes, {what}"
        case OtherProblem():
            return f"{finding.path}  {finding.problem.what}"


def _describe_identity(found: OwnerFound) -> str:
    if found.identity is None:
        return "unknown"
    owner, version, members, _ = found.identity
    names = ", ".join(members) or "members as in the log"
    whose = f"node {owner.node} of cluster {owner.cluster} ({names}), group {owner.group_id}"
    incarnation = found.start.incarnation if found.start else "unknown"
    return f"{whose}, incarnation {incarnation}, state version {version}"


def _describe_hard_state(state: HardState | None) -> str:
    if state is None:
        return "nothing is known"
    return f"{state.voter_status.name.lower()}, term {state.term}, vote for {state.voted_for or 'nobody'}"


def _describe_mark(mark: Mark | None) -> str:
    if mark is None or not mark.name:
        return "nothing yet"
    return f"{mark.size:,} bytes of {mark.name}"


def _describe_log(found: LogFound) -> str:
    size = f"{found.file_bytes:,} bytes in {number(found.files, 'file')}"
    if found.last_index == 0:
        return f"empty, {size}"
    return f"entries {found.first_index:,} to {'?' if found.last_index is None else f'{found.last_index:,}'}, {size}"


def _segment_line(found: SegmentFound) -> str:
    first, last = found.terms or ("-", "-")
    if found.problem is not None:
        state = _damaged(found.problem)
    else:
        state = (
            f"ok; torn tail: {found.torn_bytes:,} bytes, cut at the next start" if found.torn_bytes else "ok"
        )
    return _SEGMENT_COLUMNS.format(
        found.name,
        found.kind,
        found.first,
        found.end,
        "-" if found.entries is None else f"{found.entries:,}",
        f"{found.file_bytes:,}",
        first if first == last else f"{first}-{last}",
        state,
    )


def _damaged(problem: Problem) -> str:
    return f"damaged: {problem.what}"


def _problem_suffix(problem: Problem | None) -> str:
    return f"; {problem.what}" if problem else ""


def _name(finding: Finding) -> str:
    match finding:
        case OwnerFound():
            return "identity"
        case HardStateFound():
            return "hardstate"
        case ManifestFound():
            return "log/manifest"
        case MarkFound():
            return "log/synced"
        case LogFound():
            return "log"
        case SegmentFound() | CheckpointFound():
            return f"log/{finding.name}"
        case Leftover() | OtherProblem():
            return finding.path


def _verdict(problems: dict[str, Problem], *, is_learner: bool) -> str:
    """Say in a line whether the directory is undamaged, and how the next start treats the damage."""
    if not problems:
        return "whole: nothing is damaged" + (
            "; the node is a learner: it is being repaired from the others" if is_learner else ""
        )
    refused = [
        f"{name}: {problem.what}" for name, problem in problems.items() if problem.remedy is Remedy.OPERATOR
    ]
    if refused:
        return f"the node refuses to start until this is put right: {'; '.join(refused)}"
    cures = sorted({problem.remedy for problem in problems.values()})
    future = ", and ".join(map(_NEXT_START.__getitem__, cures))
    return f"damaged or missing: {', '.join(problems)}. At its next start the node {future}"


# Entries


def _entry_lines(found: EntryFound) -> Iterator[str]:
    payload = found.payload
    head = f"{found.index}  term {found.term}"
    if is_compacted(payload):
        yield f"{head}  compacted, {len(payload):,} bytes"
        yield from _kept_lines(payload)
    elif payload[:1] == bytes((CONFIGURATION,)):
        yield from _configuration_lines(head, payload)
    elif payload[:1] != bytes((REGULAR,)):
        kind = _ENTRY_TYPES.get(payload[0], f"type {payload[0]}") if payload else "empty"
        yield f"{head}  {kind}"
    else:
        try:
            batches = batches_of(payload)
        except MalformedEntry as error:
            yield f"{head}  not readable: {error}"
            return
        yield f"{head}  {describe_time(entry_time_ms(payload))}  {len(payload):,} bytes"
        for ordinal, batch in enumerate(batches):
            yield from _batch_lines(ordinal, batch, payload)


def _kept_lines(payload: bytes) -> Iterator[str]:
    try:
        parts = compacted_parts(payload)
    except MalformedEntry as error:
        yield f"  not readable: {error}"
        return
    for ordinal, part in parts.items():
        yield f"  batch {ordinal}, {len(part):,} bytes"
        yield from _part_lines(part)


def _configuration_lines(head: str, payload: bytes) -> Iterator[str]:
    try:
        configuration = read_configuration(payload)
    except MalformedConfiguration as error:
        yield f"{head}  not readable: {error}"
        return
    version = configuration.version
    yield f"{head}  {describe_time(configuration_time_ms(payload))}  the members, at version {version} of the state"
    for member in configuration.members:
        role = "voter" if member.is_voter else "learner"
        directory = member.id.hex() if member.id else "awaited"
        yield f"    {member.name}  {role}  {member.address}  {directory}{'  drained' if member.is_drained else ''}"


def _batch_lines(ordinal: int, view: BatchView, payload: bytes) -> Iterator[str]:
    head = f"  batch {ordinal} of {view.origin} {view.incarnation}.{view.sequence}"
    if view.kind == KIND_EVICTION:
        yield f"{head}: {view.origin} is evicted"
    elif view.kind == KIND_OUTAGE:
        yield f"  batch {ordinal} of {view.origin}: an outage of {view.sequence:,} ms at most"
    elif view.start == view.end:
        yield f"{head}: nothing, the node only tells that it lives"
    else:
        yield f"{head}, {view.end - view.start:,} bytes"
        yield from _part_lines(memoryview(payload)[view.start : view.end])


def _part_lines(payload: memoryview) -> Iterator[str]:
    """Describe the commands of a batch, or the publications that compaction has kept of it."""
    try:
        if is_kept(payload):
            for piece in decode_kept(payload):
                messages = _messages(piece.offsets[0], piece.offsets[-1], piece.count)
                publication = piece.publication
                hidden = [name for name in ("more_keys", "goes_on") if not getattr(publication, name)]
                yield f"    kept from message {piece.first} on: {messages}; {_fields(publication, hidden)}"
            return
        batch = decode_batch(payload)
    except MalformedBatch as error:
        yield f"    not readable: {error}"
        return
    message = 0
    for command in batch.commands:
        line = f"    {type(command).__name__} {_fields(command, _HIDDEN.get(type(command), ()))}"
        if count := messages_of(command):
            end = message + count
            line += f": {_messages(batch.offsets[message], batch.offsets[end], count)}"
            message = end
        yield line


def _messages(start: int, end: int, count: int) -> str:
    return f"{number(count, 'message')} of {end - start:,} bytes with frames"


def _fields(row: Command | Publication, hidden: Sequence[str] = ()) -> str:
    values = zip(row._fields, row, strict=True)
    return ", ".join(f"{name}={value!r}" for name, value in values if name not in hidden)


def describe_time(time_ms: int) -> str:
    """Format a time in milliseconds as ISO 8601, in UTC."""
    try:
        time = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):  # the clock of that leader was far off
        return f"{time_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
