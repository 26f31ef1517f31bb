"""What is made from files that may change: certificates, secrets.

Lives here: when files are read again. Not here: what is made from them (tls.py, config.py), and who uses it (node.py).

Law: a file that cannot be used stops the start of a node, and later nothing but a line in the log: what was good before
goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloadable(Generic[T]):
    """Something that is made from files, and made again when one of them has changed."""

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        """Make it for the first time. `make` may raise OperatingError, and then so does this."""
        self._files = files
        self._make = make
        self._seen = self._stamps()
        self.current = make()

    def reload(self) -> bool:
        """Look at the files; return whether `current` is new. Files that cannot be used are logged once and ignored."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.current = self._make()
        except OperatingError as error:
            # Files are replaced one after the other: the last one changes the stamps once more.
            log.warning("%s; what was read before stays in use", error)
            return False
        log.info("read again: %s", ", ".join(map(str, self._files)))
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()  # of the file that a link leads to: Kubernetes replaces links
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
