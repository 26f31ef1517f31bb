"""Lists of objects with fields computed on demand, and the times of requested samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class ThingRows(NamedTuple):
    """Objects of a kind that may be very numerous, with functions that compute their fields on demand."""

    things: Iterable[Any]
    fields: Mapping[str, Callable[[Any], Any]]
    """Field name in a status -> function that computes it."""
    parts: Mapping[str, Callable[[Any], Any]] = {}
    """Dotted name of a number inside of a field -> function that computes it more cheaply than the whole field."""


class Samples(NamedTuple):
    """Times of the requested samples: from `age_s` seconds ago on, every `step_s` seconds."""

    age_s: int
    step_s: int
