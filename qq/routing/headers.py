"""The headers exchange: a binding's arguments say which headers a message must have.

A binding is a set of conditions. A message meets two conditions per header: that the header is present, and that it has
its value. With `all` a binding matches if the message meets all its conditions, with `any` if it meets at least a
single condition.

Invariant: a match costs a lookup for each condition that the message meets, and some operations on sets of bindings
(masks.py), however many bindings share a condition. Bindings with `all` are counted in parallel, a bit at a time.
Headers that no binding names cost no lookup, and so do values that are larger than any binding's arguments.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from qq.routing.content import Content, NeedsContent
from qq.routing.masks import AT_ONCE, Masks, Numbered
from qq.routing.routers import Arguments, Binding, InvalidBinding, Router
from qq.routing.values import comparable, erlang_term, type_name, values_inside

MATCH: Final = "x-match"
VALUES_MAX: Final = 1_000
"""A header with more nested values than this equals no binding argument, because a quarter of them would exceed the
size limit of arguments."""

_NO_NAMES: dict[str, int] = {}
"""Shared empty value of `_names` for exchanges without conditions, which are nearly all; must not be changed."""

Condition = tuple[str, Hashable]
"""A header name and the comparable form of its value, or `None` for "the header is present". A void argument of a
binding has the form `None`, too, so it tests presence only."""


class Headers(Router):
    """Router of the headers exchange; `x-match` is all (the default), any, all-with-x or any-with-x.

    With all and any, arguments that begin with `x-` are ignored; with the variants `-with-x` they are conditions, too.
    """

    __slots__ = ("_all", "_any", "_bindings", "_conditions", "_names", "_wanted", "_wants_all")

    def __init__(self, _arguments: Arguments) -> None:
        self._bindings: Numbered[Binding] = Numbered()
        self._conditions: dict[Binding, tuple[int, bool, list[Condition]]] = {}
        """Binding -> its number, whether it has `all`, and its conditions."""
        self._any: Masks[Condition] = Masks()
        """Condition -> bindings with `any` that have it."""
        self._all: Masks[Condition] = Masks()
        """Condition -> bindings with `all` that have it."""
        self._names = _NO_NAMES
        """Header name -> number of conditions about it."""
        self._wants_all = 0
        """Set of all bindings with `all`."""
        self._wanted: list[int] = []
        """Number of conditions of each `all` binding, sliced by bits: item i is the set of bindings whose number has
        bit i set."""

    @property
    def wants_content(self) -> bool:
        return True

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
        self._enter(binding, self._bindings.add(binding), not how.startswith("any"), conditions)

    def unbind(self, binding: Binding) -> None:
        number = self._leave(binding)[0]
        moved = self._bindings.remove(number)
        if moved is not None:
            self._enter(moved, number, *self._leave(moved)[1:])

    def _enter(self, binding: Binding, number: int, wants_all: bool, conditions: list[Condition]) -> None:
        self._conditions[binding] = number, wants_all, conditions
        index = self._all if wants_all else self._any
        if conditions and not self._names:
            self._names = {}
        for condition in conditions:
            index.add(condition, number)
            self._names[condition[0]] = self._names.get(condition[0], 0) + 1
        if wants_all:
            self._wants_all |= 1 << number
            self._change_wanted(number, len(conditions))

    def _leave(self, binding: Binding) -> tuple[int, bool, list[Condition]]:
        left = number, wants_all, conditions = self._conditions.pop(binding)
        index = self._all if wants_all else self._any
        for condition in conditions:
            index.remove(condition, number)
            self._names[condition[0]] -= 1
            if not self._names[condition[0]]:
                del self._names[condition[0]]
        if wants_all:
            self._wants_all ^= 1 << number
            self._change_wanted(number, len(conditions))
        return left

    def match(self, _routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        if content is None:
            raise NeedsContent
        offered: set[Condition] = set()
        for key, value in content.headers.items():
            if key in self._names:
                offered.add((key, None))
                if values_inside((value,)) <= VALUES_MAX:
                    offered.add((key, comparable(value)))
        matching = 0
        if self._any:
            for condition in offered:
                matching |= self._any.get(condition)
        if self._wants_all:
            matching |= self._with_all(offered)
        return self._bindings.items(matching)

    def steps(self, routing_keys: Sequence[str], content: Content | None, /) -> int:
        headers = len(content.headers) if content is not None else 0
        return super().steps(routing_keys, content) + 2 * headers * (1 + len(self._bindings) // AT_ONCE)

    def _with_all(self, offered: Iterable[Condition]) -> int:
        """Return the set of `all` bindings whose conditions are all met."""
        # `found` counts the met conditions of each binding in binary, sliced by bits: the binding's bit in found[0] is
        # the lowest bit of its count, the bit in found[1] the next.
        found = [0] * len(self._wanted)
        for condition in offered:
            carry = self._all.get(condition)
            for bit, ones in enumerate(found):
                if not carry:
                    break
                found[bit], carry = ones ^ carry, ones & carry
        matching = self._wants_all
        for ones, wanted in zip(found, self._wanted, strict=True):
            matching &= ~(ones ^ wanted)
        return matching

    def _change_wanted(self, number: int, count: int) -> None:
        """Add or remove the number of conditions of a binding; calling it twice undoes it."""
        wanted = self._wanted
        while count >> len(wanted):
            wanted.append(0)
        for bit in range(count.bit_length()):
            if count >> bit & 1:
                wanted[bit] ^= 1 << number
        while wanted and not wanted[-1]:
            wanted.pop()
