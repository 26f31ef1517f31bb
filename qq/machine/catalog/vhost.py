"""A virtual host: its queues, exchanges, bindings, policies, and the owners of exclusive queues.

Invariant: every check comes before the first change. Cached routes are dropped at each change that could alter them.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qq.machine.catalog import limits as lim
from qq.machine.catalog.deduplication import Publishers
from qq.machine.catalog.publish_rates import Published
from qq.machine.catalog.reply_names import REPLY_PREFIX
from qq.machine.policy import arguments as args
from qq.machine.policy.policies import InvalidPolicy, Policies, alternate_exchange, check_version
from qq.machine.policy.settings import settings_of
from qq.machine.protocol.codec import pack, unpack
from qq.machine.protocol.queue_types import CLASSIC, MODULES, QUORUM
from qq.machine.protocol.refusals import (
    access_refused,
    locked,
    not_allowed,
    not_found,
    precondition_failed,
    the_exchange,
    the_queue,
)
from qq.machine.protocol.work_meter import CHEAP_STEPS_MAX, REVIEW_STEPS_MAX, ROUTING_STEPS_MAX
from qq.machine.queue.queue import NOBODY, Queue, Tally
from qq.routing.exchanges import (
    DEFAULT_EXCHANGE,
    ROUTE_STEPS_MAX,
    RouteTooLong,
    RoutingTable,
    check_exchange,
)
from qq.routing.routers import Binding, Destination, DestinationKind, InvalidBinding, InvalidExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from qq.machine.catalog.reply_names import Requester
    from qq.machine.catalog.sinks import Sink
    from qq.machine.policy.policies import Applied, Policy
    from qq.machine.policy.queue_options import QueueSettings
    from qq.machine.protocol.commands import DeclareExchange, DeclareQueue, Table
    from qq.machine.protocol.refusals import Refused
    from qq.machine.protocol.work_meter import Work
    from qq.machine.queue.deferred_free import DeferredFree
    from qq.machine.queue.queue import QueueOwner
    from qq.routing.content import Content

K = TypeVar("K")
V = TypeVar("V")

ROUTES_MAX = 10_000
"""Cached routes before the cache is cleared, so that a publisher of ever new keys cannot fill the memory."""
ROUTES_WIDTH_MAX = 500_000
"""Queues of all cached routes together before the cache is cleared."""

_REVIEW_STEPS = 2
_CONFIGURE_STEPS = 60
_HOLDER_STEPS = 10
"""Pattern-matching steps charged for checking a queue or an exchange, for changing a queue's settings, and for setting
the timer of a consumer."""

RESERVED = "amq."
ARGUMENTS_HASH_BYTES = 16
"""Bytes of the hash of a binding's arguments."""


VhostRef = tuple[str, bool]
"""A reference to a virtual host: its name, and whether it is deleted (a new virtual host may have the name)."""


class Exchange(NamedTuple):
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    user: str = ""
    """The user that declared it; empty if the log does not say, as for predeclared exchanges."""


_PREDECLARED = (
    Exchange(DEFAULT_EXCHANGE, "direct", True, False, False, {}),
    Exchange("amq.direct", "direct", True, False, False, {}),
    Exchange("amq.fanout", "fanout", True, False, False, {}),
    Exchange("amq.topic", "topic", True, False, False, {}),
    Exchange("amq.headers", "headers", True, False, False, {}),
    Exchange("amq.match", "headers", True, False, False, {}),
    Exchange("amq.rabbitmq.trace", "topic", True, False, True, {}),
)
PREDECLARED = frozenset(exchange.name for exchange in _PREDECLARED)
"""The names of the exchanges that each virtual host has from its beginning."""


class VirtualHost:
    """A virtual host, with all its declared objects. The public maps may be read; only its methods change them."""

    def __init__(
        self, name: str, new_number: Callable[[], int], work: Work, deferred_free: DeferredFree
    ) -> None:
        """Create an empty virtual host.

        `new_number` returns the number of a new queue; `work` counts the work of an entry; `deferred_free` frees
        removed objects.
        """
        self.name = name
        self.description = ""
        self.tags: list[str] = []
        self.default_queue_type = ""
        self.limits: Table = {}
        self.is_protected = False
        """Whether it is protected from deletion."""
        self.parameters: dict[tuple[str, str], str] = {}
        """Parameters of the broker's components: (component, name) -> value as JSON."""
        self.connections = 0
        """Number of open connections; the catalog counts them."""
        self.consumers = 0
        """Number of consumers and of unacknowledged gets; core.py counts them."""
        self.argument_bytes = 0
        """Bytes of the arguments of all queues, exchanges and bindings (`limits.table_bytes`)."""
        self.is_deleted = False
        """Whether the virtual host is deleted. Its former sessions still refer to it, and are refused everything."""
        self.queues: dict[str, Queue] = {}
        self.requesters: dict[str, Requester] = {}
        """Consumers of direct replies, by name; the sessions own them."""
        self.exchanges: dict[str, Exchange] = {exchange.name: exchange for exchange in _PREDECLARED}
        self.bindings: dict[Binding, int] = {}
        """Binding -> bytes of its arguments."""
        self.policies = Policies(work)
        self.exchange_policies: dict[str, Applied] = {}
        """The policies that apply to exchanges, by name; exchanges without policies are left out."""
        self.unreviewed_queues: list[str] = []
        """Names of queues to be matched with policies again, the next one last. Some may be deleted, or occur twice."""
        self.unreviewed_exchanges: list[str] = []
        """Names of exchanges to be matched with policies again, after all queues."""
        self.publishers = Publishers()
        self.sinks: dict[str, Sink] = {}
        """The sinks that store messages until their epoch is committed, by name."""
        self.published = Published()
        """Counts of messages published here."""
        self.exchange_counts: dict[str, tuple[int, int]] = {}
        """Exchange -> number of messages published to it since this process began, and number of copies that entered
        queues. Not part of the state."""
        self.returned = 0
        """Mandatory messages that reached no queue, since this process began. Not part of the state."""
        self.dropped = 0
        """Other messages that reached no queue, since this process began. Not part of the state."""
        self._new_number = new_number
        self._work = work
        self._deferred_free = deferred_free
        self._bindings_of: dict[Destination, dict[Binding, None]] = {}
        self._owned: dict[QueueOwner, dict[str, None]] = {}
        self._bindings_from: dict[str, dict[Binding, None]] = {}
        self._table = RoutingTable()
        self.routing_revision = 0
        """Number of changes of queues, exchanges and bindings since this process began. Not part of the state."""
        self._routes: dict[tuple[str, str], tuple[Queue, ...]] = {}
        self._steps_of: dict[tuple[str, str], int] = {}
        """Steps to compute each of `_routes`."""
        self.expensive_routes: dict[tuple[str, str], int] = {}
        """Steps of the expensive routes among `_routes`. A node that has not cached them must compute them again."""
        self._routes_width = 0
        """Queues of all cached routes together."""
        for exchange in _PREDECLARED[1:]:
            self._open(exchange)

    # Properties of the virtual host

    @property
    def ref(self) -> VhostRef:
        return self.name, self.is_deleted

    def describe(self, description: str, tags: Sequence[str], default_queue_type: str) -> None:
        self.description, self.tags = description, list(tags)
        self.default_queue_type = default_queue_type

    def set_limits(self, limits: Table) -> None:
        """Replace the limits; existing objects stay."""
        self.limits = limits

    def delete(self) -> None:
        """Mark the virtual host as deleted, and empty it. From now on it refuses all operations."""
        self.is_deleted = True
        self.take_apart(self._deferred_free)

    def take_apart(self, deferred_free: DeferredFree) -> None:
        """Hand all objects of the virtual host to `deferred_free`, to be freed in portions."""
        deferred_free.add_queues(self.queues.values())
        deferred_free.add(self.queues, self.exchanges, self.bindings)
        deferred_free.add(self._bindings_of, self._bindings_from, self._owned, *self._table.take_apart())
        self.queues, self.exchanges, self.bindings, self.sinks = {}, {}, {}, {}
        self._bindings_of, self._bindings_from, self._owned = {}, {}, {}
        self.consumers = 0
        self._table = RoutingTable()
        self._forget_routes()

    def check(self) -> None:
        """Raise Refused if the virtual host is deleted."""
        if self.is_deleted:
            raise not_allowed(deleted(self.name))

    # Routing

    def count_published(self, exchange: str, count: int, queues: int) -> None:
        """Count messages that were published to an exchange, and that each reach `queues` queues."""
        before, copies = self.exchange_counts.get(exchange, (0, 0))
        self.exchange_counts[exchange] = before + count, copies + count * queues

    def count_unroutable(self, count: int, *, returned: bool) -> None:
        """Count messages that reached no queue."""
        if returned:
            self.returned += count
        else:
            self.dropped += count

    def count_anew(self) -> None:
        """Reset the counts of events."""
        self.returned = self.dropped = 0
        self.exchange_counts.clear()
        for queue in self.queues.values():
            if queue.revision:  # otherwise no event has changed it
                queue.tally = Tally()
                queue.revision += 1

    def route(self, exchange: str, routing_key: str) -> tuple[Queue, ...]:
        """Return the queues that a publish reaches. Raise Refused if publishing to that exchange is not allowed.

        Raises NeedsContent if the route depends on the message; then call `route_all` for each message.
        """
        route = self._routes.get((exchange, routing_key))
        if route is None:
            route = self.route_all(exchange, (routing_key,))
            self._routes_width += len(route)
            if len(self._routes) >= ROUTES_MAX or self._routes_width > ROUTES_WIDTH_MAX:
                self._make_room()
                self._routes_width = len(route)
            self._routes[exchange, routing_key] = route
            steps = self._steps_of[exchange, routing_key] = self._table.steps
            if steps > CHEAP_STEPS_MAX:
                self.expensive_routes[exchange, routing_key] = steps
        return route

    def known_route(self, exchange: str, routing_key: str) -> tuple[Queue, ...] | None:
        """Return the cached result of `route`, or None."""
        return self._routes.get((exchange, routing_key))

    def known_steps(self, exchange: str, routing_key: str) -> int:
        """Return the steps to compute a cached route."""
        return self._steps_of[exchange, routing_key]

    @property
    def route_steps(self) -> int:
        """The steps of the last route that was computed, even if there was no such route."""
        return self._table.steps

    def route_all(
        self, exchange: str, routing_keys: Sequence[str], content: Content | None = None
    ) -> tuple[Queue, ...]:
        """Return the queues that a publish with several keys reaches, each once. Raise like `route`.

        An expensive route is refused after the entry has reached its limit of steps.
        """
        self._table.steps = 0
        self.check()
        declared = self._exchange(exchange)
        if declared.internal:
            raise access_refused(f"cannot publish to internal {the_exchange(exchange, self.name)}")
        if self._work.has_routed_enough(self.name):
            try:
                return self._reached(exchange, routing_keys, content, CHEAP_STEPS_MAX)
            except RouteTooLong:
                raise self.too_many_routes() from None
        try:
            return self._reached(exchange, routing_keys, content)
        except RouteTooLong as too_long:
            raise precondition_failed(str(too_long)) from None

    def too_many_routes(self) -> Refused:
        """Return the refusal of a message with an expensive route in an entry above its limit of steps."""
        self._table.steps = 0
        return precondition_failed(
            f"the ways of messages in vhost '{self.name}' take more steps at once than the limit ({ROUTING_STEPS_MAX})"
        )

    def route_dead_letters(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        content: Content | None = None,
        *,
        steps_max: int = ROUTE_STEPS_MAX,
    ) -> tuple[Queue, ...]:
        """Return the queues that dead letters reach; none if the exchange is missing or the route too long."""
        try:
            return self._reached(exchange, routing_keys, content, steps_max)
        except RouteTooLong:
            return ()

    def _reached(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        content: Content | None,
        steps_max: int = ROUTE_STEPS_MAX,
    ) -> tuple[Queue, ...]:
        queues = self.queues
        names = self._table.route(exchange, *routing_keys, content=content, steps_max=steps_max)
        return tuple([queues[name] for name in names])

    def depends_on_content(self, exchange: str) -> bool:
        """Return whether messages of this exchange may reach an exchange that looks into messages."""
        return self._table.depends_on_content(exchange)

    def _forget_routes(self) -> None:
        """Drop all cached routes, because they may have changed."""
        self.routing_revision += 1
        if self._routes:
            self._make_room()
        self._work.expensive_routes.pop(self.name, None)

    def _make_room(self) -> None:
        self._routes.clear()
        self._steps_of.clear()
        self.expensive_routes.clear()
        self._routes_width = 0

    # Queues

    def queue(self, name: str, user: QueueOwner | None) -> Queue:
        """Return the queue, if it exists and this connection may use it. Raise Refused if not."""
        queue = self.queues.get(name)
        if queue is None or queue.owner == NOBODY:
            raise not_found(the_queue(name, self.name))
        if queue.owner is not None and queue.owner != user:
            raise locked(the_queue(name, self.name))
        return queue

    def declare_queue(self, command: DeclareQueue, name: str, owner: QueueOwner, version: int) -> Queue:
        """Return an equivalent queue or a new queue; `version` is the version of the state. Raise Refused."""
        if not name:
            raise precondition_failed("a queue has to have a name")
        arguments = dict(command.arguments)
        arguments.setdefault("x-queue-type", self._default_kind(command))
        if name in self.queues:
            return self._equivalent_queue(command, self.queues[name], owner, arguments, version)
        thing = the_queue(name, self.name)
        if name.startswith(RESERVED) and not command.server_named:
            raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        args.check_exchange_argument(thing, "x-dead-letter-exchange", arguments)
        kind = args.queue_kind(thing, arguments)
        if command.server_named and kind == QUORUM:
            raise precondition_failed(f"Cannot declare a server-named queue for type {MODULES[kind]}")
        args.check_queue_arguments(thing, kind, arguments, version)
        size = lim.check_table_size(f"declare {thing}", command.arguments)
        if len(arguments) > len(command.arguments):
            size = lim.table_bytes(arguments)
        self._check_room_for_queue(name, size)
        if kind == QUORUM:
            check_quorum_properties(thing, command)
        # An exclusive queue does not outlive its connection, so it is never durable.
        durable = command.durable and not command.exclusive
        queue = Queue(
            vhost=self.name,
            name=name,
            kind=kind,
            durable=durable,
            owner=owner if command.exclusive else None,
            auto_delete=command.auto_delete,
            arguments=arguments,
            number=self._new_number(),
            settings=settings_of(kind, arguments, None, None),
        )
        self._enter_queue(queue, size)
        self._apply_policies_to_queue(queue)
        return queue

    def restore_queue(self, queue: Queue) -> None:
        """Add a queue whose name is free."""
        self._enter_queue(queue, lim.table_bytes(queue.arguments))

    def _enter_queue(self, queue: Queue, argument_bytes: int) -> None:
        self.queues[queue.name] = queue
        self.argument_bytes += argument_bytes
        owner = _owner(queue)
        if owner is not None:
            self._owned.setdefault(owner, {})[queue.name] = None
        self._table.add_queue(queue.name)
        self._forget_routes()

    def delete_queue(self, queue: Queue) -> None:
        """Remove an existing queue with its bindings."""
        for exchange in self._unbind_all(Destination(DestinationKind.QUEUE, queue.name)):
            self._close(exchange)
        del self.queues[queue.name]
        self.argument_bytes -= lim.table_bytes(queue.arguments)
        self._forget_owner(queue)
        self._table.remove_queue(queue.name)
        self._forget_routes()

    def disown(self, queues: Iterable[Queue]) -> None:
        """Take queues from their owners before their removal. There may be very many of them in an entry."""
        owned = self._owned
        for queue in queues:
            owner = _owner(queue)
            if owner is not None:
                group = owned[owner]
                del group[queue.name]
                if not group:
                    del owned[owner]
            queue.disown()

    def _forget_owner(self, queue: Queue) -> None:
        owner = _owner(queue)
        if owner is not None:
            _remove_from(self._owned, owner, queue.name)

    def owned_queues(self, owner: QueueOwner) -> list[Queue]:
        """Return the exclusive queues of a connection."""
        return [self.queues[name] for name in self._owned.get(owner, ())]

    def owned_queues_of_node(self, node: str) -> list[Queue]:
        queues = [queue for owner in self._owned if owner[0] == node for queue in self.owned_queues(owner)]
        return sorted(queues, key=_number)

    # Exchanges

    def declare_exchange(self, command: DeclareExchange, name: str, user: str) -> None:
        """Accept an equivalent exchange, or create a new exchange of this user. Raise Refused."""
        if not command.passive:
            check_exchange_type(command)
        _check_not_default(name)
        if command.passive:
            self._exchange(name)
        elif name in self.exchanges:
            self._check_equivalent_exchange(self.exchanges[name], command)
        else:
            self._make_exchange(command, name, user)

    def restore_exchange(self, exchange: Exchange) -> None:
        """Add an exchange whose name is free."""
        self.exchanges[exchange.name] = exchange
        self.argument_bytes += lim.table_bytes(exchange.arguments)
        self._open(exchange)

    def restore_exchange_policies(self, name: str, applied: Applied) -> None:
        """Apply these policies to an existing exchange."""
        if applied == (None, None):
            self.exchange_policies.pop(name, None)
        else:
            self.exchange_policies[name] = applied
        self._table.set_alternate(name, self._alternate(self.exchanges[name]))
        self._forget_routes()

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Remove an exchange with its bindings; a missing exchange is ignored. Raise Refused."""
        _check_not_default(name)
        if name.startswith(RESERVED):
            raise access_refused(f"deletion of system {the_exchange(name, self.name)} not allowed")
        if name not in self.exchanges:
            return
        if if_unused and name in self._bindings_from:
            raise precondition_failed(f"{the_exchange(name, self.name)} in use")
        # The exchange's own router needs no updates, because it is removed as a whole.
        bindings = self._bindings_from.pop(name, {})
        for binding in bindings:
            self._forget_binding(binding)
        self._deferred_free.add(bindings)
        self._close(name)

    # Bindings

    def bind(
        self,
        source: str,
        destination: Destination,
        routing_key: str,
        arguments: Table,
        user: QueueOwner | None,
    ) -> None:
        """Add a binding; an existing binding stays. Raise Refused."""
        self._check_ends(source, destination, user)
        binding = _binding(source, destination, routing_key, arguments)
        if binding in self.bindings:
            return
        try:
            self._table.check_binding(source, routing_key, arguments)
        except InvalidBinding as invalid:
            raise precondition_failed(str(invalid)) from None
        self._check_room_for_binding(binding, arguments)
        self.restore_binding(binding)

    def is_bound(self, source: str, destination: Destination, routing_key: str, arguments: Table) -> bool:
        """Return whether this binding exists."""
        return _binding(source, destination, routing_key, arguments) in self.bindings

    def binding_counts(self, source: str, destination: Destination) -> tuple[int, int]:
        """Return the number of bindings to the destination, and of bindings from the source."""
        return len(self._bindings_of.get(destination, ())), len(self._bindings_from.get(source, ()))

    def restore_binding(self, binding: Binding) -> None:
        """Add a new binding between existing objects."""
        arguments = binding_arguments(binding)
        size = self.bindings[binding] = lim.table_bytes(arguments)
        self.argument_bytes += size
        self._bindings_of.setdefault(binding.destination, {})[binding] = None
        self._bindings_from.setdefault(binding.source, {})[binding] = None
        self._table.bind(binding, arguments)
        self._forget_routes()

    def unbind(
        self,
        source: str,
        destination: Destination,
        routing_key: str,
        arguments: Table,
        user: QueueOwner | None,
    ) -> None:
        """Remove a binding, if it exists; its source and destination may be missing, too. Raise Refused."""
        _check_not_reply_name(destination)
        _check_not_default_binding(source, destination)
        if destination.kind is DestinationKind.QUEUE and destination.name in self.queues:
            self.queue(destination.name, user)
        binding = _binding(source, destination, routing_key, arguments)
        if binding in self.bindings:
            self._remove(binding)
            if self._lapsed(source):
                self._close(source)

    def count_bindings(self, exchange: str) -> int:
        """Return the number of bindings from an exchange and to it."""
        to = self.count_bindings_of(Destination(DestinationKind.EXCHANGE, exchange))
        return len(self._bindings_from.get(exchange, ())) + to

    def bindings_of(self, destination: Destination) -> Collection[Binding]:
        """Return the bindings to a queue or an exchange, without the default exchange's."""
        return self._bindings_of.get(destination, {}).keys()

    def bindings_from(self, source: str) -> Collection[Binding]:
        """Return the bindings from an exchange, without the default exchange's."""
        return self._bindings_from.get(source, {}).keys()

    def count_bindings_of(self, destination: Destination) -> int:
        """Return the number of bindings to a queue or an exchange."""
        return len(self._bindings_of.get(destination, ()))

    # Policies

    def put_policy(self, policy: Policy, version: int) -> bool:
        """Add or replace a policy for the next review, and return whether it is valid.

        `version` is the agreed version of the state.
        """
        try:
            check_version(policy, version)
            self.policies.put(policy)
        except InvalidPolicy:
            return False
        self._policies_changed()
        return True

    def restore_policy(self, policy: Policy) -> None:
        """Add a policy of a loaded state; the state also says to which queues and exchanges it applies."""
        self.policies.put(policy)

    def delete_policy(self, name: str, *, operator: bool) -> None:
        self.policies.delete(name, operator=operator)
        self._policies_changed()

    def _policies_changed(self) -> None:
        # Everything is matched again, which replaces earlier lists. Copying a list of names costs almost no time.
        self.unreviewed_queues, self.unreviewed_exchanges = list(self.queues), list(self.exchanges)

    @property
    def is_unreviewed(self) -> bool:
        """Whether queues or exchanges are still to be matched with policies."""
        return bool(self.unreviewed_queues or self.unreviewed_exchanges)

    def restore_unreviewed(self, queues: Iterable[str], exchanges: Iterable[str]) -> None:
        """Restore the names that are still to be matched with policies."""
        self.unreviewed_queues, self.unreviewed_exchanges = list(queues), list(exchanges)

    def review(self, steps_max: int) -> list[tuple[Queue, QueueSettings]]:
        """Match at least a single queue or exchange with the policies, until the entry has cost `steps_max` steps.

        Returns the queues whose settings have changed, each with its former settings.
        """
        changed: list[tuple[Queue, QueueSettings]] = []
        while self.is_unreviewed:
            self._work.steps += _REVIEW_STEPS
            if self.unreviewed_queues:
                queue = self.queues.get(self.unreviewed_queues.pop())
                if queue is not None:
                    before = queue.settings
                    if self._review_queue(queue):
                        changed.append((queue, before))
            else:
                self._review_exchange(self.unreviewed_exchanges.pop())
            if self._work.steps >= steps_max:
                break
        return changed

    def _apply_policies_to_queue(self, queue: Queue) -> None:
        """Match a new queue with the policies; later, if the entry has done enough work."""
        if self._work.steps < REVIEW_STEPS_MAX:
            self._review_queue(queue)
        else:
            self.unreviewed_queues.append(queue.name)

    def _apply_policies_to_exchange(self, name: str) -> None:
        if self._work.steps < REVIEW_STEPS_MAX:
            self._review_exchange(name)
        else:
            self.unreviewed_exchanges.append(name)

    def _review_queue(self, queue: Queue) -> bool:
        """Match a queue with the policies, and return whether its settings have changed."""
        if not queue.apply_policies(self.policies.match(queue.name, queue.kind)):
            return False
        self._work.steps += _CONFIGURE_STEPS + len(queue.holders) * _HOLDER_STEPS
        return True

    def _review_exchange(self, name: str) -> None:
        if name not in self.exchanges:
            return
        applied = self.policies.match_exchange(name)
        if applied != self.exchange_policies.get(name, (None, None)):
            self.restore_exchange_policies(name, applied)

    def _alternate(self, exchange: Exchange) -> str | None:
        mine = exchange.arguments.get("alternate-exchange")
        if isinstance(mine, str):
            return mine
        return alternate_exchange(self.exchange_policies.get(exchange.name, (None, None)))

    # Parts of the above

    def _equivalent_queue(
        self, command: DeclareQueue, queue: Queue, owner: QueueOwner, arguments: Table, version: int
    ) -> Queue:
        thing = the_queue(queue.name, self.name)
        if queue.owner != (owner if command.exclusive else None):
            raise locked(thing)
        durable = command.durable and not command.exclusive
        args.check_equivalent_field(thing, "durable", queue.durable, durable)
        args.check_equivalent_field(thing, "auto_delete", queue.auto_delete, command.auto_delete)
        args.check_equivalent_queue_arguments(thing, queue.kind, queue.arguments, arguments, version)
        return queue

    def _default_kind(self, command: DeclareQueue) -> str:
        """Return the type of a queue that is declared without a type."""
        is_plain = command.durable and not command.auto_delete and not command.exclusive
        return QUORUM if self.default_queue_type == QUORUM and is_plain else CLASSIC

    def _check_room_for_queue(self, name: str, argument_bytes: int) -> None:
        limit = lim.limit_of(self.limits, lim.MAX_QUEUES)
        if limit is not None and len(self.queues) >= limit:
            raise precondition_failed(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({limit}) is reached"
            )
        self._check_room_for_arguments(f"declare queue '{name}'", argument_bytes)

    def _check_room_for_binding(self, binding: Binding, arguments: Table) -> None:
        kind = "queue" if binding.destination.kind is DestinationKind.QUEUE else "exchange"
        destination = f"{kind} '{binding.destination.name}'"
        doing = f"bind {destination}"
        size = lim.check_table_size(doing, arguments)
        self.check_room(doing, lim.MAX_BINDINGS, len(self.bindings))
        to_it, from_there = self.binding_counts(binding.source, binding.destination)
        self.check_room(doing, lim.MAX_BINDINGS_PER_QUEUE, to_it, destination)
        self.check_room(
            doing, lim.MAX_BINDINGS_PER_EXCHANGE, from_there, the_exchange(binding.source, self.name)
        )
        self._check_room_for_arguments(doing, size)

    def _check_room_for_arguments(self, doing: str, size: int) -> None:
        if size:
            # These arguments may reach the limit, but not exceed it.
            self.check_room(doing, lim.MAX_ARGUMENT_BYTES, self.argument_bytes + size - 1)

    def check_room(self, doing: str, name: str, count: int, where: str = "") -> None:
        """Raise Refused if `count` has reached the limit `name`; `where` replaces the virtual host in the text."""
        limit = lim.limit_of(self.limits, name)
        if limit is not None and count >= limit:
            raise lim.reached(doing, name, limit, where or f"vhost '{self.name}'")

    def _exchange(self, name: str) -> Exchange:
        """Return the exchange. Raise Refused if it does not exist."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise not_found(the_exchange(name, self.name))
        return exchange

    def _check_equivalent_exchange(self, exchange: Exchange, command: DeclareExchange) -> None:
        thing = the_exchange(exchange.name, self.name)
        args.check_equivalent_field(thing, "type", exchange.type, command.type)
        args.check_equivalent_field(thing, "durable", exchange.durable, command.durable)
        args.check_equivalent_field(thing, "auto_delete", exchange.auto_delete, command.auto_delete)
        args.check_equivalent_field(thing, "internal", exchange.internal, command.internal)
        args.check_equivalent_arguments(thing, ("alternate-exchange",), exchange.arguments, command.arguments)

    def _make_exchange(self, command: DeclareExchange, name: str, user: str) -> None:
        if name.startswith(RESERVED):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        args.check_exchange_argument(the_exchange(name, self.name), "alternate-exchange", command.arguments)
        doing = f"declare exchange '{name}'"
        size = lim.check_table_size(doing, command.arguments)
        self.check_room(doing, lim.MAX_EXCHANGES, len(self.exchanges))
        self._check_room_for_arguments(doing, size)
        _, _, kind, _, durable, auto_delete, internal, table = command
        self.restore_exchange(Exchange(name, kind, durable, auto_delete, internal, table, user))
        self._apply_policies_to_exchange(name)

    def _open(self, exchange: Exchange) -> None:
        self._table.add_exchange(exchange.name, exchange.type, exchange.arguments)
        self._table.set_alternate(exchange.name, self._alternate(exchange))
        self._forget_routes()

    def _close(self, name: str) -> None:
        """Remove an exchange that is no source of bindings.

        Auto-delete exchanges that lose their last binding by that are removed, too.
        """
        # A client can create such a chain of any length, so this is a loop and not a recursion.
        pending = [name]
        while pending:
            name = pending.pop()
            exchange = self.exchanges.pop(name, None)
            if exchange is not None:
                self.argument_bytes -= lim.table_bytes(exchange.arguments)
                self.exchange_policies.pop(name, None)
                self.exchange_counts.pop(name, None)
                pending.extend(self._unbind_all(Destination(DestinationKind.EXCHANGE, name)))
                self._deferred_free.add([self._table.remove_exchange(name)])
        self._forget_routes()

    def _check_ends(self, source: str, destination: Destination, user: QueueOwner | None) -> None:
        _check_not_reply_name(destination)
        _check_not_default_binding(source, destination)
        self._exchange(source)
        if destination.kind is DestinationKind.QUEUE:
            self.queue(destination.name, user)
        else:
            self._exchange(destination.name)

    def _unbind_all(self, destination: Destination) -> list[str]:
        """Remove the bindings to a removed object. Return the auto-delete exchanges that are removed with them."""
        bindings = list(self._bindings_of.get(destination, ()))
        for binding in bindings:
            self._remove(binding)
        return [
            source for source in dict.fromkeys(binding.source for binding in bindings) if self._lapsed(source)
        ]

    def _forget_binding(self, binding: Binding) -> None:
        """Forget a binding everywhere except at its source, which may be removed soon."""
        self.argument_bytes -= self.bindings.pop(binding)
        _remove_from(self._bindings_of, binding.destination, binding)

    def _remove(self, binding: Binding) -> None:
        self._forget_binding(binding)
        _remove_from(self._bindings_from, binding.source, binding)
        self._table.unbind(binding)
        self._forget_routes()

    def _lapsed(self, exchange: str) -> bool:
        """Return whether this is an auto-delete exchange that has lost its last binding."""
        declared = self.exchanges.get(exchange)
        return declared is not None and declared.auto_delete and exchange not in self._bindings_from


def _owner(queue: Queue) -> QueueOwner | None:
    """Return the connection that owns an exclusive queue; None if the queue is not exclusive, or disowned."""
    return None if queue.owner == NOBODY else queue.owner


def _number(queue: Queue) -> int:
    return queue.number


def deleted(vhost: str) -> str:
    """Return the text that refuses an operation in a deleted virtual host."""
    return f"vhost '{vhost}' is deleted"


def check_quorum_properties(queue: str, command: DeclareQueue) -> None:
    """Raise Refused for properties that a quorum queue cannot have. `queue` is its name in the text."""
    for broken, what in (
        (command.auto_delete, "auto-delete"),
        (command.exclusive, "exclusive-owner"),
        (not command.durable, "non-durable"),
    ):
        if broken:
            raise precondition_failed(f"invalid property '{what}' for {queue}")


def _remove_from(groups: dict[K, dict[V, None]], key: K, item: V) -> None:
    """Remove the item from its group, and an empty group from the groups."""
    group = groups[key]
    del group[item]
    if not group:
        del groups[key]


def check_exchange_type(command: DeclareExchange) -> None:
    """Raise Refused for an unknown type, or for arguments that the type cannot have."""
    try:
        check_exchange(command.type, command.arguments)
    except InvalidExchange as invalid:
        raise precondition_failed(str(invalid)) from None


def _check_not_default(exchange: str) -> None:
    if exchange == DEFAULT_EXCHANGE:
        raise access_refused("operation not permitted on the default exchange")


def _check_not_reply_name(destination: Destination) -> None:
    if destination.kind is DestinationKind.QUEUE and destination.name.startswith(REPLY_PREFIX):
        raise access_refused("cannot bind or unbind to a volatile (direct reply-to) queue")


def _check_not_default_binding(source: str, destination: Destination) -> None:
    _check_not_default(source)
    if destination.kind is DestinationKind.EXCHANGE:
        _check_not_default(destination.name)


def _binding(source: str, destination: Destination, routing_key: str, arguments: Table) -> Binding:
    return Binding(
        source, destination, routing_key, pack(dict(sorted(arguments.items()))) if arguments else b""
    )


def binding_arguments(binding: Binding) -> Table:
    """Return the table that `_binding` has packed."""
    return unpack(binding.arguments) if binding.arguments else {}


def arguments_hash(binding: Binding) -> str:
    """Return a hash of the binding's arguments for paths and keys of clients; it is empty without arguments."""
    if not binding.arguments:
        return ""
    digest = blake2b(binding.arguments, digest_size=ARGUMENTS_HASH_BYTES).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")
