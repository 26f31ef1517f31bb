"""A directory whose files all carry the identity of their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk


class OwnedDirectory(NamedTuple):
    disk: Disk
    path: str
    identity: bytes
    """Identity of the owner, which each file must carry; a file with a different identity is foreign."""
