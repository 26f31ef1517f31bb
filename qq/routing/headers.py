"""The headers exchange: a binding's arguments say which headers a message must have.

A binding is a set of conditions, and a message offers a set of them: for each header that it is there, and that it
has its value. `all` wants every condition of the binding to be among the offered, `any` one of them.

Law: a match costs a look-up for each condition that the message offers, and a comparison for each binding found
there: an `all` binding is entered under only one of its conditions, one that few others are entered under.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from qq.routing.content import Content, NeedsContent
from qq.routing.routers import Arguments, Binding, InvalidBinding, Router
from qq.routing.values import comparable, erlang_term, type_name

MATCH: Final = "x-match"

Condition = tuple[str, Hashable]
"""A header and what stands for its value, or None: the header is there. (A void value has nothing to be equal to.)"""

_ALWAYS: Condition = (MATCH, None)
"""Offered by every message; `all` of no conditions is entered under it. (No header x-match is ever a condition.)"""

_NO_BINDINGS: dict[Binding, frozenset[Condition]] = {}


class Headers(Router):
    """`x-match`: all (the default) or any, which ignore arguments that begin with `x-`; with `-with-x` these count."""

    __slots__ = ("_entered", "_index")

    def __init__(self, _arguments: Arguments) -> None:
        self._index: dict[Condition, dict[Binding, frozenset[Condition]]] = {}
        """Under a condition: bindings that match if it is offered, and these are."""
        self._entered: dict[Binding, list[Condition]] = {}

    def check(self, _routing_key: str, arguments: Arguments, /) -> None:
        how = arguments.get(MATCH, "all")
        if not isinstance(how, str | bytes):
            raise InvalidBinding(
                f"Invalid x-match field type {type_name(how)} (value {erlang_term(how)}); expected longstr"
            )
        if how not in ("all", "any", "all-with-x", "any-with-x"):
            raise InvalidBinding(
                f"Invalid x-match field value {erlang_term(how)}; "
                "expected all, any, all-with-x, or any-with-x"
            )

    def bind(self, binding: Binding, arguments: Arguments, /) -> None:
        how = str(arguments.get(MATCH, "all"))
        conditions = [
            (key, comparable(value))
            for key, value in arguments.items()
            if key != MATCH and (how.endswith("-with-x") or not key.startswith("x-"))
        ]
        if how.startswith("any"):
            entered, others = conditions, frozenset[Condition]()
        else:
            entered, others = [min(conditions, key=self._crowd, default=_ALWAYS)], frozenset(conditions)
        for condition in entered:
            self._index.setdefault(condition, {})[binding] = others
        self._entered[binding] = entered

    def unbind(self, binding: Binding) -> None:
        for condition in self._entered.pop(binding):
            bindings = self._index[condition]
            del bindings[binding]
            if not bindings:
                del self._index[condition]

    def match(self, _routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        if content is None:
            raise NeedsContent
        offered = {_ALWAYS}
        for key, value in content.headers.items():
            offered.add((key, None))
            offered.add((key, comparable(value)))
        return [
            binding
            for condition in offered
            for binding, others in self._index.get(condition, _NO_BINDINGS).items()
            if others <= offered
        ]

    def _crowd(self, condition: Condition) -> int:
        return len(self._index.get(condition, _NO_BINDINGS))
