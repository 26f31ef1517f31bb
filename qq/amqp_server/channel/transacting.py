"""Class tx: transactions that commit all publishes and settlements of a channel atomically.

Invariant: a channel in tx mode always has a transaction. Tx mode and confirm mode exclude each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pamqp.commands as amqp

from qq.amqp_server.channel.transaction import Transaction
from qq.errors import ChannelError, ReplyCode
from qq.machine.handlers.cost_estimate import TRANSACTION_STEPS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pamqp.base import Frame

    from qq.amqp_server.channel.core import ChannelCore
    from qq.machine.protocol.commands import Settlement
    from qq.sessions.pending_requests import OpenEnqueue

TX_SELECT, TX_COMMIT, TX_ROLLBACK = (90, 10), (90, 20), (90, 30)


def select(core: ChannelCore, _frame: amqp.Tx.Select) -> None:
    if core.confirming:
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", *TX_SELECT)
    if core.transaction is None:
        core.transaction = Transaction(core.broker.limits.transaction_bytes)
    core.send(amqp.Tx.SelectOk())


def commit(core: ChannelCore, _frame: amqp.Tx.Commit) -> None:
    carry_out(core, _transaction(core, TX_COMMIT).take(), amqp.Tx.CommitOk())


def carry_out(core: ChannelCore, content: Sequence[OpenEnqueue | Settlement], ok: Frame | None) -> None:
    """Submit `content` to be applied atomically, and then answer with `ok`, unless it is None."""

    def answered(_result: Any) -> None:
        if ok is not None:
            core.send(ok)

    def refuse(steps: int) -> None:
        text = (
            f"the transaction would take {steps} steps of every node or more "
            f"(limit transaction_steps {TRANSACTION_STEPS_MAX})"
        )
        core.fail(ChannelError(ReplyCode.PRECONDITION_FAILED, text, *TX_COMMIT))

    core.methods.expect(answered)
    core.broker.submissions.commit(core.session, content, core.connection.lane, refuse)


def roll_back(core: ChannelCore, _frame: amqp.Tx.Rollback) -> None:
    pieces = _transaction(core, TX_ROLLBACK).roll_back()
    core.outgoing.hold_again(pieces)
    core.send(amqp.Tx.RollbackOk())


def _transaction(core: ChannelCore, method: tuple[int, int]) -> Transaction:
    if core.transaction is None:
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional", *method)
    return core.transaction


HANDLERS: dict[str, Callable[[ChannelCore, Any], None]] = {
    "Tx.Select": select,
    "Tx.Commit": commit,
    "Tx.Rollback": roll_back,
}
