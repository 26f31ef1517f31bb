"""The ports of the sessions: what they ask of the log, and what a protocol implements to be told what the log says.

A protocol tells the `Broker` of its clients, in this order:

    connection_opened       there is a socket
    logins.attempt          who it is; of somebody who is not admitted the log never hears
    connect                 the log is asked to let it into its virtual host, and answers `admitted` or `not_admitted`
    session_opened          for each session, at once behind `connect` if need be; there is no answer unless it `failed`
    submissions             what the client wants in its sessions: add, publish, settle, credit, commit
    session_ended           also behind `failed`: another session may begin in the same connection
    connection_closed       the socket is gone; sessions end before

What a client wants is asked of `Access` first. What that refuses is asked again behind `submissions.read_barrier`, with
`Access.certain`, because this node may be behind. All that is asked for is counted (`Connection.count_uncommitted`): a
connection with more than `Broker.uncommitted_bytes_max`, or half of that while `Broker.is_full`, reads no more from its
client, and calls `Broker.waits_for_room`.

Invariant: nothing here belongs to one protocol of clients. A client's connection is in one virtual host, and has
sessions, which the log knows by numbers that are never used twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qq.sessions.batch import Payer, Unconfirmed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cluster.runtime.ports import Buffer
    from qq.machine.protocol.effects import (
        ConnectionForced,
        Deliver,
        DeliveryTimeout,
        DirectReply,
        Failed,
        Result,
        Returned,
    )
    from qq.scopes import Scopes
    from qq.sessions.fair_queue import Lane
    from qq.sessions.session_info import ConnectionFacts, SessionFacts


class MessageStore(Protocol):
    """The entries of a log, which hold the messages."""

    @property
    def applied_index(self) -> int:
        """The index of the newest entry that was applied: those behind it may still give way to others."""
        ...

    def payload(self, index: int) -> bytes | None:
        """The bytes of the entry at `index`; None if it must be read from the disk, or is not there."""
        ...

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """Make a function that reads the entries at `indexes`, on any thread.

        It may leave out those behind the one with which it has `bytes_max` octets. This method and the function raise
        `cluster.log.segment.EntryGone` if an entry is not held, the function also EntryMoved.
        """
        ...


class Log(MessageStore, Protocol):
    """The replicated log of a node."""

    def submit(self, payload: Sequence[Buffer], weight: int = 0) -> int:
        """Have a batch carried out once on every node; returns its sequence number, which is told when that is done.

        `weight` is how long that will take every node, in milliseconds.
        """
        ...

    def disk_failed(self, error: Exception) -> None:
        """Report that a read of the log has failed for a reason that the reader does not know."""
        ...

    def why_undecided(self) -> str | None:
        """Why nothing is committed now, and who does not answer; None if a leader is known."""
        ...

    def undecided(self) -> Collection[str]:
        """The other nodes that may have died a moment ago: the cluster gives them up soon, or they live."""
        ...


class Connection(Payer, Protocol):
    """A client's connection, as the log knows it."""

    id: int
    """The number of the connection, which no other connection or session has while the process lives."""
    vhost: str
    user: str
    scopes: Scopes | None
    """What the user may do, if a token vouches for the user; None: what the log says."""
    in_log: bool
    """Whether the log was asked to let the connection in: then the log has to hear when it is gone."""
    is_admitted: bool
    """Whether the log has let the connection in. Only the broker writes this and `in_log`."""

    @property
    def lane(self) -> Lane:
        """The lane in which what this connection asks for waits."""
        ...

    # What operators see

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str:
        """The name of the protocol with its version, as RabbitMQ writes it: "AMQP 0-9-1"."""
        ...

    @property
    def peer_host(self) -> str: ...

    @property
    def peer_port(self) -> int: ...

    @property
    def channel_count(self) -> int: ...

    @property
    def client_properties(self) -> Mapping[str, object]:
        """What the client has told of itself when it connected."""
        ...

    def facts(self) -> ConnectionFacts: ...

    @property
    def waits_for_log(self) -> bool:
        """Whether something was asked for that the log has not answered yet."""
        ...

    # What the log says

    def admitted(self) -> None:
        """The log has let the connection into its virtual host; this is told once."""
        ...

    def not_admitted(self, failure: Failed, /) -> None:
        """The log has refused to let the connection into its virtual host."""
        ...

    def told_to_close(self, effect: ConnectionForced, /) -> None:
        """Close the connection: an operator wants it, or its virtual host or its user is gone."""
        ...

    def alarm_changed(self) -> None:
        """`Broker.alarm` has changed: from now on publishers have to wait, or need not any more."""
        ...

    def shut_down(self, text: str, /) -> None:
        """Tell the client to go to another node, and why: this one stops, is under maintenance, or has no majority."""
        ...

    def close_now(self) -> None:
        """The log knows nothing of the connection and its sessions any more: nothing more may be asked for in them."""
        ...


class SessionConsumer(Protocol):
    """A consumer of a session."""

    @property
    def id(self) -> int: ...

    @property
    def started(self) -> bool:
        """Whether the log has answered that the consumer is there."""
        ...

    @property
    def next_id(self) -> int:
        """The message id of the first message that this consumer has not been given yet."""
        ...


class Publisher(Unconfirmed, Protocol):
    """The publisher of a session, whose messages wait for the log."""

    @property
    def session(self) -> int: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def number(self) -> int:
        """The number of the channel in the frames of its messages, as they are stored."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the log has refused something of its session: it passes over what is asked for behind that."""
        ...

    @property
    def published(self) -> int:
        """The publish sequence number of its last message; only messages that are to be confirmed are counted."""
        ...


class PatientPublisher(Publisher, Protocol):
    """A publisher that can be made to wait."""

    def go_on(self) -> None:
        """Publish what had to wait, as far as it may pass now, and wait again with the rest."""
        ...


class Session(Protocol):
    """A session: it is told what became of what it asked for, in the order of the log.

    A session that neither publishes nor consumes is only told `replied`, `failed` and `leader_changed`.
    """

    @property
    def session(self) -> int:
        """The number of the session in the log."""
        ...

    @property
    def connection(self) -> Connection: ...

    def facts(self) -> SessionFacts | None:
        """What operators see of the session; None if it is no client's."""
        ...

    # Answers

    def replied(self, result: Result, /) -> None:
        """Take the answer to the oldest command that waits for one (`qq.machine.protocol.commands.Method`)."""
        ...

    def failed(self, failure: Failed, /) -> None:
        """A command is refused, and what was asked for behind it is passed over: the session has to end."""
        ...

    @property
    def answered(self) -> int:
        """How many answers the log has given to the session, which is the number of the last one."""
        ...

    @property
    def waits_for_answer(self) -> bool: ...

    # What was published

    def refuse(self, first: int, last: int, /) -> None:
        """Tell the publisher that these sequence numbers reached no queue, and that all before them are safe."""
        ...

    def unroutable(self, effect: Returned, /) -> None: ...

    # What is consumed

    @property
    def consumers(self) -> Sequence[SessionConsumer]:
        """The consumers that messages may still come for."""
        ...

    def consumer(self, consumer_id: int, /) -> SessionConsumer | None: ...

    def deliver(self, effect: Deliver, /) -> None: ...

    def direct_reply(self, effect: DirectReply, /) -> None: ...

    def timed_out(self, effect: DeliveryTimeout, /) -> None: ...

    def consumer_gone(self, consumer_id: int, /) -> None:
        """The consumer was cancelled: its queue was deleted, or it has not acknowledged for too long."""
        ...

    def needed_from(self) -> int | None:
        """The index of the first entry with something that waits for the client and is in no queue now, or None."""
        ...

    # The cluster

    def leader_changed(self) -> None: ...
