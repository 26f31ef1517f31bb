"""The memory of this process: bytes in use, and bytes available."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STATM_BYTES_MAX = 256
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds now; raises OSError."""
    return _statm_pages()[1] * _PAGE_BYTES


def mapped_file_bytes() -> int:
    """Return the bytes of `resident_bytes` that are parts of files: programs and libraries. Raises OSError."""
    return _statm_pages()[2] * _PAGE_BYTES


def _statm_pages() -> list[int]:
    return [int(each) for each in os.pread(_statm(), _STATM_BYTES_MAX, 0).split()]


@cache
def _statm() -> int:
    """Open the system's file about this process. It stays open, because later there may be no free descriptor."""
    return os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)


def give_back() -> None:
    """Return freed memory of the heap to the system: glibc by itself returns only memory at the heap's end.

    It takes a tenth of a second for each gigabyte. Other C libraries have no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def available_bytes() -> int:
    """Return the bytes that this process may hold: the machine's memory, or less if its control group has a limit."""
    return min([_PAGE_BYTES * os.sysconf("SC_PHYS_PAGES"), *group_limits(_OWN_GROUPS, _GROUPS)])


def group_limits(own_groups: Path, groups: Path) -> list[int]:
    """Return the limits of the control group of this process and of its parents, of version 1 and 2."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits(groups, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(groups / "memory", path, "memory.limit_in_bytes")
    return limits


def _limits(root: Path, path: str, name: str) -> list[int]:
    # In a container the path may be the host's: then only the root exists, which is the container's.
    inner = root / path.lstrip("/")
    limits: list[int] = []
    for group in (inner, *(outer for outer in inner.parents if outer.is_relative_to(root))):
        try:
            limits.append(int((group / name).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return limits
