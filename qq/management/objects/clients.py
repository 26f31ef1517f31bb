"""Reports on connections and channels of all nodes.

Each node knows details of its own clients that are not in the log: addresses, traffic, unacknowledged messages. It
sends them to other nodes on request, as rows of plain data. If a node does not answer, its clients are shown with the
data in the log only.

Invariant: only reads the state. A row shows a connection or a channel at a single moment, in JSON's types.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.management.objects.client_names import ClientNames
from qq.management.objects.sorted_objects import sort_in_slices
from qq.management.reports.clients import ChannelHead, ConnectionHead
from qq.management.statistics.client_watch import ClientWatch
from qq.management.statistics.rates import Rates, deliveries_of, idle_since, with_rates
from qq.management.statistics.session_watch import SessionWatch
from qq.management.time_slices import Slices
from qq.metrics.counters import ClientTotals
from qq.sessions.ports import LinkConnection
from qq.tables import json_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cluster.group.group import Group
    from qq.machine.catalog.catalog import ConnectionState
    from qq.machine.handlers.core import SessionState
    from qq.machine.machine import QueueMachine
    from qq.management.node_queries import AnswerKeys, NodeQueries
    from qq.management.reports.clients import Client
    from qq.sessions.broker import Broker
    from qq.sessions.ports import Connection, Session
    from qq.sessions.session_info import SessionFacts, TlsFacts, Traffic

PROTOCOL = "AMQP"
"""Protocol shown for clients of nodes that do not answer. The log does not have its version."""
CONNECTION_NAMES, SOME_CONNECTIONS = "names-of-connections", "some-connections"
CHANNEL_NAMES, SOME_CHANNELS = "names-of-channels", "some-channels"
SOME_SESSIONS = "some-link-sessions"
"""Topics of questions between nodes."""

_CHURN = "churn"
_by_name = attrgetter("vhost", "name")

Row = dict[str, Any]
_LINKS = ("incoming_links", "outgoing_links")
"""The fields of a session with its links."""


class _Octets(NamedTuple):
    recv_oct: int
    send_oct: int


class ChannelNumbers(NamedTuple):
    """Message counts of a channel, under RabbitMQ's names."""

    publish: int
    confirm: int
    return_unroutable: int
    drop_unroutable: int
    deliver: int
    deliver_no_ack: int
    get: int
    get_no_ack: int
    get_empty: int
    deliver_get: int
    redeliver: int
    ack: int


class _Churn(NamedTuple):
    """Counts of opened and closed connections, channels and queues, under RabbitMQ's names."""

    connection_created: int
    connection_closed: int
    channel_created: int
    channel_closed: int
    queue_declared: int
    queue_created: int
    queue_deleted: int


class ClientReports:
    """Shows the connections and channels of all nodes."""

    def __init__(self, broker: Broker, group: Group, queries: NodeQueries) -> None:
        self._broker = broker
        self._group = group
        self._queries = queries
        self._rates = Rates()
        self._active_ms: dict[int, int] = {}
        """Session -> cluster time (ms) of the sample that has seen its last event."""
        self.watch = ClientWatch()
        self.session_watch = SessionWatch(broker.throttle)
        self.totals = ClientTotals()
        """Totals of this node's clients, as of the last sample."""
        self._connection_names: ClientNames[ConnectionState, tuple[str, str]] = ClientNames(
            broker.name, queries, CONNECTION_NAMES, self._own_connection_name
        )
        self._channel_names: ClientNames[SessionState, tuple[str, int, str]] = ClientNames(
            broker.name, queries, CHANNEL_NAMES, self._own_channel_name
        )
        queries.answer_keys(SOME_CONNECTIONS, self._own_connections)
        queries.answer_keys(SOME_CHANNELS, self._own_channels)
        queries.answer_keys(SOME_SESSIONS, self._own_link_sessions)

    @property
    def _machine(self) -> QueueMachine:
        return self._broker.machine

    async def connection_heads(self) -> Sequence[ConnectionHead]:
        """Return the connections of all nodes, by `vhost` and `name`. This node requests each name once."""
        connections = self._machine.catalog.connections
        rows = list(connections.items())
        names = await self._connection_names.find(rows)
        heads: list[ConnectionHead] = []
        slices = Slices()
        for place, row in rows:
            if connections.get(place) is row:
                name, client = names.get(place) or (_name_in_log(row), "")
                heads.append(ConnectionHead(*place, name, row.vhost.name, row.user, client))
            await slices.give_way()
        return await sort_in_slices(heads, _by_name)

    async def channel_heads(self) -> Sequence[ChannelHead]:
        """Return the channels of all nodes that answer, by `vhost` and `name`, as `connection_heads` does."""
        sessions = self._machine.sessions
        channels = [item for item in list(sessions.items()) if item[1].user is not None]
        names = await self._channel_names.find(channels)
        heads: list[ChannelHead] = []
        slices = Slices()
        for place, session in channels:
            if place in names and session.user is not None and sessions.get(place) is session:
                connection, number, client = names[place]
                name = _channel_name(connection, number)
                heads.append(ChannelHead(*place, name, session.vhost.name, session.user, connection, client))
            await slices.give_way()
        return await sort_in_slices(heads, _by_name)

    async def connections_of(self, heads: Sequence[ConnectionHead]) -> Sequence[Row]:
        """Return these connections in their order. If a node does not answer, the data in the log is used."""
        places = [(head.node, head.id) for head in heads]
        answered = await self._rows_at(SOME_CONNECTIONS, self._own_connections, places)
        rows = {(row["node"], row["id"]): row for row in answered}
        connections = self._machine.catalog.connections
        found: list[Row] = []
        for head in heads:
            key = head.node, head.id
            if key in rows:
                found.append(rows[key])
            elif key in connections:  # otherwise it has just been closed
                found.append(_logged_row(connections[key]))
        return found

    async def channels_of(self, heads: Sequence[ChannelHead]) -> Sequence[Row]:
        """Return these channels in their order, without those of nodes that do not answer."""
        places = [head[:2] for head in heads]
        rows = {(row["node"], row["id"]): row for row in await self.channels_at(places)}
        return [rows[place] for place in places if place in rows]

    async def link_sessions_of(self, connection: Client) -> Sequence[Row] | None:
        """Return the sessions of AMQP 1.0 of a connection's row; None if it uses a different protocol.

        The list is empty if the node of the connection does not answer.
        """
        if "channel_max" not in connection:
            return []
        if "container_id" not in connection:
            return None
        node, number = connection["node"], connection["id"]
        keys = [[number, channel] for channel in range(connection["channel_max"] + 1)]
        if node != self._broker.name:
            return await self._queries.rows_with_keys(node, SOME_SESSIONS, keys)
        rows: list[Row] = []
        slices = Slices()
        for _, row in self._own_link_sessions(keys):
            rows.append(row)
            await slices.give_way()
        return rows

    async def channels_at(self, places: Iterable[tuple[str, int]]) -> Sequence[Row]:
        """Return the channels at these places (node, id), without those of nodes that do not answer."""
        return await self._rows_at(SOME_CHANNELS, self._own_channels, places)

    async def _rows_at(
        self, topic: str, own_rows: AnswerKeys, places: Iterable[tuple[str, int]]
    ) -> list[Row]:
        """Return the rows of a topic at these places (node, number), without those of nodes that do not answer."""
        numbers: dict[str, list[int]] = {}
        for node, number in dict.fromkeys(places):
            numbers.setdefault(node, []).append(number)
        rows: list[Row] = []
        slices = Slices()
        for _, row in own_rows(numbers.pop(self._broker.name, [])):
            rows.append(row)
            await slices.give_way()
        queries = [self._queries.rows_with_keys(node, topic, some) for node, some in numbers.items()]
        return [*rows, *chain.from_iterable(await asyncio.gather(*queries))]

    # Clients of this node

    def churn(self) -> Mapping[str, Any]:
        """Return counts of opened and closed connections and channels of this node, with their rates.

        They include the queues of the cluster.
        """
        churn = self._churn()
        return with_rates(churn._asdict(), self._rates.per_second(_CHURN, churn, self._group.time_ms()))

    def _churn(self) -> _Churn:
        counters, catalog = self._broker.counters, self._machine.catalog
        return _Churn(
            connection_created=counters.connections_opened,
            connection_closed=counters.connections_closed,
            channel_created=counters.channels_opened,
            channel_closed=counters.channels_closed,
            queue_declared=counters.queues_declared,
            queue_created=catalog.queues_declared,
            queue_deleted=catalog.queues_declared - catalog.queue_count,
        )

    async def sample(self) -> None:
        """Sample the numbers of all clients of this node for their rates, and find slow clients."""
        connections, sessions = self._broker.connections, self._broker.sessions
        self._rates.sample(_CHURN, self._churn(), self._group.time_ms())
        slices, watch = Slices(), self.watch
        watch.begin_pass(self._group.time_ms())
        totals = ClientTotals(traffic=watch.transferred)
        for connection in list(connections.values()):
            facts, now_ms = connection.facts(), self._group.time_ms()
            self._rates.sample(connection.id, _octets(facts.traffic), now_ms)
            is_held = self._broker.throttle.delays(connection.id)
            watch.check(connection, facts, is_held=is_held, now_ms=now_ms)
            channels = connection.channel_count if facts.sessions is None else facts.sessions
            totals.count_connection(channels, facts.links)
            await slices.give_way()
        watch.end_pass()
        active_ms: dict[int, int] = {}
        for session in list(sessions.values()):
            facts = session.facts()
            if facts is not None:
                consuming = totals.amqp091 if facts.link is None else totals.amqp10
                consuming.consumers += facts.consumers
                totals.unacknowledged += facts.unacknowledged
                totals.unconfirmed += facts.unconfirmed
                totals.uncommitted += facts.uncommitted
                totals.uncommitted_acks += facts.uncommitted_acks
                self.session_watch.check(session, facts, self._group.time_ms())
                key, numbers = session.session, self._channel_numbers(session, facts)
                is_same, now_ms = numbers == self._rates.last(key), self._group.time_ms()
                active_ms[key] = self._active_ms.get(key, now_ms) if is_same else now_ms
                self._rates.sample(key, numbers, now_ms)
            await slices.give_way()
        self.session_watch.end_pass()
        self.totals, self._active_ms = totals, active_ms
        self._rates.end_pass()

    def _own_connection_name(self, number: int) -> tuple[str, str] | None:
        connection = self._broker.connections.get(number)
        return None if connection is None else (connection.name, _client_name(connection))

    def _own_channel_name(self, number: int) -> tuple[str, int, str] | None:
        session = self._broker.sessions.get(number)
        facts = None if session is None else session.facts()
        if session is None or facts is None:
            return None
        return session.connection.name, facts.number, _client_name(session.connection)

    def _own_connections(self, numbers: Sequence[int]) -> Iterator[tuple[int, Row]]:
        catalog, connections = self._machine.catalog, self._broker.connections
        for number in numbers:
            connection = connections.get(number)
            row = catalog.connections.get((self._broker.name, number))
            if connection is not None and row is not None:
                yield number, self._connection_row(connection, row)

    def _connection_row(self, connection: Connection, row: ConnectionState) -> Row:
        facts, properties = connection.facts(), json_value(connection.client_properties)
        octets = _octets(facts.traffic)
        rates = self._rates.per_second(connection.id, octets, self._group.time_ms())
        is_held = facts.is_blocked or self._broker.throttle.delays(row.id)
        return _logged_row(row) | {
            "state": "closing" if row.closing else "flow" if is_held else "running",
            "name": connection.name,
            "user_provided_name": None,
            **given_name(connection),
            "protocol": connection.protocol,
            "host": facts.host,
            "port": facts.port,
            "peer_host": connection.peer_host,
            "peer_port": connection.peer_port,
            "channels": connection.channel_count if facts.sessions is None else facts.sessions,
            **({} if facts.links is None else {"links": facts.links}),
            "client_properties": properties,
            "connected_at": facts.connected_at_ms,
            "auth_mechanism": facts.auth_mechanism,
            "frame_max": facts.frame_max,
            "channel_max": facts.channel_max,
            **({"container_id": facts.container_id} if facts.container_id else {}),
            "timeout": facts.timeout_s,
            "recv_cnt": facts.traffic.reads,
            "send_cnt": facts.traffic.writes,
            "send_pend": facts.traffic.octets_waiting,
            **with_rates(octets._asdict(), rates),
            **_tls(facts.tls),
        }

    def _own_link_sessions(self, keys: Sequence[Sequence[int]]) -> Iterator[tuple[Sequence[int], Row]]:
        """Yield the rows of sessions of AMQP 1.0. A key is the number of a connection, and a channel number."""
        for key in keys:
            number, channel = key
            connection = self._broker.connections.get(number)
            session = connection.link_session(channel) if isinstance(connection, LinkConnection) else None
            if session is not None:
                yield (
                    key,
                    session._asdict()
                    | {name: [link._asdict() for link in getattr(session, name)] for name in _LINKS},
                )

    def _own_channels(self, numbers: Sequence[int]) -> Iterator[tuple[int, Row]]:
        sessions = self._broker.sessions
        for number in numbers:
            session = sessions.get(number)
            facts = None if session is None else session.facts()
            if session is not None and facts is not None:
                yield number, self._channel_row(session, facts)

    def _channel_row(self, session: Session, facts: SessionFacts) -> Row:
        connection = session.connection
        numbers = self._channel_numbers(session, facts)
        now_ms = self._group.time_ms()
        rates = self._rates.per_second(session.session, numbers, now_ms)
        is_same = numbers == self._rates.last(session.session)
        idle = idle_since(self._active_ms.get(session.session, 0), now_ms) if is_same else None
        is_held = connection.facts().is_blocked or self._broker.throttle.delays(connection.id)
        return {
            "id": session.session,
            "name": _channel_name(connection.name, facts.number),
            "node": self._broker.name,
            "number": facts.number,
            "user": connection.user,
            "user_who_performed_action": connection.user,
            "vhost": connection.vhost,
            "state": "flow" if is_held else "running",
            "confirm": facts.confirming,
            "transactional": facts.transactional,
            "consumer_count": facts.consumers,
            "messages_unacknowledged": facts.unacknowledged,
            "messages_unconfirmed": facts.unconfirmed,
            "messages_uncommitted": facts.uncommitted,
            "acks_uncommitted": facts.uncommitted_acks,
            "prefetch_count": facts.prefetch,
            "global_prefetch_count": facts.prefetch_of_all,
            "connection_details": {
                "name": connection.name,
                "peer_host": connection.peer_host,
                "peer_port": connection.peer_port,
                **given_name(connection),
            },
            "message_stats": with_rates(numbers._asdict(), rates),
            **({} if facts.link is None else facts.link._asdict()),
            **({} if idle is None else {"idle_since": idle}),
        }

    def _channel_numbers(self, session: Session, facts: SessionFacts) -> ChannelNumbers:
        counts, state = facts.counts, self._machine.sessions.get((self._broker.name, session.session))
        dropped = 0 if state is None else state.dropped
        return ChannelNumbers(
            counts.published, counts.confirmed, counts.returned, dropped, *deliveries_of(counts)
        )


def given_name(connection: Connection) -> Row:
    """Return the field with the name that the client has given its connection; it is left out without a name."""
    name = json_value(connection.client_properties.get("connection_name"))
    return {"user_provided_name": name} if isinstance(name, str) else {}


def _client_name(connection: Connection) -> str:
    """Return the name that the client has given its connection, or an empty text."""
    return given_name(connection).get("user_provided_name", "")


def _name_in_log(row: ConnectionState) -> str:
    return f"{row.node}:{row.id}"


def _channel_name(connection: str, number: int) -> str:
    return f"{connection} ({number})"


def _logged_row(row: ConnectionState) -> Row:
    """Return the row of a connection with the data in the log only."""
    return {
        "id": row.id,
        "name": _name_in_log(row),
        "node": row.node,
        "vhost": row.vhost.name,
        "user": row.user,
        "user_who_performed_action": row.user,
        "state": "closing" if row.closing else "running",
        "protocol": PROTOCOL,
        "type": "network",
        "client_properties": {},
    }


def _tls(facts: TlsFacts | None) -> Row:
    """Return the TLS fields of a row. OpenSSL's cipher name includes key exchange and hash."""
    if facts is None:
        shown: Row = dict.fromkeys(("ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash"))
    else:
        shown = {
            "ssl_protocol": facts.version.lower(),
            "ssl_key_exchange": None,
            "ssl_cipher": facts.cipher,
            "ssl_hash": None,
        }
    return shown | {
        "ssl": facts is not None,
        "peer_cert_subject": facts.subject if facts else None,
        "peer_cert_issuer": facts.issuer if facts else None,
        "peer_cert_validity": facts.validity if facts else None,
    }


def _octets(traffic: Traffic) -> _Octets:
    return _Octets(traffic.octets_in, traffic.octets_out)
