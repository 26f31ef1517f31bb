"""Prometheus metrics with a value for each object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable


class ObjectMetric(NamedTuple):
    """A metric with a value for each object; its name is without the prefix."""

    name: str
    kind: str
    """"gauge" or "counter"."""
    text: str


ObjectRow = tuple[Sequence[str], Sequence[float | None]]
"""Values of an object's labels and metrics; a None value is left out."""


class ObjectRows(NamedTuple):
    """Some rows of a table, few enough to be made at once."""

    make: Callable[[], Iterable[ObjectRow]]
    key: Hashable = None
    """Identity of the rows, unique in all tables."""
    state: Any = None
    """The rows are unchanged while this is equal to its former value; None if they must always be made."""


class ObjectTable(NamedTuple):
    """Metrics of the objects of a kind, with a row for each object."""

    is_of_cluster: bool
    """Whether RabbitMQ shows them with the prefix `rabbitmq_cluster_`."""
    labels: Sequence[str]
    metrics: Sequence[ObjectMetric]
    parts: Iterable[ObjectRows]
