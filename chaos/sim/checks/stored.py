"""Checks the nodes' disks: every live message must be readable, and disk use must stay within its bound.

Invariant: as in checks.py, no node is changed. Submitted payloads are known from the first time they took effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.compared_machines import TAG
from cluster.log.entry import batches_of, compacted_parts, is_compacted, make_compacted
from cluster.log.segment import RECORD_HEADER_BYTES, CorruptJournal, EntryNotFound

if TYPE_CHECKING:
    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode

RECORD_BYTES = RECORD_HEADER_BYTES + 8
"""Bytes of a record besides its payload, including its place in the index of a sparse segment."""
SMALL_FILES_BYTES = 16 * 1024
"""Bytes of identity, term and vote, and manifest."""

MessagesOf = Callable[[bytes], Mapping[int, bytes]]
"""Returns the messages of a batch, or of its compacted form, by ordinal."""


def batch_payloads(entry: bytes) -> dict[int, bytes]:
    """Return the present payloads of an entry's batches, by ordinal."""
    if is_compacted(entry):
        return {ordinal: bytes(part) for ordinal, part in compacted_parts(entry).items()}
    return {ordinal: entry[view.start : view.end] for ordinal, view in enumerate(batches_of(entry))}


class StoredMessages:
    """Reads live messages from the nodes' logs."""

    def __init__(self, cluster: SimulatedCluster, checks: Checks, messages_of: MessagesOf) -> None:
        self.found = 0
        self.compacted = 0
        """Number of live messages found in compacted entries."""
        self._cluster = cluster
        self._checks = checks
        self._messages_of = messages_of
        self._files: dict[str, list[str]] = {}

    def check_changed(self) -> None:
        """Check the nodes whose files below the log have changed since the last call."""
        for node in self._cluster.nodes:
            if node.has_started and node.up:
                files = [segment.name for segment in node.group.journal.segments() if segment.sparse]
                files.append(str(node.group.journal.first_index))
                if files != self._files.get(node.name):
                    self._files[node.name] = files
                    self.check(node)

    def check_all(self) -> None:
        for node in self._cluster.nodes:
            self.check(node)

    def check(self, node: SimulatedNode) -> None:
        """Check that a node can read every live message as it was submitted."""
        if not (node.up and node.has_started and node.runtime.alive) or node.runtime.paused:
            return
        if self._checks.is_replaying(node):
            return
        live = node.machine.freeze().live(0, node.group.engine.applied_index + 1)
        for index, batches in live.items():
            try:
                entry = node.group.journal.read(index)
            except EntryNotFound:
                self._checks.fail(f"{node.name} has lost entry {index}, of which {batches} are live")
                return
            except CorruptJournal as damage:
                if not self._checks.may_find_damage(node):
                    self._checks.fail(f"{node.name} cannot read entry {index}: {damage}")
                node.runtime.enter(partial(node.group.disk_failed, damage))
                return
            self._check_entry(node, index, entry, batches)

    def excess(self, node: SimulatedNode) -> int:
        """Return the bytes by which the log or the other files exceed their bound; positive if any do.

        The bound of the log is that of `housekeeping.py`.
        """
        options = self._cluster.options
        group = node.group
        entry_bytes = self._checks.entry_bytes_max
        checkpoint_bytes = max(
            (size for path, size in node.disk.files().items() if path.endswith(".checkpoint")), default=0
        )
        segment_bytes = options.segment_bytes + entry_bytes
        logged_bytes = max(options.checkpoint_bytes, checkpoint_bytes) + entry_bytes
        bound = (
            2.25 * self._live_bytes(node)
            + max(options.retained_bytes, 2 * logged_bytes)
            + logged_bytes
            + 4 * segment_bytes
        )
        pinned = group.housekeeping.pinned
        used = sum(segment.file_bytes for segment in group.journal.segments() if segment.name not in pinned)
        rest = node.disk.used_bytes() - group.journal.disk_bytes - 3 * checkpoint_bytes - SMALL_FILES_BYTES
        return max(used - int(bound), rest)

    def _live_bytes(self, node: SimulatedNode) -> int:
        """Return the bytes of the live messages if only they were stored."""
        total = 0
        for index, batches in node.machine.freeze().live(0, node.group.engine.applied_index + 1).items():
            parts = {
                ordinal: node.machine.compact(memoryview(self._checks.batches[index, ordinal]), ranges)
                for ordinal, ranges in batches.items()
            }
            total += RECORD_BYTES + len(make_compacted(parts))
        return total

    def _check_entry(
        self, node: SimulatedNode, index: int, entry: bytes, batches: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        payloads = batch_payloads(entry)
        for ordinal, ranges in batches.items():
            stored = self._messages_of(payloads[ordinal][TAG.size :]) if ordinal in payloads else {}
            submitted = self._messages_of(self._checks.batches[index, ordinal][TAG.size :])
            for first, count in ranges:
                for message in range(first, first + count):
                    if stored.get(message) != submitted[message]:
                        there = "another" if message in stored else "no"
                        place = f"message {message} of batch {ordinal} of entry {index}"
                        self._checks.fail(f"{node.name} has {there} {place}, which is live")
                self.found += count
                self.compacted += count * is_compacted(entry)
