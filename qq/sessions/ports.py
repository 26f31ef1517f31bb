"""The ports of the sessions: the log below them, and the interface that a client protocol must implement.

A protocol calls the `Broker` for each client in this order:

    connection_opened       there is a socket
    logins.attempt          checks the credentials; the log never sees a client that fails here
    connect                 asks the log to admit the connection to its virtual host; then `admitted` or `not_admitted`
    session_opened          for each session, also directly after `connect`; the only answer is `failed`, if it fails
    submissions             requests of the sessions: add, publish, settle, credit, commit, read
    session_ended           also after `failed`; the connection may then begin another session
    connection_closed       the socket is closed; all sessions must have ended before

Before each request, the protocol must ask `Access`. It repeats a refused check behind `submissions.read`, with
`Access.certain`, because this node may be behind. All requests are counted (`Connection.count_uncommitted`). A
connection with more than `Broker.uncommitted_bytes_max` octets, or half of that while `Broker.is_full`, must stop
reading from its client and call `Broker.waits_for_room`.

Invariant: the ports belong to no particular client protocol. A client's connection is in a single virtual host. It has
sessions, which the log knows by numbers that are never reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from qq.sessions.batch import Payer, Unconfirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cluster.runtime.ports import Buffer
    from qq.machine.protocol.effects import (
        ConnectionForced,
        ConsumerState,
        Deliver,
        DeliveriesReleased,
        DeliveryTimeout,
        DirectReply,
        Failed,
        Result,
        Returned,
    )
    from qq.scopes import Scopes
    from qq.sessions.lanes import Lane
    from qq.sessions.session_info import ConnectionFacts, LinkSessionFacts, SessionFacts


class MessageStore(Protocol):
    """The stored entries of a log, which hold the messages."""

    @property
    def applied_index(self) -> int:
        """The index of the newest applied entry. The entries behind it may still be overwritten."""
        ...

    def payload(self, index: int) -> bytes | None:
        """Return the bytes of the entry at `index`, or None if it must be read from the disk or does not exist."""
        ...

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """Return a function that reads the entries at `indexes` on any thread.

        The function may stop after the entry with which it has read `bytes_max` octets. This method and the function
        raise `cluster.log.segment.EntryNotFound` if an entry is not stored; the function may also raise EntryMoved.
        """
        ...


class Log(MessageStore, Protocol):
    """The replicated log of a node."""

    def propose(self, payload: Sequence[Buffer], weight: int = 0, *, may_wait: bool = False) -> int:
        """Propose a batch, which every node applies exactly once, and return its sequence number.

        The sequence number is reported when the batch is applied. `weight` is the estimated time of applying it, in
        milliseconds of each node. The leader may keep a batch that `may_wait` for its next entry, for a moment.
        """
        ...

    @property
    def can_read(self) -> bool:
        """Whether `read` would probably succeed now. If not, an entry must be used instead."""
        ...

    def read(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call `done` when this node has applied all entries committed before this call; no entry is needed.

        Call `failed` instead if the leader gives no answer.
        """
        ...

    def send_message(self, peer: str, data: Sequence[Buffer]) -> bool:
        """Send a message to a node's broker without the log, at most once; return False if that is not possible now."""
        ...

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        """Pass the messages of other nodes' brokers to `receive`."""
        ...

    def disk_failed(self, error: Exception) -> None:
        """Report that a read of the log has failed for a reason unknown to the reader."""
        ...

    def why_undecided(self) -> str | None:
        """Return why no request of this node is committed now; None if a leader is known and hears this node."""
        ...

    def undecided(self) -> Collection[str]:
        """Return the other nodes that may have just died: the cluster soon evicts them, or finds them alive."""
        ...


class Connection(Payer, Protocol):
    """A client's connection, as the log knows it."""

    id: int
    """The number of the connection. No other connection or session of the process ever has it."""
    vhost: str
    user: str
    scopes: Scopes | None
    """The user's permissions, if a token vouches for the user; None if the permissions in the log apply."""
    in_log: bool
    """Whether the log was asked to admit the connection, so that the end of the connection must be submitted, too."""
    is_admitted: bool
    """Whether the log has admitted the connection. Only the broker writes this and `in_log`."""

    @property
    def lane(self) -> Lane:
        """The lane in which this connection's requests wait."""
        ...

    # For operators

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str:
        """The protocol's name with its version, as RabbitMQ writes it: "AMQP 0-9-1"."""
        ...

    @property
    def peer_host(self) -> str: ...

    @property
    def peer_port(self) -> int: ...

    @property
    def channel_count(self) -> int: ...

    @property
    def unread_bytes(self) -> int:
        """Received octets in the node's memory that no request has used yet."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Octets in the node's memory that the client has not taken yet."""
        ...

    @property
    def client_properties(self) -> Mapping[str, object]:
        """The properties that the client sent about itself when it connected."""
        ...

    def facts(self) -> ConnectionFacts: ...

    @property
    def waits_for_log(self) -> bool:
        """Whether a request of the connection is still unanswered by the log."""
        ...

    # Events from the log

    def admitted(self) -> None:
        """React to the log's admission of the connection to its virtual host. Called once."""
        ...

    def not_admitted(self, failure: Failed, /) -> None:
        """React to the log's refusal to admit the connection to its virtual host."""
        ...

    def force_close(self, effect: ConnectionForced, /) -> None:
        """Close the connection, because an operator wants it or its virtual host or user was deleted."""
        ...

    def alarm_changed(self) -> None:
        """React to a change of `Broker.alarm`: publishers must wait, or may continue."""
        ...

    def shut_down(self, text: str, /) -> None:
        """Close the connection with the reason: this node stops, is under maintenance, or has no majority.

        The client should connect to another node.
        """
        ...

    def forget(self, text: str, /) -> None:
        """Close the connection with the reason: the log has forgotten it and its sessions.

        Requests that they submit in this call are dropped, and they must submit no more afterwards.
        """
        ...


@runtime_checkable
class LinkConnection(Protocol):
    """A connection whose client has sessions of links, as in AMQP 1.0."""

    def link_session(self, channel: int, /) -> LinkSessionFacts | None:
        """Return the session with this channel number, for operators; None if there is none."""
        ...


class Replies(NamedTuple):
    """Replies to a requester, in the form of the messages between nodes."""

    session: int
    consumer: int
    name: str
    after_index: int
    """The node must have applied this log index before it delivers the replies; 0 if no index matters."""
    sent_index: int
    """The log index up to which the responder's node had applied all entries when it sent the replies."""
    publisher: int
    """The responder's session at its node."""
    frames_channel: int
    """The channel number in the frames of the messages."""
    messages: list[bytes]
    """The messages in stored form: content header and body frames."""


class SessionConsumer(Protocol):
    """A consumer of a session."""

    @property
    def id(self) -> int: ...

    @property
    def started(self) -> bool:
        """Whether the log has confirmed that the consumer exists."""
        ...

    @property
    def next_id(self) -> int:
        """The message id of the first message that has not been delivered to this consumer yet."""
        ...


class Publisher(Unconfirmed, Protocol):
    """The publisher of a session. Its messages wait for the log."""

    @property
    def session(self) -> int: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def number(self) -> int:
        """The channel number in the stored frames of its messages."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the log has refused a request of its session.

        The log then skips all later requests of the session.
        """
        ...

    @property
    def published(self) -> int:
        """The publish sequence number of its last message. Only messages that need a confirm are counted."""
        ...

    def refuse(self, first: int, last: int, queue: str, /) -> None:
        """Refuse these publish sequence numbers, for which `queue` has no room, and confirm all earlier numbers."""
        ...

    def unroutable(self, effect: Returned, /) -> None:
        """Return messages that reached no queue to the client."""
        ...


class LimitedConnection(Protocol):
    """A connection to which limits of publishing apply."""

    @property
    def id(self) -> int: ...

    @property
    def vhost(self) -> str: ...

    @property
    def user(self) -> str: ...


class PatientPublisher(Protocol):
    """A publisher that can be delayed by limits of publishing."""

    @property
    def session(self) -> int: ...

    @property
    def connection(self) -> LimitedConnection: ...

    def resume(self) -> None:
        """Publish the delayed messages as far as they may pass now, and wait again with the rest."""
        ...


class SessionConsumers(Protocol):
    """The consumers of a session. Their messages arrive here, in the order of the log."""

    @property
    def all(self) -> Sequence[SessionConsumer]:
        """The consumers for which messages may still arrive."""
        ...

    def find(self, consumer_id: int, /) -> SessionConsumer | None: ...

    def deliver(self, effect: Deliver, /) -> None: ...

    def direct_reply(self, effect: DirectReply, /) -> None: ...

    def replies(self, node: str, replies: Replies, /) -> None:
        """Deliver replies that a responder at this node has sent without the log."""
        ...

    def timed_out(self, effect: DeliveryTimeout, /) -> None: ...

    def cancelled(self, consumer_id: int, /) -> None:
        """End a consumer: its queue was deleted, or an acknowledgement has taken too long."""
        ...

    def leader_changed(self) -> None: ...


@runtime_checkable
class CreditedConsumers(SessionConsumers, Protocol):
    """The consumers of a session whose client sets their credit."""

    def state(self, effect: ConsumerState, /) -> None:
        """React to the state of a consumer: a drain has ended, the client wanted it, or it has become active."""
        ...

    def released(self, effect: DeliveriesReleased, /) -> None:
        """Tell the client that it no longer holds messages, because it has not settled them in time."""
        ...


class Session(Protocol):
    """A session of a client. The log's answers to its requests arrive here, in the order of the log."""

    @property
    def session(self) -> int:
        """The number of the session in the log."""
        ...

    @property
    def connection(self) -> Connection: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def consumers(self) -> SessionConsumers | None:
        """The consumers of the session; None if it never has any."""
        ...

    def facts(self) -> SessionFacts | None:
        """Return the session's figures for operators; None if it belongs to no client."""
        ...

    # Answers

    def replied(self, result: Result, /) -> None:
        """Take the answer to the oldest command that waits for an answer (`qq.machine.protocol.commands.Method`)."""
        ...

    def failed(self, failure: Failed, /) -> None:
        """End the session, because the log has refused a command and skips all later requests of the session."""
        ...

    @property
    def answered(self) -> int:
        """The number of answers that the log has given to the session, which is also the number of the last answer."""
        ...

    @property
    def waits_for_answer(self) -> bool: ...

    def needed_from(self) -> int | None:
        """Return the lowest log index with a message that waits for the client and is in no queue now, or None."""
        ...
