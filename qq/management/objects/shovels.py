"""Reports on shovels: their moves, or the report of the node that runs them.

Invariant: only reads the state, and asks the leader, because it runs all shovels. The leader may change meanwhile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from qq.machine.protocol.commands import PutParameter
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.moves import SHOVEL
from qq.management.errors import NOT_CARRIED_OUT, Unavailable
from qq.management.reports.catalog import ShovelStatus
from qq.sessions.shovels import move_for
from qq.shovels.definition import read_shovel
from qq.shovels.report import RUNNING, STARTING, TERMINATED, Report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from qq.machine.protocol.commands import Change
    from qq.machine.queue.moves import MoveState
    from qq.management.node_queries import NodeQueries
    from qq.sessions.broker import Broker
    from qq.shovels.definition import Definition

REPORTS, RESTART = "shovels", "restart shovel"


class ShovelRunner(Protocol):
    """Runs the shovels of a node, or none where shovels are disabled."""

    def reports(self) -> Mapping[tuple[str, str], Report]:
        """Return the report of each shovel, by virtual host and name."""
        ...

    def restart(self, vhost: str, name: str) -> bool:
        """Restart a shovel; return whether it exists."""
        ...


class ShovelReports:
    """Shows and restarts shovels."""

    def __init__(
        self,
        broker: Broker,
        queries: NodeQueries,
        change: Callable[[Change], Awaitable[None]],
        carrier: ShovelRunner,
    ) -> None:
        """`change` puts a change into the log; `carrier` runs shovels while this node leads."""
        self._broker = broker
        self._queries = queries
        self._change = change
        self._carrier = carrier
        queries.answer_rows(REPORTS, self._own_rows)
        queries.answer(RESTART, carrier.restart)

    async def all(self, vhost: str | None) -> Sequence[ShovelStatus]:
        """Return the shovels of a virtual host, or of all."""
        leader = self._broker.leader
        if leader in (None, self._broker.name):
            reports = self._carrier.reports()
        else:
            rows = await self._queries.rows(leader, REPORTS)
            reports = {(row[0], row[1]): Report(*row[2:]) for row in rows}
        moves = self._broker.machine.moves.running.values()
        under_way = {(move.vhost, move.shovel): move for move in moves if move.shovel}
        return [
            self._status(*key, text, under_way.get(key), reports.get(key, STARTING))
            for key, text in self._definitions(vhost)
        ]

    async def restart(self, shovel: ShovelStatus) -> None:
        """Stop a shovel and start it again. Raises Unavailable."""
        definition, leader = read_shovel(shovel.vhost, shovel.text), self._broker.leader
        if definition is not None and definition.is_move:
            # Setting the same value again restarts the move.
            await self._change(PutParameter(shovel.vhost, SHOVEL, shovel.name, shovel.text))
        elif leader == self._broker.name:
            self._carrier.restart(shovel.vhost, shovel.name)
        elif leader is None or await self._queries.query(leader, RESTART, shovel.vhost, shovel.name) is None:
            raise Unavailable(f"the node that carries out shovels does not answer; {NOT_CARRIED_OUT}")

    def _definitions(self, vhost: str | None) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield (virtual host, name) and value of each shovel, of a virtual host or of all."""
        for known in list(self._broker.machine.vhosts.values()):
            if vhost in (None, known.name):
                for (component, name), text in sorted(known.parameters.items()):
                    if component == SHOVEL:
                        yield (known.name, name), text

    def _status(
        self, vhost: str, name: str, text: str, move: MoveState | None, report: Report
    ) -> ShovelStatus:
        definition = read_shovel(vhost, text)
        if definition is None:
            report = Report(TERMINATED, "this node does not understand the shovel", {})
        elif definition.is_move:
            report = self._move_report(vhost, name, definition, move)
        return ShovelStatus(vhost, name, text, json.loads(text), self._broker.leader, *report)

    def _move_report(self, vhost: str, name: str, shovel: Definition, move: MoveState | None) -> Report:
        if move is not None:
            return Report(RUNNING, None, {"move": move.id, "forwarded": move.moved})
        reason = None
        try:
            self._broker.machine.catalog.check_room(move_for(vhost, name, shovel, ""))
        except Refused as refused:
            reason = refused.text
        return Report(STARTING.state, reason, {"move": None, "forwarded": 0})

    def _own_rows(self, after: Any) -> Iterator[tuple[Any, Any]]:
        for key, report in sorted(self._carrier.reports().items()):
            if after is None or list(key) > list(after):
                yield key, [*key, *report]
