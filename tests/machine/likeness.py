"""Compare a machine loaded from a dump with the dumped machine, in all derived state.

Equal dumps are not enough: counts and indexes are derived from the rows of a dump. A running machine maintains them,
and a loaded machine rebuilds them. If they differ, the machines diverge later.
"""

from __future__ import annotations

from array import array
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.catalog.catalog import Catalog
from qq.machine.catalog.permissions import AccessControl
from qq.machine.catalog.publish_rates import Published
from qq.machine.catalog.sinks import Sink
from qq.machine.catalog.vhost import VirtualHost
from qq.machine.handlers.core import Core, SessionState
from qq.machine.handlers.cost_estimate import Costs
from qq.machine.handlers.fragments import Fragments
from qq.machine.handlers.publishing import PublishHandlers
from qq.machine.policy.policies import Policies
from qq.machine.protocol.death_history import Histories
from qq.machine.queue.backlog import _Lane
from qq.machine.queue.consumers import Rotation
from qq.machine.queue.leaving import Leaving
from qq.machine.queue.queue import Consumer, LeaseGroup, Queue
from qq.machine.queue.runs import Runs
from qq.machine.queue.shelf import Shelf
from qq.machine.queue.stuck_lines import IndexedSet, StuckLines
from qq.machine.queue.timers import NEVER_MS, Timers
from qq.ranges import RangeMap
from qq.routing.exchanges import RoutingTable
from qq.routing.hashing import ConsistentHash
from qq.routing.headers import Headers
from qq.routing.masks import Numbered
from qq.routing.routers import Direct
from qq.routing.topics import TopicPatterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from qq.machine.machine import QueueMachine
    from qq.machine.queue.shelf import _Moments
    from qq.routing.masks import Masks

_ENTRY = "Of the batch that is being applied; each one sets it."
_CACHE = "A cache: what is not in it is looked up, and found to be the same."
_ESTIMATE = "What commands may cost is estimated by whoever submits them, before they are in the log."
_REMAINS = "What nobody refers to any more, on its way out of memory."
_SHOWN = "What happened since the process began, to be shown."

MAY_DIFFER: dict[type, dict[str, str]] = {
    Core: dict.fromkeys(
        (
            "origin",
            "index",
            "time_ms",
            "next_slot",
            "sizes",
            "size",
            "payload",
            "position",
            "_offsets",
            "_offsets_of",
        ),
        _ENTRY,
    )
    | {"deferred_free": _REMAINS, "routed": _SHOWN, "routed10": _SHOWN, "dropped": _SHOWN},
    PublishHandlers: dict.fromkeys(("_slot", "_count", "_count10", "_size"), _ENTRY),
    Catalog: {"deferred_free": _REMAINS},
    VirtualHost: dict.fromkeys(("_routes", "_steps_of", "_routes_width"), _CACHE)
    | {"_deferred_free": _REMAINS, "exchange_counts": _SHOWN, "routing_revision": _SHOWN}
    | {"returned": _SHOWN, "dropped": _SHOWN},
    SessionState: {"dropped": _SHOWN},
    Published: {"_by_node": _SHOWN},
    RoutingTable: {
        "_content_dependent": _CACHE,
        "steps": "Of the last route; whoever asks has just looked for one.",
    },
    AccessControl: {
        "revision": "Tells those who remember answers to ask again; it goes up when a dump is loaded."
    },
    Costs: dict.fromkeys(("route_steps", "_counted"), _ESTIMATE),
    Queue: dict.fromkeys(("tally", "revision", "changed_ms", "waiting_since_ms"), _SHOWN)
    | {"_frozen": "The last frozen form, as long as one that is made anew would be the same."},
    Fragments: {
        "_joined": "A message to which nothing refers any more is in it for a while, and in no dump.",
        "_frozen": "The last frozen form, which tells what may be forgotten.",
    },
    Histories: {
        "_owned": "Which blocks no frozen state refers to: the others are copied before they change."
    },
}
"""Attributes that are not compared, by the class that has them."""

_LOOKED_UP = "Asked for one key at a time."
_SORTED = "Sorted by whoever goes through it."

UNORDERED: dict[type, dict[str, str]] = {
    Core: {
        "queues_with_dead": "In which order a leader looks at queues is its own affair.",
        "reviewing": _SORTED,
    },
    StuckLines: {"_lines": _LOOKED_UP},
    Rotation: {"_rings": "Their order is that of the levels."},
    VirtualHost: {
        "requesters": _LOOKED_UP,
        "_owned": _SORTED,
        "_bindings_of": _LOOKED_UP,
        "_bindings_from": _LOOKED_UP,
    },
    Catalog: {"_connections_of": _LOOKED_UP, "_channels_of": _LOOKED_UP},
    Policies: {"_policies": _SORTED},
    RoutingTable: {"_routers": _LOOKED_UP, "_alternates": _LOOKED_UP},
    Direct: {"bindings": _LOOKED_UP},
    ConsistentHash: {"_weights": "The least of all is taken."},
}
"""Attributes that are dicts and are compared without their order; that of dicts within them counts."""


def _shelf(shelf: Shelf) -> object:
    keys, rows = array("Q"), array("Q")
    for block in shelf._blocks:
        keys += block.keys
        rows += block.rows
    return keys, rows, _times(shelf._due), _times(shelf._expiring)


def _times(moments: _Moments) -> list[tuple[int, int]]:
    return [pair for block in moments._blocks for pair in zip(block.times, block.keys, strict=True)]


def _sets(masks: Masks[Any], numbered: Numbered[Any]) -> set[object]:
    """Each key, with the objects whose numbers are in its set."""
    return {(key, _things(masks.get(key), numbered)) for key in (*masks._few, *masks._many)}


def _things(mask: int, numbered: Numbered[Any]) -> frozenset[Any]:
    return frozenset(numbered.items(mask))


def _headers(router: Headers) -> object:
    bindings = router._bindings
    conditions = {
        (binding, bindings._things[number] == binding, wants_all, tuple(wanted))
        for binding, (number, wants_all, wanted) in router._conditions.items()
    }
    indexes = _sets(router._any, bindings), _sets(router._all, bindings)
    wanted = [_things(mask, bindings) for mask in (router._wants_all, *router._wanted)]
    names = set(router._names.items())  # looked up only
    return conditions, indexes, names, wanted, _things(bindings.everything, bindings), len(bindings)


def _patterns(patterns: TopicPatterns[Any]) -> object:
    # A binding key stands for its items, which are no part of a set.
    keys: Numbered[str] = Numbered()
    for key, _ in patterns._patterns._things:
        keys.add(key)
    things = patterns._patterns._things
    numbers = {
        (key, things[number][0] == key, things[number][1] is items, tuple(items))
        for key, (number, items) in patterns._numbers.items()
    }
    places = [
        (_sets(place.words, keys), *(_things(mask, keys) for mask in _masks(place)))
        for place in patterns._places
    ]
    exact = {(key, tuple(items)) for key, items in patterns._exact.items()}
    return exact, numbers, places, _things(patterns._patterns.everything, keys), len(keys)


def _masks(place: Any) -> Iterable[int]:
    return place.any_word, place.any_words, place.ends


class Form(NamedTuple):
    """Values to compare in place of some attributes."""

    attributes: tuple[str, ...]
    read: Callable[[Any], object]
    why: str


FORMS: dict[type, Form] = {
    RangeMap: Form(
        ("_pieces", "_head", "_shared"),
        lambda ids: [(piece.first, piece.value.part(piece.offset, piece.count)) for piece in ids.pieces()],
        "A dump has what is left of a piece.",
    ),
    IndexedSet: Form(
        ("_members", "_positions"),
        lambda members: {_name(member) for member in members},
        "In which order a leader looks at its members is its own affair.",
    ),
    Leaving: Form(
        ("_heads", "_held"),
        lambda leaving: [
            [piece.value.part(piece.offset, piece.count) for piece in leaving._held[number].pieces()]
            for _, number in sorted(leaving._heads)
        ],
        "A dump has what is left, of those who still held something; no two begin at one place.",
    ),
    Runs: Form(
        ("_head", "_at", "_taken", "_taken_size", "_tail"),
        lambda runs: runs.freeze()._plain(),
        "A dump has what is left of the head.",
    ),
    Shelf: Form(
        ("_blocks", "_age", "_due", "_expiring"),
        _shelf,
        "How ranges and moments are spread over blocks is nobody's business.",
    ),
    _Lane: Form(
        ("last_expires_ms",),
        lambda lane: lane.last_expires_ms if lane.runs else 0,
        "Nobody asks for the expiry of the last run where there is none.",
    ),
    RoutingTable: Form(
        ("_onward",),
        lambda table: {(name, *lead) for name, leads in table._onward.items() for lead in leads.items()},
        "In which order exchanges are reached matters to nobody who asks which they are.",
    ),
    Headers: Form(
        ("_bindings", "_conditions", "_any", "_all", "_names", "_wants_all", "_wanted"),
        _headers,
        "Bindings that come and go get other numbers; only whose they are matters.",
    ),
    TopicPatterns: Form(
        ("_exact", "_numbers", "_patterns", "_places"),
        _patterns,
        "So do binding keys.",
    ),
}

_LEAVES = frozenset({int, str, bytes, bool, type(None), array})
_IDENTICAL = (type, FunctionType, BuiltinFunctionType)


def differences(lived: QueueMachine, loaded: QueueMachine) -> list[str]:
    """Return the differences of a loaded machine from the dumped machine, as paths from the machine."""
    walk = _Walk()
    walk.compare("machine", lived, loaded)
    walk.finish()
    # How many queues are looked at in an entry depends on it.
    walk.compare("queue timers", _queue_moments(lived), _queue_moments(loaded))
    return walk.found


class _Walk:
    """Two graphs of objects, and how far they were compared."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._counterparts: dict[int, int] = {}
        """Objects of the running machine, and their counterparts in the loaded machine; ..."""
        self._originals: dict[int, int] = {}
        """... and the other way round."""
        self._pending: deque[tuple[str, object, object]] = deque()

    def finish(self) -> None:
        # Objects refer to each other in chains of any length, so this is a loop and not a recursion.
        while self._pending:
            path, one, other = self._pending.popleft()
            if isinstance(one, Timers) and isinstance(other, Timers):
                self._compare_timers(path, one, other)
            else:
                self._compare_attributes(path, one, other)

    def compare(self, path: str, one: object, other: object, *, ordered: bool = True) -> None:
        """Compare two values; objects that these refer to are left for later."""
        if type(one) is not type(other):
            self._differ(path, one, other)
        elif type(one) in _LEAVES:
            if one != other:
                self._differ(path, one, other)
        elif isinstance(one, dict):
            self._compare_dicts(path, one, other, ordered=ordered)
        elif isinstance(one, tuple | list | deque):
            self._compare_sequences(path, one, other)
        elif isinstance(one, set | frozenset | int | str):
            if one != other:
                self._differ(path, one, other)
        elif isinstance(one, float):
            if one.hex() != other.hex():
                self._differ(path, one, other)
        elif isinstance(one, MethodType):
            self.compare(path, one.__func__, other.__func__)
            self.compare(path, one.__self__, other.__self__)
        elif isinstance(one, _IDENTICAL):
            if one is not other:
                self._differ(path, one, other)
        elif type(one).__module__.startswith("qq."):
            self._pair(path, one, other)
        else:
            raise TypeError(f"{path}: when are two of {type(one)} alike?")

    def _differ(self, path: str, one: object, other: object) -> None:
        self.found.append(f"{path}: {one!r} is {other!r} in the one that was loaded")

    def _compare_dicts(
        self, path: str, one: Mapping[Any, object], other: Mapping[Any, object], *, ordered: bool
    ) -> None:
        names, other_names = {_name(key): key for key in one}, {_name(key): key for key in other}
        if list(names) != list(other_names) if ordered else names.keys() != other_names.keys():
            self._differ(path, list(names), list(other_names))
            return
        for name, key in names.items():
            place = f"{path}[{name!r}]"
            self.compare(place, key, other_names[name])
            self.compare(place, one[key], other[other_names[name]])

    def _compare_sequences(self, path: str, one: Sequence[object], other: Sequence[object]) -> None:
        if len(one) != len(other):
            self._differ(path, one, other)
            return
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            if mine is not theirs:
                self.compare(f"{path}[{number}]", mine, theirs)

    def _pair(self, path: str, one: object, other: object) -> None:
        """Make two objects counterparts wherever they are referred to."""
        if isinstance(one, VirtualHost) and one.is_deleted and other.is_deleted:
            # A deleted virtual host accepts no commands; each loaded session has its own copy.
            self.compare(path, one.name, other.name)
            return
        known = self._counterparts.get(id(one)), self._originals.get(id(other))
        if known == (None, None):
            self._counterparts[id(one)], self._originals[id(other)] = id(other), id(one)
            self._pending.append((path, one, other))
        elif known != (id(other), id(one)):
            self._differ(path, one, "another object that is found elsewhere")

    def _compare_attributes(self, path: str, one: object, other: object) -> None:
        skipped: set[str] = set()
        unordered: set[str] = set()
        for kind in type(one).__mro__:
            skipped.update(MAY_DIFFER.get(kind, ()))
            unordered.update(UNORDERED.get(kind, ()))
            form = FORMS.get(kind)
            if form is not None:
                skipped.update(form.attributes)
                self.compare(path, form.read(one), form.read(other))
        mine, theirs = _attributes(one), _attributes(other)
        if mine != theirs:
            self._differ(path, mine, theirs)
        if not skipped | unordered <= mine:
            self.found.append(f"{path}: {skipped | unordered} are listed, and not all of them are in {mine}")
        for name in mine & theirs - skipped:
            ordered = name not in unordered
            self.compare(f"{path}.{name}", getattr(one, name), getattr(other, name), ordered=ordered)

    def _compare_timers(self, path: str, one: Timers[Any], other: Timers[Any]) -> None:
        """A loaded machine sets its timers anew.

        The running machine may have additional timers without effect, but none that is late.
        """
        lived, loaded = _moments(one), _moments(other)
        for name, due_ms in loaded.items():
            if lived.get(name, NEVER_MS) > due_ms:
                self._differ(f"{path}[{name!r}]", lived.get(name), due_ms)
        for timers, moments in ((one, lived), (other, loaded)):
            if timers.next_ms != min(moments.values(), default=NEVER_MS):
                self.found.append(f"{path}: {timers.next_ms} is not the first of {moments}")


def _attributes(thing: object) -> set[str]:
    """Names of all attributes that it has."""
    names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name for name in names if hasattr(thing, name)} | set(getattr(thing, "__dict__", ()))


def _name(key: object) -> object:
    """Return a name for a key of a dict that is equal in both machines."""
    match key:
        case Queue():
            return ("queue", key.number)
        case Consumer():
            return ("consumer", key.node, key.id)
        case LeaseGroup():
            return ("group", key.queue.number, key.name)
        case Sink():
            return ("sink", key.vhost, key.name)
        case _:
            return key


def _moments(timers: Timers[Any]) -> dict[object, int]:
    return {_name(key): due_ms for due_ms, _, key in timers._entries.values()}


def _queue_moments(machine: QueueMachine) -> list[dict[object, int]]:
    """Those of queues that do not have their turn anyhow, by the cluster's time and by the available time."""
    core = machine._core
    passed = {_name(queue) for queue in (*core.dirty, *core.abandoned)}
    return [
        {name: due_ms for name, due_ms in sorted(_moments(timers).items()) if name not in passed}
        for timers in (core.queue_timers, core.idle_timers)
    ]
