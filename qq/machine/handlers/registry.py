"""The declarations of command handlers: each method that carries out a command, with the command's cost.

A handler's module declares its methods with `handles` or `answers`, and the machine binds them. A command without a
handler fails at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qq.machine.protocol.commands import OPCODES, Command
from qq.machine.protocol.effects import Result

if TYPE_CHECKING:
    from qq.machine.handlers.cost_estimate import Cost, CostFunction

C = TypeVar("C", bound=Command)
R = TypeVar("R", bound=Result)
Part = TypeVar("Part")


class Handler(NamedTuple):
    """The declaration of a handler."""

    owner: str
    """The name of its class."""
    method: str
    cost: Cost
    is_answered: bool


HANDLERS: dict[type[Command], Handler] = {}
"""The handler of each command."""


def handles(
    *commands: type[C], cost: int | CostFunction[C]
) -> Callable[[Callable[[Part, C], None]], Callable[[Part, C], None]]:
    """Declare a method that carries out these commands without an answer.

    `cost` is the cost of a command in steps, or a function that estimates it.
    """
    return _declared(commands, cost, is_answered=False)


def answers(
    *commands: type[C], cost: int | CostFunction[C]
) -> Callable[[Callable[[Part, C], R]], Callable[[Part, C], R]]:
    """Declare a method that carries out these commands and returns the answer, as with `handles`.

    The only exception that it raises is Refused.
    """
    return _declared(commands, cost, is_answered=True)


def _declared(commands: Iterable[type[Command]], cost: Cost, *, is_answered: bool) -> Callable[[Any], Any]:
    def declare(function: Any) -> Any:
        owner, method = function.__qualname__.split(".")
        for command in commands:
            if command in HANDLERS:
                raise TypeError(f"{command.__name__} has two handlers")
            HANDLERS[command] = Handler(owner, method, cost, is_answered)
        return function

    return declare


def check_handlers(*besides: type[Command]) -> None:
    """Raise TypeError unless each command has a handler, except for these commands."""
    missing = OPCODES.keys() - HANDLERS.keys() - set(besides)
    if missing:
        raise TypeError(f"no handler of {', '.join(sorted(command.__name__ for command in missing))}")


def bound_handlers(
    parts: Iterable[object], *, is_answered: bool
) -> dict[type[Command], Callable[[Any], Any]]:
    """Return the handlers with or without an answer, bound to the parts of a machine."""
    owners = {type(part).__name__: part for part in parts}
    return {
        command: getattr(owners[handler.owner], handler.method)
        for command, handler in HANDLERS.items()
        if handler.is_answered == is_answered
    }
