"""The workloads by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.backlog import Backlog
from chaos.workloads.bounded import Bounded
from chaos.workloads.churn import Churn
from chaos.workloads.confirm import Confirm
from chaos.workloads.dead_letter import DeadLetter
from chaos.workloads.dedup import Dedup
from chaos.workloads.leases import Leases
from chaos.workloads.moved import Moved
from chaos.workloads.priority import Priority
from chaos.workloads.routed import Routed
from chaos.workloads.single_active import SingleActive
from chaos.workloads.timed import Timed
from chaos.workloads.tx import Tx
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.workloads.world import Workload

ALL = "all"
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Confirm(),
        Priority(),
        SingleActive(),
        DeadLetter(),
        Dedup(),
        Tx(),
        Churn(),
        Backlog(),
        Moved(),
        Timed(),
        Bounded(),
        Routed(),
        Leases(),
    )
}


class UnknownWorkload(OperatingError):
    """There is no workload of this name."""


def chosen(names: Iterable[str]) -> list[Workload]:
    """Return the workloads of these names; `all` means all of them. Raises UnknownWorkload."""
    names = list(names)
    for name in names:
        if name != ALL and name not in WORKLOADS:
            raise UnknownWorkload(f"unknown workload {name!r}; there are {', '.join([*WORKLOADS, ALL])}")
    return [workload for name, workload in WORKLOADS.items() if name in names or ALL in names]
