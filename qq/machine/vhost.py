"""What is declared in one virtual host: queues, exchanges, bindings, policies, and who owns which queue.

Lives here: the rules of declaration and deletion, and everything that goes when something goes. Not here: messages and
consumers (queue.py, machine.py), what an exchange matches (qq/routing), what is there besides virtual hosts
(catalog.py).

Law: every check comes before the first change. `routes` is forgotten at each change that could alter it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from qq.machine import arguments as args
from qq.machine.codec import pack, unpack
from qq.machine.errors import (
    access_refused,
    locked,
    not_allowed,
    not_found,
    precondition_failed,
    the_exchange,
    the_queue,
)
from qq.machine.policies import InvalidPolicy, Policies
from qq.machine.publishers import Publishers
from qq.machine.queue import Queue
from qq.machine.requesters import REPLY_PREFIX
from qq.machine.settings import settings_of
from qq.routing.exchanges import DEFAULT_EXCHANGE, RoutingTable, check_exchange
from qq.routing.routers import Binding, Destination, DestinationKind, InvalidBinding, InvalidExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.machine.commands import DeclareExchange, DeclareQueue, Table
    from qq.machine.policies import Policy
    from qq.machine.requesters import Requester
    from qq.routing.content import Content

K = TypeVar("K")
V = TypeVar("V")

ROUTES_MAX = 10_000
"""Cached routes; beyond it the cache starts again, so that a publisher of ever new keys cannot fill the memory."""

RESERVED = "amq."

Owner = tuple[str, int]
"""Node and connection."""


class Exchange(NamedTuple):
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


_PREDECLARED = (
    Exchange(DEFAULT_EXCHANGE, "direct", True, False, False, {}),
    Exchange("amq.direct", "direct", True, False, False, {}),
    Exchange("amq.fanout", "fanout", True, False, False, {}),
    Exchange("amq.topic", "topic", True, False, False, {}),
    Exchange("amq.headers", "headers", True, False, False, {}),
    Exchange("amq.match", "headers", True, False, False, {}),
    Exchange("amq.rabbitmq.trace", "topic", True, False, True, {}),
)


class VirtualHost:
    """Everything that has a name in it. Readers may look at the public maps; only the methods change them."""

    def __init__(self, name: str, new_number: Callable[[], int]) -> None:
        """`new_number` draws the number of a queue."""
        self.name = name
        self.description = ""
        self.tags: list[str] = []
        self.default_queue_type = ""
        self.limits: Table = {}
        self.connections = 0
        """How many are open; the catalog counts them."""
        self.is_deleted = False
        """Sessions that were in it know it still, and can do nothing there."""
        self.queues: dict[str, Queue] = {}
        self.requesters: dict[str, Requester] = {}
        """Consumers of direct replies, by name; the sessions keep them."""
        self.exchanges: dict[str, Exchange] = {exchange.name: exchange for exchange in _PREDECLARED}
        self.bindings: dict[Binding, None] = {}
        self.policies = Policies()
        self.publishers = Publishers()
        self._new_number = new_number
        self._bindings_of: dict[Destination, dict[Binding, None]] = {}
        self._owned: dict[Owner, dict[str, None]] = {}
        self._bindings_from: dict[str, dict[Binding, None]] = {}
        self._table = RoutingTable()
        self._routes: dict[tuple[str, str], tuple[Queue, ...]] = {}
        self._lookers: dict[str, bool] = {}
        """Answers of `looks_at_content`."""
        for exchange in _PREDECLARED[1:]:
            self._open(exchange)

    # Itself

    def describe(self, description: str, tags: Sequence[str], default_queue_type: str) -> None:
        self.description, self.tags = description, list(tags)
        self.default_queue_type = default_queue_type

    def set_limits(self, limits: Table) -> None:
        """Replace them; what there is already stays."""
        self.limits = limits

    def delete(self) -> None:
        """Let nothing be done here any more. Its queues are gone already."""
        self.is_deleted = True
        self._forget_routes()

    def check(self) -> None:
        """Raise Refused if it is deleted."""
        if self.is_deleted:
            raise not_allowed(deleted(self.name))

    # Routing

    def route(self, exchange: str, routing_key: str) -> tuple[Queue, ...]:
        """The queues that a publish reaches; raises Refused if nobody may publish to that exchange.

        Raises NeedsContent if that depends on the message: `route_all` has to be asked for each.
        """
        route = self._routes.get((exchange, routing_key))
        if route is None:
            route = self.route_all(exchange, (routing_key,))
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[exchange, routing_key] = route
        return route

    def route_all(
        self, exchange: str, routing_keys: Sequence[str], content: Content | None = None
    ) -> tuple[Queue, ...]:
        """The queues that a publish with several keys reaches, each once. Raises Refused, NeedsContent as `route`."""
        self.check()
        declared = self._exchange(exchange)
        if declared.internal:
            raise access_refused(f"cannot publish to internal {the_exchange(exchange, self.name)}")
        return self.route_dead_letters(exchange, routing_keys, content)

    def route_dead_letters(
        self, exchange: str, routing_keys: Sequence[str], content: Content | None = None
    ) -> tuple[Queue, ...]:
        """The same for what the broker publishes: to any exchange, and nowhere if there is none."""
        return tuple(
            self.queues[name] for name in self._table.route(exchange, *routing_keys, content=content)
        )

    def looks_at_content(self, exchange: str) -> bool:
        """Whether a message may get from there to an exchange that looks at more than its keys."""
        answer = self._lookers.get(exchange)
        if answer is None:
            answer = self._lookers[exchange] = any(map(self._table.wants_content, self._reachable(exchange)))
        return answer

    def _reachable(self, exchange: str) -> list[str]:
        """The exchanges that a message may get to from one, which is the first of them."""
        reached = {exchange: None}
        pending = [exchange]
        while pending:
            name = pending.pop()
            nearest = [
                binding.destination.name
                for binding in self._bindings_from.get(name, ())
                if binding.destination.kind is DestinationKind.EXCHANGE
            ]
            alternate = self._alternate(self.exchanges[name]) if name in self.exchanges else None
            if alternate is not None:
                nearest.append(alternate)
            pending += [other for other in nearest if other not in reached]
            reached.update(dict.fromkeys(nearest))
        return list(reached)

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._lookers.clear()

    # Queues

    def queue(self, name: str, user: Owner | None) -> Queue:
        """The queue, if it is there and this connection may use it; else raises Refused."""
        queue = self.queues.get(name)
        if queue is None:
            raise not_found(the_queue(name, self.name))
        if queue.owner is not None and queue.owner != user:
            raise locked(the_queue(name, self.name))
        return queue

    def declare_queue(self, command: DeclareQueue, name: str, owner: Owner) -> Queue:
        """Find an equivalent queue or make one. Raises Refused."""
        if not name:
            raise precondition_failed("a queue has to have a name")
        arguments = dict(command.arguments)
        arguments.setdefault("x-queue-type", self._default_kind(command))
        if name in self.queues:
            return self._equivalent_queue(command, self.queues[name], owner, arguments)
        thing = the_queue(name, self.name)
        if name.startswith(RESERVED) and not command.server_named:
            raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        args.check_exchange_argument(thing, "x-dead-letter-exchange", arguments)
        kind = args.queue_kind(thing, arguments)
        if command.server_named and kind == args.QUORUM:
            raise precondition_failed(f"Cannot declare a server-named queue for type {args.MODULES[kind]}")
        args.check_queue_arguments(thing, kind, arguments)
        self._check_room_for_queue(name)
        if kind == args.QUORUM:
            _check_quorum_properties(thing, command)
        # An exclusive queue does not outlive its connection, so it is not durable, whatever was asked.
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
        self.restore_queue(queue)
        return queue

    def restore_queue(self, queue: Queue) -> None:
        """Enter a queue whose name is free, and let policies apply to it."""
        self.queues[queue.name] = queue
        self._configure(queue)
        if queue.owner is not None:
            self._owned.setdefault(queue.owner, {})[queue.name] = None
        self._table.add_queue(queue.name)
        self._forget_routes()

    def delete_queue(self, queue: Queue) -> None:
        """Remove a queue that is there, with its bindings."""
        for exchange in self._unbind_all(Destination(DestinationKind.QUEUE, queue.name)):
            self._close(exchange)
        del self.queues[queue.name]
        if queue.owner is not None:
            _remove_from(self._owned, queue.owner, queue.name)
        self._table.remove_queue(queue.name)
        self._forget_routes()

    def owned_queues(self, owner: Owner) -> list[Queue]:
        """The exclusive queues of a connection."""
        return [self.queues[name] for name in self._owned.get(owner, ())]

    def owned_queues_of_node(self, node: str) -> list[Queue]:
        return [queue for queue in self.queues.values() if queue.owner is not None and queue.owner[0] == node]

    # Exchanges

    def declare_exchange(self, command: DeclareExchange, name: str) -> None:
        """Find an equivalent exchange or make one. Raises Refused."""
        if not command.passive:
            _check_exchange(command)
        _check_not_default(name)
        if command.passive:
            self._exchange(name)
        elif name in self.exchanges:
            self._check_equivalent_exchange(self.exchanges[name], command)
        else:
            self._make_exchange(command, name)

    def restore_exchange(self, exchange: Exchange) -> None:
        """Enter an exchange whose name is free."""
        self.exchanges[exchange.name] = exchange
        self._open(exchange)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Remove an exchange with its bindings; one that is not there is gone already. Raises Refused."""
        _check_not_default(name)
        if name.startswith(RESERVED):
            raise access_refused(f"deletion of system {the_exchange(name, self.name)} not allowed")
        if name not in self.exchanges:
            return
        if if_unused and name in self._bindings_from:
            raise precondition_failed(f"{the_exchange(name, self.name)} in use")
        for binding in list(self._bindings_from.get(name, ())):
            self._remove(binding)
        self._close(name)

    # Bindings

    def bind(
        self, source: str, destination: Destination, routing_key: str, arguments: Table, user: Owner | None
    ) -> None:
        """Add a binding; one that is there already stays as it is. Raises Refused."""
        self._check_ends(source, destination, user)
        try:
            self._table.check_binding(source, routing_key, arguments)
        except InvalidBinding as invalid:
            raise precondition_failed(str(invalid)) from None
        self.restore_binding(_binding(source, destination, routing_key, arguments))

    def restore_binding(self, binding: Binding) -> None:
        """Enter a binding between things that are there."""
        if binding in self.bindings:
            return
        self.bindings[binding] = None
        self._bindings_of.setdefault(binding.destination, {})[binding] = None
        self._bindings_from.setdefault(binding.source, {})[binding] = None
        self._table.bind(binding, binding_arguments(binding))
        self._forget_routes()

    def unbind(
        self, source: str, destination: Destination, routing_key: str, arguments: Table, user: Owner | None
    ) -> None:
        """Remove a binding; one that is not there, as one of its ends may not be, is gone already. Raises Refused."""
        _check_not_reply_name(destination)
        _check_not_default_binding(source, destination)
        if destination.kind is DestinationKind.QUEUE and destination.name in self.queues:
            self.queue(destination.name, user)
        binding = _binding(source, destination, routing_key, arguments)
        if binding in self.bindings:
            self._remove(binding)
            if self._lapsed(source):
                self._close(source)

    # Policies

    def put_policy(self, policy: Policy) -> bool:
        """Let a policy hold, at once, in the place of the one with its name; False if it cannot."""
        try:
            self.policies.put(policy)
        except InvalidPolicy:
            return False
        self._policies_changed()
        return True

    def delete_policy(self, name: str, *, operator: bool) -> None:
        self.policies.delete(name, operator=operator)
        self._policies_changed()

    def _policies_changed(self) -> None:
        for queue in self.queues.values():
            self._configure(queue)
        for exchange in self.exchanges.values():
            self._table.set_alternate(exchange.name, self._alternate(exchange))
        self._forget_routes()

    def _configure(self, queue: Queue) -> None:
        policies = self.policies.match(queue.name, queue.kind)
        if policies != queue.policies:
            queue.policies = policies
            queue.configure(settings_of(queue.kind, queue.arguments, *policies))

    def _alternate(self, exchange: Exchange) -> str | None:
        mine = exchange.arguments.get("alternate-exchange")
        return mine if isinstance(mine, str) else self.policies.alternate_exchange(exchange.name)

    # What the above is made of

    def _equivalent_queue(self, command: DeclareQueue, queue: Queue, owner: Owner, arguments: Table) -> Queue:
        thing = the_queue(queue.name, self.name)
        if queue.owner != (owner if command.exclusive else None):
            raise locked(thing)
        durable = command.durable and not command.exclusive
        args.check_equivalent_field(thing, "durable", queue.durable, durable)
        args.check_equivalent_field(thing, "auto_delete", queue.auto_delete, command.auto_delete)
        args.check_equivalent_queue_arguments(thing, queue.kind, queue.arguments, arguments)
        return queue

    def _default_kind(self, command: DeclareQueue) -> str:
        """The type of a queue that is declared without one."""
        is_plain = command.durable and not command.auto_delete and not command.exclusive
        return args.QUORUM if self.default_queue_type == args.QUORUM and is_plain else args.CLASSIC

    def _check_room_for_queue(self, name: str) -> None:
        limit = limit_of(self.limits, "max-queues")
        if limit is not None and len(self.queues) >= limit:
            raise precondition_failed(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({limit}) is reached"
            )

    def _exchange(self, name: str) -> Exchange:
        """The exchange, if it is there. Raises Refused."""
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

    def _make_exchange(self, command: DeclareExchange, name: str) -> None:
        if name.startswith(RESERVED):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        args.check_exchange_argument(the_exchange(name, self.name), "alternate-exchange", command.arguments)
        _, _, kind, _, durable, auto_delete, internal, table = command
        self.restore_exchange(Exchange(name, kind, durable, auto_delete, internal, table))

    def _open(self, exchange: Exchange) -> None:
        self._table.add_exchange(exchange.name, exchange.type, exchange.arguments)
        self._table.set_alternate(exchange.name, self._alternate(exchange))
        self._forget_routes()

    def _close(self, name: str) -> None:
        """Remove an exchange from which nothing leads any more, and those that only led to it."""
        # A client can make such a chain of any length, so this is a loop and not a recursion.
        pending = [name]
        while pending:
            name = pending.pop()
            if name in self.exchanges:
                del self.exchanges[name]
                pending.extend(self._unbind_all(Destination(DestinationKind.EXCHANGE, name)))
                self._table.remove_exchange(name)
        self._forget_routes()

    def _check_ends(self, source: str, destination: Destination, user: Owner | None) -> None:
        _check_not_reply_name(destination)
        _check_not_default_binding(source, destination)
        self._exchange(source)
        if destination.kind is DestinationKind.QUEUE:
            self.queue(destination.name, user)
        else:
            self._exchange(destination.name)

    def _unbind_all(self, destination: Destination) -> list[str]:
        """Remove the bindings to something that goes. Returns the exchanges that lapse with them."""
        bindings = list(self._bindings_of.get(destination, ()))
        for binding in bindings:
            self._remove(binding)
        return [
            source for source in dict.fromkeys(binding.source for binding in bindings) if self._lapsed(source)
        ]

    def _remove(self, binding: Binding) -> None:
        del self.bindings[binding]
        _remove_from(self._bindings_of, binding.destination, binding)
        _remove_from(self._bindings_from, binding.source, binding)
        self._table.unbind(binding)
        self._forget_routes()

    def _lapsed(self, exchange: str) -> bool:
        """An auto-delete exchange goes with its last binding."""
        declared = self.exchanges.get(exchange)
        return declared is not None and declared.auto_delete and exchange not in self._bindings_from


def limit_of(limits: Table, name: str) -> int | None:
    """A limit, if there is one: RabbitMQ takes negative ones for none."""
    limit = limits.get(name)
    return limit if type(limit) is int and limit >= 0 else None


def deleted(vhost: str) -> str:
    """Why nothing can be done there any more."""
    return f"vhost '{vhost}' is deleted"


def _check_quorum_properties(queue: str, command: DeclareQueue) -> None:
    for broken, what in (
        (command.auto_delete, "auto-delete"),
        (command.exclusive, "exclusive-owner"),
        (not command.durable, "non-durable"),
    ):
        if broken:
            raise precondition_failed(f"invalid property '{what}' for {queue}")


def _remove_from(groups: dict[K, dict[V, None]], key: K, item: V) -> None:
    """Take the item out of its group; an empty group goes."""
    group = groups[key]
    del group[item]
    if not group:
        del groups[key]


def _check_exchange(command: DeclareExchange) -> None:
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
    """The table that `_binding` has packed."""
    return unpack(binding.arguments) if binding.arguments else {}
