"""Import of definitions from this broker or RabbitMQ.

Two invariants. The whole document is parsed and checked against limits before any change, so an invalid or too large
document changes no state. And a repeated import changes no state, because existing objects stay as they are, as in
RabbitMQ.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.http.base.error_responses import Refusal, bad_request
from qq.http.documents import parsing
from qq.http.documents.large_bodies import LargeList
from qq.http.documents.rendering import DEDUPLICATION
from qq.http.endpoints.parameters import CLUSTER_ID, has_meaning, read_global_parameter, read_parameter
from qq.http.endpoints.shovels import NotCarriedOut
from qq.http.endpoints.vhosts import creation
from qq.machine.catalog import limits
from qq.machine.catalog.permissions import user_of
from qq.machine.catalog.reply_names import REPLY_TO
from qq.machine.catalog.vhost import PREDECLARED, check_quorum_properties
from qq.machine.handlers.declaring import stripped
from qq.machine.protocol.codec import InvalidCommand
from qq.machine.protocol.commands import (
    ChangeVhostLimits,
    LimitPublishers,
    ProtectVhost,
    PutHashedUser,
    PutUser,
    SetUserLimits,
    SetVhostLimits,
)
from qq.machine.protocol.queue_types import CLASSIC, MODULES, QUORUM
from qq.machine.protocol.refusals import Refused
from qq.management.errors import RequestRefused, Unavailable
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qq.http.documents.parsing import Body
    from qq.machine.protocol.commands import Change, Declaration
    from qq.management.management import Management
    from qq.tables import Table

log = logging.getLogger(__name__)

RESERVED = "amq."
"""Prefix of the broker's own names: such objects exist already, or cannot be declared."""
OF_VHOSTS = ("exchanges", "policies", "queues", "bindings", "parameters")
"""The kinds of objects in a definitions document that belong to a virtual host."""
OBJECTS_PER_BATCH = 100
"""Changes in a batch: they take some milliseconds of every node's time."""
DECLARED_TOGETHER = 5000
"""Objects declared by a single session of each virtual host, which bounds the memory."""
KEY_BYTES = 16
"""Bytes of the digest that stands for the key of an object."""

LEFT_OUT_LOGGED_MAX = 20
"""Objects named in the log at most that an import has left out."""


class LeftOut(NamedTuple):
    """An object of a document that is not imported."""

    object: str
    reason: str


class _Object(NamedTuple):
    """An object of a definitions document to be imported."""

    what: str
    """The object's name in error texts."""
    key: tuple[str, ...]
    """Identity of the object among objects of its kind. The last of several with the same key is imported."""
    changes: Sequence[Change] = ()
    vhost: str = ""
    declaration: Declaration | None = None
    """The declaration in the virtual host; None if the object is made by changes instead."""

    @property
    def commands(self) -> Sequence[Change | Declaration]:
        return self.changes if self.declaration is None else (self.declaration,)


@dataclass(frozen=True, slots=True)
class _Stage:
    """The objects of a kind to be imported.

    Each iteration reads them anew, because they take far more memory than their text.
    """

    category: str
    rows: LargeList
    places: Sequence[int]
    read: Callable[[Body], _Object | None]

    def __iter__(self) -> Iterator[_Object]:
        for place in self.places:
            found = self.read(self.rows[place])
            assert found is not None  # as at its first reading
            yield found


class Import:
    """The import of a document, of a cluster or of a single virtual host, by a user."""

    def __init__(
        self, management: Management, user: str, vhost: str | None, *, is_forced: bool = False
    ) -> None:
        """`is_forced` allows an import that leaves no administrator."""
        self._management = management
        self._user = user
        self._vhost = vhost
        self._is_forced = is_forced
        self._default_types = {each.name: each.default_queue_type for each in management.catalog.vhosts()}
        """Default queue type of each virtual host that exists or is in the document."""
        self._users = set(management.catalog.users())
        self._entered = {row.vhost for row in management.catalog.permissions() if row.user == user}
        """Virtual hosts that the user has permissions for, or will have after the import."""
        self._new_limits: dict[str, Table] = {}
        """Limits of virtual hosts in the document."""
        self._left_out: list[LeftOut] = []
        self._counts: dict[str, int] = {}
        self._slices = Slices()

    async def run(self, body: Body) -> Sequence[LeftOut]:
        """Import the document, and return the objects that are left out.

        Raises Refusal or Unavailable, naming the object and the imports before it.
        """
        stages = [
            await self._read(name, body[name], read) for name, read in self._readers() if body.get(name)
        ]
        loosened = await self._check_room(stages)
        await self._check_administrators(
            [each for stage in stages if stage.category == "users" for each in stage]
        )
        for stage in stages:
            if stage.category in OF_VHOSTS and loosened:
                # Limits of the document that are looser than the present limits apply from here on, the rest at the
                # end.
                await self._carry_out("limits", loosened)
                loosened = []
            await self._carry_out(stage.category, stage)
        shown = [each.object for each in self._left_out[:LEFT_OUT_LOGGED_MAX]]
        log.info(
            "definitions imported: %s; left out: %d, of them %s", self._imported(), len(self._left_out), shown
        )
        return self._left_out

    def _readers(self) -> list[tuple[str, Callable[[Body], _Object | None]]]:
        """Return the readers in the order of the import. Limits come last, so that they do not block objects."""
        of_cluster = [
            ("users", self._user_object),
            ("vhosts", self._vhost_object),
            ("permissions", self._permissions_object),
            ("topic_permissions", self._topic_permissions_object),
            ("global_parameters", self._global_parameter_object),
        ]
        of_vhost = [
            ("exchanges", self._exchange_object),
            ("policies", self._policy_object),
            ("queues", self._queue_object),
            ("bindings", self._binding_object),
            ("parameters", self._parameter_object),
        ]
        return of_vhost if self._vhost is not None else of_cluster + of_vhost

    # Reading

    async def _read(self, category: str, rows: Any, read: Callable[[Body], _Object | None]) -> _Stage:
        """Read and check the objects of a kind. Of several with the same key, the last counts."""
        if not isinstance(rows, LargeList):
            raise bad_request(f"{category} should be a list; nothing is imported")
        places: dict[bytes, int] = {}
        administrators: set[int] = set()
        for place, row in enumerate(rows):
            await self._slices.give_way()
            found = self._read_one(category, place, row, read)
            if found is not None:
                places[blake2b(repr(found.key).encode(), digest_size=KEY_BYTES).digest()] = place
                self._new_limits |= {
                    change.vhost: change.limits
                    for change in found.changes
                    if isinstance(change, SetVhostLimits)
                }
                if _is_administrator(found):
                    administrators.add(place)
        # Administrators come first, so that they may take the place of those that the document replaces.
        ordered = array("Q", sorted(places.values(), key=lambda place: place not in administrators))
        return _Stage(category, rows, ordered, read)

    def _read_one(
        self, category: str, place: int, row: Any, read: Callable[[Body], _Object | None]
    ) -> _Object | None:
        name = f"{category}[{place}]"
        if not isinstance(row, dict):
            raise bad_request(f"{name} should be a map; nothing is imported")
        for key in ("name", "user", "source"):
            if isinstance(row.get(key), str):
                name += f" ({key} '{row[key]}')"
        try:
            found = read(row)
            for command in () if found is None else found.commands:
                self._management.changes.check_command(command)
        except Refusal as refusal:
            raise Refusal(refusal.status, f"{name}: {refusal.reason.strip()}; nothing is imported") from None
        except InvalidCommand as invalid:
            raise bad_request(f"{name}: {invalid}; nothing is imported") from None
        self._check_entry(found)
        return found

    def _vhost_of(self, row: Body) -> str:
        vhost = self._vhost
        if vhost is None:
            if "vhost" not in row:
                raise bad_request(
                    "no vhost: definitions of a single virtual host are imported to /api/definitions/VHOST"
                )
            vhost = parsing.field(row, "vhost", str)
        if vhost not in self._default_types:
            raise bad_request(f"vhost '{vhost}' not found")
        return vhost

    def _user_of(self, row: Body) -> str:
        user = parsing.field(row, "user", str)
        if user not in self._users:
            raise bad_request(f"user '{user}' not found")
        return user

    def _user_object(self, row: Body) -> _Object:
        name = parsing.field(row, "name", str)
        changes: list[Change] = [parsing.read_user(name, row, self._management.changes.hash_password)]
        if row.get("limits") is not None:
            changes.append(SetUserLimits(name, parsing.limits(row["limits"], limits.USER_LIMITS)))
        self._users.add(name)
        return _Object(f"user '{name}'", (name,), changes)

    def _vhost_object(self, row: Body) -> _Object:
        name = parsing.field(row, "name", str)
        metadata = row.get("metadata")
        described = (metadata if isinstance(metadata, dict) else {}) | row
        command = parsing.read_vhost(name, described, self._default_types.get(name, ""))
        changes = creation(self._management, command, self._user)
        if len(changes) > 1:
            self._entered.add(name)
        if parsing.flag(described, "protected_from_deletion", default=False):
            changes.append(ProtectVhost(name, True))
        self._default_types[name] = command.default_queue_type
        return _Object(f"vhost '{name}'", (name,), changes)

    def _permissions_object(self, row: Body) -> _Object:
        command = parsing.read_permissions(self._user_of(row), self._vhost_of(row), row)
        if command.user == self._user:
            self._entered.add(command.vhost)
        user, vhost, *_ = command
        return _Object(f"permissions of user '{user}' in vhost '{vhost}'", (user, vhost), [command])

    def _topic_permissions_object(self, row: Body) -> _Object:
        command = parsing.read_topic_permissions(self._user_of(row), self._vhost_of(row), row)
        user, vhost, exchange, _, _ = command
        what = f"topic permissions of user '{user}' for exchange '{exchange}' in vhost '{vhost}'"
        return _Object(what, (user, vhost, exchange), [command])

    def _global_parameter_object(self, row: Body) -> _Object | None:
        name = parsing.field(row, "name", str)
        what = f"global parameter '{name}'"
        if name == CLUSTER_ID:  # each cluster keeps its own
            return None
        if name == DEDUPLICATION:
            bounds = parsing.read_deduplication(row, self._management.catalog.deduplication())
            return _Object(what, (name,), [LimitPublishers(*bounds)])
        return _Object(what, (name,), [read_global_parameter(name, row.get("value"))])

    def _policy_object(self, row: Body) -> _Object:
        vhost = self._vhost_of(row)
        policy = parsing.read_policy(parsing.field(row, "name", str), row, operator=False)
        what = f"policy '{policy.name}' in vhost '{vhost}'"
        return _Object(what, (vhost, policy.name), [parsing.put_policy(vhost, policy)])

    def _parameter_object(self, row: Body) -> _Object | None:
        vhost, name = self._vhost_of(row), parsing.field(row, "name", str)
        component = parsing.field(row, "component", str)
        what, key = f"parameter '{name}' of {component} in vhost '{vhost}'", (vhost, component, name)
        if not has_meaning(component):
            return self._leave_out(what, f"there is no {component} here")
        try:
            change = read_parameter(vhost, component, name, row.get("value"))
        except NotCarriedOut as error:
            return self._leave_out(what, error.reason.strip())
        return _Object(what, key, [change])

    def _exchange_object(self, row: Body) -> _Object | None:
        vhost, name = self._vhost_of(row), stripped(parsing.field(row, "name", str, ""))
        what = f"exchange '{name}' in vhost '{vhost}'"
        if not name or name in PREDECLARED:
            return None
        if name.startswith(RESERVED):
            return self._leave_out(what, f"exchange names that begin with '{RESERVED}' are the broker's own")
        command = parsing.read_exchange(name, row)
        return _Object(what, (vhost, command.name), vhost=vhost, declaration=command)

    def _queue_object(self, row: Body) -> _Object | None:
        vhost, name = self._vhost_of(row), stripped(parsing.field(row, "name", str))
        what = f"queue '{name}' in vhost '{vhost}'"
        command = parsing.read_queue(name, row)
        kind = parsing.field(row, "type", str, "")
        if name.startswith(REPLY_TO):
            return self._leave_out(what, "its name stands for consumers of direct replies")
        if name.startswith(RESERVED):
            # A node has made the name of this queue, which outlives its connection.
            command, kind = command._replace(server_named=True), kind or CLASSIC
        if kind in MODULES:
            # The queue keeps its type, even if the virtual host has a different default here.
            command.arguments.setdefault("x-queue-type", kind)
        if command.arguments.get("x-queue-type") == QUORUM:
            try:
                check_quorum_properties(what, command)
            except Refused as refused:
                return self._leave_out(what, refused.text)
        return _Object(what, (vhost, command.name), vhost=vhost, declaration=command)

    def _binding_object(self, row: Body) -> _Object | None:
        vhost, source, destination = self._vhost_of(row), *self._ends(row)
        kind = parsing.field(row, "destination_type", str)
        what = f"binding of exchange '{source}' to {kind} '{destination}' in vhost '{vhost}'"
        if not source:  # each queue has a binding of the default exchange
            return None
        command = parsing.read_binding(source, destination, kind, row)
        routing_key, arguments = command.routing_key, str(command.arguments)
        key = (vhost, source, kind, destination, routing_key, arguments)
        place = f"{what} with '{routing_key}' and {arguments}"
        return _Object(place, key, vhost=vhost, declaration=command)

    def _ends(self, row: Body) -> tuple[str, str]:
        source, destination = parsing.field(row, "source", str, ""), parsing.field(row, "destination", str)
        return stripped(source), stripped(destination)

    def _leave_out(self, what: str, reason: str) -> None:
        self._left_out.append(LeftOut(what, reason))

    def _check_entry(self, found: _Object | None) -> None:
        """Refuse an object in a virtual host that the user may not enter, because this user's session declares it."""
        if found is not None and found.declaration is not None and found.vhost not in self._entered:
            needs = f"user '{self._user}' needs permissions in vhost '{found.vhost}' to declare it"
            raise bad_request(f"{found.what}: {needs}; nothing is imported")

    async def _check_room(self, stages: Sequence[_Stage]) -> list[_Object]:
        """Check that limits leave room for all objects, and return the limits to be loosened first. Raises Refusal."""
        new_limits = self._new_limits
        claims = self._management.changes.limit_claims(new_limits)
        for each in chain.from_iterable(stages):
            await self._slices.give_way()
            try:
                for change in each.changes:
                    claims.claim_change(change)
                if each.declaration is not None:
                    claims.claim_declaration(each.vhost, each.declaration)
            except RequestRefused as refused:
                raise bad_request(f"{each.what}: {refused.explanation}; nothing is imported") from None
        loosened = {vhost: claims.loosened(vhost) for vhost in new_limits}
        return [
            _Object(f"limits of vhost '{vhost}'", (vhost,), [ChangeVhostLimits(vhost, limits_)])
            for vhost, limits_ in loosened.items()
            if limits_
        ]

    async def _check_administrators(self, users: Sequence[_Object]) -> None:
        """Refuse a document that leaves no administrator, or prepare a forced import of it."""
        changes = [change for each in users for change in each.changes]
        if self._is_forced:
            await self._management.changes.dismiss_administrators(*changes)
        try:
            self._management.changes.check_administrators(changes)
        except RequestRefused as refused:
            raise bad_request(f"users: {refused.explanation}; nothing is imported") from None

    # Carrying out

    async def _carry_out(self, category: str, objects: Iterable[_Object]) -> None:
        """Make the objects that do not exist yet, and the changes that make a difference.

        Existing objects stay as they are, and each policy that is put updates all queues.
        """
        self._counts[category] = 0
        changes: list[_Object] = []
        missing: dict[str, list[_Object]] = {}
        waiting = 0
        for each in objects:
            await self._slices.give_way()
            if each.declaration is None:
                if not all(map(self._management.changes.is_made, each.changes)):
                    changes.append(each)
            elif not self._management.catalog.is_declared(each.vhost, each.declaration):
                missing.setdefault(each.vhost, []).append(each)
                waiting += 1
            if len(changes) == OBJECTS_PER_BATCH:
                await self._change(category, changes)
                changes = []
            if waiting == DECLARED_TOGETHER:
                await self._declare_all(category, missing)
                missing, waiting = {}, 0
        if changes:
            await self._change(category, changes)
        await self._declare_all(category, missing)

    async def _declare_all(self, category: str, missing: Mapping[str, Sequence[_Object]]) -> None:
        for vhost, objects in missing.items():
            await self._declare(category, vhost, objects)

    async def _change(self, category: str, objects: Sequence[_Object]) -> None:
        try:
            await self._management.changes.apply(*(change for each in objects for change in each.changes))
        except Unavailable as unavailable:
            raise self._interrupted(unavailable, objects) from None
        except RequestRefused as refused:
            raise bad_request(f"{_some_of(objects)}: {refused.explanation}; {self._before()}") from None
        self._counts[category] += len(objects)

    async def _declare(self, category: str, vhost: str, objects: Sequence[_Object]) -> None:
        declarations = [each.declaration for each in objects if each.declaration is not None]
        try:
            await self._management.operations.declare(vhost, self._user, declarations)
        except RequestRefused as refused:
            self._counts[category] += refused.done
            left = objects[refused.done :]
            what = left[0].what if left else f"{category} of vhost '{vhost}'"
            raise bad_request(f"{what}: {refused.explanation}; {self._before()}") from None
        except Unavailable as unavailable:
            raise self._interrupted(unavailable, objects) from None
        self._counts[category] += len(objects)

    def _interrupted(self, unavailable: Unavailable, objects: Sequence[_Object]) -> Unavailable:
        return Unavailable(f"{_some_of(objects)}: {unavailable}; {self._before()}")

    def _before(self) -> str:
        return f"imported before: {self._imported()}"

    def _imported(self) -> str:
        return (
            ", ".join(f"{count} {category}" for category, count in self._counts.items() if count) or "nothing"
        )


def _is_administrator(each: _Object) -> bool:
    user = each.changes[0] if each.changes else None
    return isinstance(user, PutUser | PutHashedUser) and user_of(user).is_administrator


def _some_of(objects: Sequence[_Object]) -> str:
    """Return a text for a batch with a refused object, because the answer does not say which of them it is."""
    return f"{objects[0].what}, or one after it"
