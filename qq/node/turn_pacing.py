"""The pauses between passes of turns at the node's processor (qq/client_sockets/turns.py).

Invariant: turns that publish, or request an entry of the log, need not rest. A pass of others rests for as long as it
took: no honest client sends heartbeats, passive declares or wrong methods as fast as a node reads them. Meanwhile the
machine's other processes run, such as the followers that a light client waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.process.garbage import YoungCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.runtime.ports import Runtime
    from qq.sessions.broker import Broker


class TurnPacing:
    """Decides when the next pass of turns begins, and collects young garbage between passes."""

    def __init__(self, broker: Broker, runtime: Runtime, clock: Callable[[], float]) -> None:
        """`clock` returns the processor time of the event loop's thread, in seconds."""
        self._broker = broker
        self._runtime = runtime
        self._young = YoungCollector(clock)
        self._served = 0
        """Requests and messages at the end of the last pass."""

    def call_after_rest(self, callback: Callable[[], None], spent_s: float) -> None:
        """Call `callback`, which begins a pass, after turns have taken `spent_s` of the processor."""
        self._young.check()
        counters = self._broker.counters
        received = counters.amqp091.messages_received + counters.amqp10.messages_received
        served = self._broker.submissions.requests + received
        rests, self._served = served == self._served, served
        if rests:
            self._runtime.call_later(spent_s, callback)
        else:
            self._runtime.call_soon(callback)
