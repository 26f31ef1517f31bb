"""Oracle of the credit that clients set: no message beyond it, and each drain answered once, behind its deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.sim.checks.queue_model import Flow, Holder, ready_messages
from qq.machine.protocol.commands import SetCredit
from qq.machine.queue.consumers import CREDIT_MAX

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from chaos.sim.checks.queue_model import Consumer
    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.effects import ConsumerState


class CreditOracle:
    """Follows the credit of consumers whose clients set it."""

    def __init__(
        self,
        fail: Callable[[str], None],
        fates: Counter[str],
        holders: Callable[[], Mapping[Consumer, Holder]],
    ) -> None:
        self._fail = fail
        self._fates = fates
        self._holders = holders

    def set(self, holder: Holder | None, command: SetCredit) -> None:
        """Carry out a `SetCredit`. A repeated command has no effect."""
        flow = None if holder is None or not holder.live else holder.flow
        if flow is None or command.number <= flow.number:
            return
        flow.number, flow.limit = command.number, command.limit
        flow.peak = max(flow.peak, flow.limit)
        flow.is_draining = command.is_drain
        flow.wants_state |= command.wants_state
        self._fates["credit set"] += 1

    def check_delivered(self, key: Consumer, holder: Holder, *, ended: bool) -> None:
        """Check that a consumer holds no message beyond its credit; `ended` means after all commands of the entry."""
        flow = holder.flow
        if flow is not None and holder.next_id > (flow.limit if ended else flow.peak):
            self._fail(f"{key} is given message {holder.next_id - 1} and has credit up to {flow.limit}")

    def reported(self, state: ConsumerState, now_ms: int, *, ended: bool) -> None:
        """Check that the client waits for the report, and that the report is true."""
        key = state.node, state.consumer
        holder = self._holders().get(key)
        if holder is None or holder.flow is None or not holder.live:
            self._fail(f"nobody waits for {state}")
            return
        flow = holder.flow
        if state.next_id != holder.next_id:
            self._fail(f"message {holder.next_id} comes next, and not as in {state}")
        if state.available and not state.is_active:
            self._fail(f"messages are ready for an inactive consumer: {state}")
        is_activity = flow.wants_activity and state.is_active != flow.was_active
        flow.was_active = state.is_active
        if state.number != flow.number:
            return  # a later command of the batch has changed the credit
        has_drained = flow.is_draining and not state.is_draining
        if has_drained:
            self._drained(holder, flow, state, now_ms, ended=ended)
        if flow.is_draining != state.is_draining:
            self._fail(f"is no drain: {state}")
        if state.credit != min(holder.room, CREDIT_MAX):
            self._fail(f"the credit of {key} is {holder.room}, and not as in {state}")
        if is_activity:
            self._fates["changes of activity"] += 1
        elif not (has_drained or flow.wants_state):
            self._fail(f"is reported again: {state}")
        else:
            flow.wants_state = False

    def _drained(self, holder: Holder, flow: Flow, state: ConsumerState, now_ms: int, *, ended: bool) -> None:
        self._fates["drains"] += 1
        flow.is_draining = False
        unused, model = holder.room, holder.model
        flow.limit = min(flow.limit, holder.next_id)
        if not unused or not state.is_active:
            return
        if state.available:
            self._fail(f"has drained with {unused} of its credit unused: {state}")
        if ended and not (model.trims or model.doubtful or model.settings.single_active_consumer):
            for message in ready_messages(model):
                if message.ready_ms <= now_ms and not message.expires_ms:
                    self._fail(f"has drained, and {message} is ready: {state}")

    def end_entry(self) -> None:
        for holder in self._holders().values():
            if holder.flow is not None:
                holder.flow.peak = holder.flow.limit

    def check(self, name: str, machine: QueueMachine) -> None:
        """Check that a node's machine has the same credit for each consumer."""
        for key, holder in self._holders().items():
            if holder.flow is not None and holder.live:
                known = machine.consumers[key]
                if known.credit != min(holder.room, CREDIT_MAX):
                    self._fail(f"{key} at {name} has credit for {known.credit}, not {holder.room} messages")

    def unreported(self) -> list[Consumer]:
        """Return the consumers with a drain that has not ended, or a state that was not reported."""
        return [
            key
            for key, holder in self._holders().items()
            if holder.flow is not None
            and holder.live
            and (holder.flow.is_draining or holder.flow.wants_state)
        ]
