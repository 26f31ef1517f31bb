"""Caches of pure functions of short octets, because many messages have equal properties."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

KNOWN_MAX = 1000
"""Largest number of results that a function remembers."""
KNOWN_BYTES_MAX = 512
"""Size in octets of the longest remembered argument, which bounds the memory."""


def remembers(function: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Let a function remember its last results."""
    remembered = lru_cache(KNOWN_MAX)(function)

    @wraps(function)
    def known(octets: bytes) -> T:
        return remembered(octets) if len(octets) <= KNOWN_BYTES_MAX else function(octets)

    return known
