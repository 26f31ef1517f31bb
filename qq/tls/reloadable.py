"""Objects made from files that may change: certificates and secrets.

Invariant: an unusable file stops the start of a node. Later it only costs a line in the log, and the previous object
stays in use.
"""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloadable(Generic[T]):
    """An object made from files, and made again when a file has changed."""

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        """Make the object for the first time; raises any OperatingError of `make`."""
        self._files = files
        self._make = make
        self._seen = self._stamps()
        self.current = make()

    def reload(self) -> bool:
        """Check the files, and return whether `current` is new. Unusable files are logged once and ignored."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        for file, stamp in zip(self._files, stamps, strict=True):
            if stamp is not None and not stat.S_ISREG(stamp.mode):
                # Reading a pipe may last for ever, and block the node.
                log.warning("%s is no regular file; what was read before stays in use", file)
                return False
        try:
            self.current = self._make()
        except OperatingError as error:
            # Files are replaced in succession: the last replacement changes the stamps again.
            log.warning("%s; what was read before stays in use", error)
            return False
        log.info("read again: %s", ", ".join(map(str, self._files)))
        return True

    def _stamps(self) -> list[_Stamp | None]:
        return [_stamp(file) for file in self._files]


class _Stamp(NamedTuple):
    """The attributes of a file that change when it is changed or replaced."""

    mode: int
    inode: int
    size: int
    modified_ns: int


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()  # of the file that a link leads to: Kubernetes replaces links
    except OSError:
        return None
    return _Stamp(status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns)
