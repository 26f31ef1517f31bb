"""Exchange types that pick a single destination per message: by a hash, or at random.

Invariant: only integers, and only data that is equal in all processes and on all platforms, so every node picks the
same destination.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b

from qq.routing.content import Content, NeedsContent
from qq.routing.routers import Arguments, Binding, InvalidBinding, InvalidExchange, Router
from qq.routing.values import comparable, erlang_term

HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
WEIGHT_MAX = 10_000
"""Largest weight of a binding (rabbit_exchange_type_consistent_hash.erl, MAX_BINDING_WEIGHT)."""
HASH_STEPS_MAX = 4000
"""Largest number of steps per message in a consistent-hash exchange: a step per binding, `_WEIGHT_STEPS` per weight."""
_WEIGHT_STEPS = 15
"""Steps per distinct weight: comparing two weights costs that many times more than comparing two bindings."""

_BITS = 64
_MASK = 2**_BITS - 1
_LOG_BITS = 24
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class _OneOf(Router):
    """Base of routers that pick a single binding: from the sorted bindings, at a number modulo their count."""

    __slots__ = ("_bindings",)

    def __init__(self, _arguments: Arguments) -> None:
        self._bindings: list[Binding] = []

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        insort(self._bindings, binding)

    def unbind(self, binding: Binding) -> None:
        del self._bindings[bisect_left(self._bindings, binding)]

    def match(self, routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        number = self._number(routing_keys, content)
        return (self._bindings[number % len(self._bindings)],) if self._bindings else ()

    @abstractmethod
    def _number(self, routing_keys: Sequence[str], content: Content | None, /) -> int: ...


class ModulusHash(_OneOf):
    """x-modulus-hash: the same routing keys go to the same destination, until a binding is added or removed."""

    __slots__ = ()

    def _number(self, routing_keys: Sequence[str], _content: Content | None, /) -> int:
        return _hash(*routing_keys)


class Random(_OneOf):
    """x-random: the destination is a hash of the message's number."""

    __slots__ = ()

    @property
    def wants_content(self) -> bool:
        return True

    def _number(self, _routing_keys: Sequence[str], content: Content | None, /) -> int:
        if content is None:
            raise NeedsContent
        return _hash(content.number)


class ConsistentHash(Router):
    """x-consistent-hash: a key keeps its destination; a new or removed binding moves only its own share of the keys.

    The key is the first routing key, or the header or property that the exchange's argument hash-header or
    hash-property names. All messages without this header or property go to the same destination. The binding key is a
    weight: the destination's share of the keys. A destination with several bindings has the greatest of their weights.
    (In RabbitMQ it has the first.)

    This is weighted rendezvous hashing. A key and a destination make a number u between 0 and 1. The destination with
    the least -log(u) / weight gets the key. Among destinations of the same weight that is simply the greatest number.
    """

    __slots__ = ("_header", "_property", "_steps", "_weights")

    def __init__(self, arguments: Arguments) -> None:
        self._header = _name(arguments, "hash-header")
        self._property = _name(arguments, "hash-property")
        if self._header is not None and self._property is not None:
            raise InvalidExchange("hash-header and hash-property are mutually exclusive")
        if self._property is not None and self._property not in HASH_PROPERTIES:
            raise InvalidExchange(f"Unsupported property: {self._property}")
        self._weights: dict[int, dict[Binding, int]] = {}
        """Bindings of each weight: weight -> binding -> hash of its destination, which is odd."""
        self._steps = 0
        """Steps that a match costs."""

    @property
    def wants_content(self) -> bool:
        return self._header is not None or self._property is not None

    def check(self, routing_key: str, _arguments: Arguments, /) -> None:
        if not _INTEGER.fullmatch(routing_key):
            raise InvalidBinding(f"The binding key must be an integer: {erlang_term(routing_key)}")
        weight = int(routing_key)
        if weight < 1:
            raise InvalidBinding("The binding key must be greater than 0")
        if weight > WEIGHT_MAX:
            raise InvalidBinding(f"The binding key must not exceed {WEIGHT_MAX}")
        steps = self._steps + 1 + (0 if weight in self._weights else _WEIGHT_STEPS)
        if steps > HASH_STEPS_MAX:
            raise InvalidBinding(
                f"a message would cost {steps} steps, one for each binding and {_WEIGHT_STEPS} for each weight, "
                f"above the limit ({HASH_STEPS_MAX})"
            )

    def bind(self, binding: Binding, _arguments: Arguments, /) -> None:
        kind, name = binding.destination
        weight = int(binding.routing_key)
        if weight not in self._weights:
            self._weights[weight] = {}
            self._steps += _WEIGHT_STEPS
        self._weights[weight][binding] = _hash(int(kind), name) | 1
        self._steps += 1

    def unbind(self, binding: Binding) -> None:
        weight = int(binding.routing_key)
        del self._weights[weight][binding]
        self._steps -= 1
        if not self._weights[weight]:
            del self._weights[weight]
            self._steps -= _WEIGHT_STEPS

    def match(self, routing_keys: Sequence[str], content: Content | None, /) -> Iterable[Binding]:
        # The numbers are odd, so their product modulo 2**64 is never 0, which has no logarithm.
        key = _hash(self._key(routing_keys, content)) | 1
        greatest = [
            (weight, *max((key * destination & _MASK, binding) for binding, destination in group.items()))
            for weight, group in self._weights.items()
        ]
        if len(greatest) > 1:
            greatest = [min(greatest, key=_weighed)]
        return [binding for _, _, binding in greatest]

    def steps(self, _routing_keys: Sequence[str], _content: Content | None, /) -> int:
        return self._steps

    def _key(self, routing_keys: Sequence[str], content: Content | None) -> Hashable:
        if self._header is None and self._property is None:
            return routing_keys[0]
        if content is None:
            raise NeedsContent
        if self._property is not None:
            return content.properties.get(self._property)
        return comparable(content.headers.get(str(self._header)))


def _name(arguments: Arguments, argument: str) -> str | None:
    name = arguments.get(argument)
    if argument in arguments and not isinstance(name, str):
        raise InvalidExchange(f"Invalid argument, '{argument}' must be a string")
    return name if isinstance(name, str) else None


def _weighed(greatest: tuple[int, int, Binding]) -> tuple[int, Binding]:
    weight, number, binding = greatest
    return (((_BITS << _LOG_BITS) - _log2(number)) << _LOG_BITS) // weight, binding


def _log2(number: int) -> int:
    """Return the logarithm of a number of at most 64 bits, in units of 2**-24, exact to a unit.

    It is computed digit by digit, because the logarithms of two platforms may differ in the last bit. The 16th power of
    a number m between 1 and 2 is between 1 and 2**16. So the integer part of its logarithm is the next 4 digits of m's
    logarithm.
    """
    log = number.bit_length() - 1
    mantissa = number << (_BITS - 1 - log) >> (_BITS - 32)
    for _ in range(_LOG_BITS // 4):
        power = mantissa**16
        digits = power.bit_length() - 1 - 31 * 16
        mantissa = power >> (31 * 15 + digits)
        log = log << 4 | digits
    return log


def _hash(*parts: Hashable) -> int:
    """Hash results of `comparable`, and numbers, to 64 bits."""
    return int.from_bytes(blake2b(ascii(parts).encode(), digest_size=8).digest(), "little")
