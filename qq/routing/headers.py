"""The headers exchange: a binding's arguments say which headers a message must have.

A binding is a set of conditions, and a message offers a set of them: for each header that it is there, and that it
has its value. `all` wants every condition of the binding to be among the offered, `any` one of them.

Invariant: a match costs a look-up for each condition that the message offers, and some operations on sets of bindings
(masks.py), however many bindings have the same conditions: those that want all of theirs are counted, all at once.
What is in a header that no binding names costs nothing, and neither does what is larger than any binding's arguments.
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
"""A header with more values inside equals no argument of a binding: a quarter of them would be too large to be kept."""

_NO_NAMES: dict[str, int] = {}
"""Of exchanges without conditions, as nearly all are: it is never changed."""

Condition = tuple[str, Hashable]
"""A header and what stands for its value, or None: the header is there. (A void value has nothing to be equal to.)"""


class Headers(Router):
    """`x-match`: all (the default) or any, which ignore arguments that begin with `x-`; with `-with-x` these count."""

    __slots__ = ("_all", "_any", "_bindings", "_conditions", "_names", "_wanted", "_wants_all")

    def __init__(self, _arguments: Arguments) -> None:
        self._bindings: Numbered[Binding] = Numbered()
        self._conditions: dict[Binding, tuple[int, bool, list[Condition]]] = {}
        """For each binding its number, whether it wants all of its conditions, and the conditions."""
        self._any: Masks[Condition] = Masks()
        """For each condition, the bindings that match if it is met."""
        self._all: Masks[Condition] = Masks()
        """For each condition, the bindings that have it and want all of theirs to be met."""
        self._names = _NO_NAMES
        """The headers that conditions are about, with the number of these."""
        self._wants_all = 0
        """The set of all bindings that want all of their conditions to be met."""
        self._wanted: list[int] = []
        """How many conditions each of these has, as sets: those with the lowest bit of that number set, the next ..."""

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
        return self._bindings.of(matching)

    def steps(self, routing_keys: Sequence[str], content: Content | None, /) -> int:
        headers = len(content.headers) if content is not None else 0
        return super().steps(routing_keys, content) + 2 * headers * (1 + len(self._bindings) // AT_ONCE)

    def _with_all(self, offered: Iterable[Condition]) -> int:
        """The bindings that want all of their conditions and have them."""
        # For each binding, its bits in found[0], found[1] ... are a number: how many of its conditions are offered.
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
        """Note, or forget, how many conditions a binding has."""
        wanted = self._wanted
        while count >> len(wanted):
            wanted.append(0)
        for bit in range(count.bit_length()):
            if count >> bit & 1:
                wanted[bit] ^= 1 << number
        while wanted and not wanted[-1]:
            wanted.pop()
