"""Requests of sessions that wait in lanes: parts of the batches that go to the log.

Invariant: the price of a part is computed when a batch is about to take it. If it cannot be found in this pass of the
event loop, the part waits for the next pass, and its lane with it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.catalog.limits import table_bytes
from qq.machine.handlers.cost_estimate import (
    BATCH_STEPS_MAX,
    COMMIT_STEPS,
    FRAGMENT_STEPS,
    SETTLED_STEPS,
    TRANSACTION_STEPS_MAX,
    Price,
)
from qq.machine.protocol.commands import Enqueue, JoinFragments, Publish, SessionDown, StoreFragment
from qq.sessions.batch import BATCH_BYTES_MAX, STEP_BYTES, PartOutcome
from qq.stored.kinds import head_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.protocol.commands import Command, Settlement, StageMessages
    from qq.sessions.batch import Batch
    from qq.sessions.lanes import Lane
    from qq.sessions.ports import Publisher
    from qq.stored.properties import Attributes

COMMAND_BYTES = 256
"""Octets counted for a command, besides its texts and tables. In the log it has some 30, but every node spends some 10
us on it, and must finish a batch within few milliseconds."""
NUMBER_BYTES = 9
"""Octets counted for each number in a list of a command. In the log it is never longer."""
MESSAGE_BYTES = 64
"""Octets counted for a message, besides its own."""


class PendingCommand:
    """A command that waits in a lane, with the octets that it counts as."""

    __slots__ = ("_command", "_node", "_steps", "size")

    def __init__(self, node: str, command: Command, size: int) -> None:
        self.size = size
        self._node = node
        self._command = command
        self._steps = 0
        """The price of the command in steps, after `price` has computed it."""

    def take(self, batch: Batch, lane: Lane, costs: Costs) -> PartOutcome:
        if not batch.has_room(self.price(costs), self.size):
            return PartOutcome.NO_ROOM
        self.add_to(batch, lane)
        return PartOutcome.TAKEN

    def price(self, costs: Costs) -> int:
        """Compute the price in steps now, because the objects of the command may have grown while it waited."""
        self._steps = costs.steps(self._node, self._command)
        return self._steps

    def add_to(self, batch: Batch, lane: Lane) -> None:
        """Add the command to the batch, at the price that `price` has computed."""
        batch.add(lane, self._command, self._steps, self.size)


class _LargeMessage:
    """A message that is stored in fragments of a session, before its head is published."""

    __slots__ = ("_stored", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self._stored = 0
        """End of the stored octets of the message; 0 without any."""

    def store(self, message: bytes, batch: Batch, lane: Lane) -> int:
        """Add the next fragment to the batch, and return its size, or 0 if the batch has no room for it."""
        start = self._stored or head_stop(message)
        end = min(start + batch.fragment_bytes, len(message))
        if not batch.has_room(FRAGMENT_STEPS, COMMAND_BYTES + end - start):
            return 0
        fragment = memoryview(message)[start:end]
        batch.publish(lane, StoreFragment(self.session), [fragment], FRAGMENT_STEPS, len(fragment))
        self._stored = end
        return end - start

    def is_stored(self, message: bytes) -> bool:
        """Return whether the batches have all octets of the message behind its head."""
        return self._stored == len(message)

    def join(self, batch: Batch, lane: Lane) -> bool:
        """Let the next message of the batch have the stored fragments, and return whether there are any."""
        if not self._stored:
            return False
        batch.add(lane, JoinFragments(self.session), 0, 0)
        self._stored = 0
        return True


class PendingStep:
    """Messages for a sink that wait in a lane, with their command."""

    __slots__ = ("_command", "_large", "_messages", "size")

    def __init__(self, command: StageMessages, messages: Sequence[bytes], session: int) -> None:
        """`session` is a number that only this step has. A large message is stored in fragments of this session."""
        self._command = command
        self._messages = messages
        self._large = _LargeMessage(session)
        self.size = bytes_of_command(command) + sum(map(len, messages)) + MESSAGE_BYTES * len(messages)

    def take(self, batch: Batch, lane: Lane, costs: Costs) -> PartOutcome:
        message = self._messages[0]
        if _is_large(message, batch.large_bytes):
            return self._store_fragment(message, batch, lane)
        steps = costs.staging_steps(self._command)
        if steps is None:
            return PartOutcome.PUT_OFF
        if not batch.has_room(steps, self.size):
            return PartOutcome.NO_ROOM
        is_joined = self._large.join(batch, lane)
        batch.publish(lane, self._command, self._messages, steps, self.size)
        if is_joined:
            batch.add(lane, SessionDown(self._large.session), FRAGMENT_STEPS, 0)
        return PartOutcome.TAKEN

    def _store_fragment(self, message: bytes, batch: Batch, lane: Lane) -> PartOutcome:
        """Add a fragment of a large message, which is a step by itself, to the batch."""
        size = self._large.store(message, batch, lane)
        if not size:
            return PartOutcome.NO_ROOM
        self.size -= size
        if self._large.is_stored(message):
            self._messages = [message[: head_stop(message)]]
        return PartOutcome.PARTLY_TAKEN


class Callback(NamedTuple):
    """A function to call when all earlier requests of the lane have been applied or abandoned."""

    call: Callable[[], None]
    size: int = 0
    """Octets that it counts as."""

    def take(self, batch: Batch, lane: Lane, _costs: Costs) -> PartOutcome:
        batch.callbacks.append(self.call)
        if self.size:
            batch.count(lane, 0, self.size)
        return PartOutcome.TAKEN


class OpenSettlement:
    """Consecutive message ids of a consumer that are settled alike. Further ids may join until a batch takes it."""

    __slots__ = ("_consumer", "_first", "_kind", "_last", "_steps")

    def __init__(self, kind: type[Settlement], consumer: int, first: int, last: int) -> None:
        self._kind = kind
        self._consumer = consumer
        self._first = first
        self._last = last
        self._steps = SETTLED_STEPS[kind]

    def extend(self, first: int, last: int) -> bool:
        """Add these message ids if they follow directly. Return whether they do."""
        if first != self._last + 1:
            return False
        self._last = last
        self._steps += SETTLED_STEPS[self._kind]
        return True

    def take(self, batch: Batch, lane: Lane, _costs: Costs) -> PartOutcome:
        if not batch.has_room(self._steps, COMMAND_BYTES):
            return PartOutcome.NO_ROOM
        lane.settlements.clear()
        command = self._kind(self._consumer, self._first, self._last)
        batch.add(lane, command, self._steps, COMMAND_BYTES)
        return PartOutcome.TAKEN


class OpenEnqueue:
    """A run: consecutive publishes of a publisher with the same exchange, routing key, flags and attributes."""

    __slots__ = (
        "_added_bytes",
        "_bytes",
        "_large",
        "_overhead_bytes",
        "_price",
        "_priced",
        "attributes",
        "exchange",
        "first_sequence",
        "mandatory",
        "messages",
        "publisher",
        "requested_s",
        "routing_key",
    )

    def __init__(
        self,
        publisher: Publisher,
        first_sequence: int,
        exchange: str,
        routing_key: str,
        mandatory: bool,
        attributes: Attributes | None,
    ) -> None:
        self.publisher = publisher
        self.first_sequence = first_sequence
        """The publish sequence number of the run's first message; 0 if its messages need no confirms."""
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.attributes = attributes
        """The attributes of the run's first message; None if its messages have no attributes."""
        self.messages: list[bytes] = []
        """The messages of the run that still wait. After all have been taken, no messages are added."""
        self.requested_s = 0.0
        """Monotonic time, in seconds, at which the run was requested."""
        self._overhead_bytes = bytes_of_run(self)
        """Octets counted for the run besides its messages; 0 after a batch has taken some of them."""
        self._bytes = self._overhead_bytes
        """Octets counted for the run, with its messages."""
        self._added_bytes = 0
        """Octets counted for all messages that were added to the run, taken or not."""
        self._priced: list[int] = []
        """If routing parses each message: the prices in steps of the first messages, as far as they are known."""
        self._price: Price | None = None
        """If routing does not parse the messages: the price of all of them; None if it is not known."""
        self._large: _LargeMessage | None = None
        """The first message, if it is stored in fragments."""

    @property
    def keys(self) -> int:
        """Routing keys of each message of the run."""
        return 1 if self.attributes is None else 1 + len(self.attributes.more_keys)

    @property
    def size(self) -> int:
        """Octets counted for the run, with its messages."""
        return self._bytes

    def accepts(self, attributes: Attributes | None) -> bool:
        """Return whether messages with these attributes may join the run."""
        mine = self.attributes
        if mine is not None and mine.publisher:
            mine = mine._replace(publish_seq=mine.publish_seq + len(self.messages))
        return attributes == mine

    def add(self, messages: list[bytes]) -> int:
        """Add messages at the end of the run. Return the octets that they count as."""
        size = bytes_of_messages(messages)
        self.messages += messages
        self._bytes += size
        self._added_bytes += size
        return size

    @property
    def is_long(self) -> bool:
        """Whether so many messages were added that the next message must wait behind the lane's other requests.

        A client can publish on a channel as fast as batches take the messages, so that a run would never end.
        """
        return self._added_bytes >= BATCH_BYTES_MAX

    def take(self, batch: Batch, lane: Lane, costs: Costs) -> PartOutcome:
        if _is_large(self.messages[0], batch.large_bytes) and costs.may_store_fragments:
            return self._store_fragment(batch, lane)
        if self._depends_on_content(costs):
            return self._take_one_by_one(batch, lane, costs)
        price = self._price_together(costs)
        if price is None:
            return PartOutcome.PUT_OFF
        messages = self.messages
        steps = price.steps(len(messages))
        if batch.fits(steps, self._bytes):
            self._move(batch, lane, len(messages), steps, self._bytes)
            return PartOutcome.TAKEN
        count, size = 1, self._overhead_bytes + MESSAGE_BYTES + len(messages[0])
        if not batch.has_room(price.steps(1), size):
            return PartOutcome.NO_ROOM
        for message in islice(messages, 1, None):
            next_size = size + MESSAGE_BYTES + len(message)
            if not batch.fits(price.steps(count + 1), next_size):
                break
            count, size = count + 1, next_size
        self._move(batch, lane, count, price.steps(count), size)
        return PartOutcome.NO_ROOM if self.messages else PartOutcome.TAKEN

    def _store_fragment(self, batch: Batch, lane: Lane) -> PartOutcome:
        """Add a fragment of a large message to the batch.

        After the last fragment, only the octets before the body are left here.
        """
        message = self.messages[0]
        large = self._large = self._large or _LargeMessage(self.publisher.session)
        size = large.store(message, batch, lane)
        if not size:
            return PartOutcome.NO_ROOM
        self._bytes -= size
        if large.is_stored(message):
            self.messages[0] = message[: head_stop(message)]
        return PartOutcome.PARTLY_TAKEN

    def _take_one_by_one(self, batch: Batch, lane: Lane, costs: Costs) -> PartOutcome:
        """Add messages with a price each to the batch, because messages of a run may be routed differently."""
        outcome, count, steps = PartOutcome.TAKEN, 0, 0
        size = self._overhead_bytes
        for message in self.messages:
            if count == len(self._priced) and not self._price_next(costs):
                outcome = PartOutcome.PUT_OFF
                break
            next_steps, next_size = steps + self._priced[count], size + MESSAGE_BYTES + len(message)
            if not (batch.fits if count else batch.has_room)(next_steps, next_size):
                outcome = PartOutcome.NO_ROOM
                break
            count, steps, size = count + 1, next_steps, next_size
        if count:
            self._move(batch, lane, count, steps, size)
        return outcome

    def _move(self, batch: Batch, lane: Lane, count: int, steps: int, size: int) -> None:
        """Add the first `count` messages to the batch. The rest stays here and follows later."""
        going = self.messages[:count]
        if self._large is not None:
            self._large.join(batch, lane)
            self._large = None
        batch.publish(lane, _sealed(self, count), going, steps, size)
        batch.requested_s.append(self.requested_s)
        del self.messages[:count]  # a long run may be taken in very many pieces
        self._bytes -= size
        self._overhead_bytes = 0
        self._price = None
        del self._priced[:count]
        if self.first_sequence:
            self.first_sequence += count
            batch.confirms[self.publisher] = self.first_sequence - 1
        attributes = self.attributes
        if attributes is not None and attributes.publisher:
            self.attributes = attributes._replace(publish_seq=attributes.publish_seq + count)

    # As part of a transaction, the run is taken as a whole

    def price(self, costs: Costs) -> int | None:
        """Return the run's price in steps, or None if a later pass can tell it.

        Counting stops when the price is too high for a transaction.
        """
        if not self._depends_on_content(costs):
            price = self._price_together(costs)
            return None if price is None else price.steps(len(self.messages))
        steps = sum(self._priced)
        while len(self._priced) < len(self.messages) and steps <= TRANSACTION_STEPS_MAX:
            if not self._price_next(costs):
                return None
            steps += self._priced[-1]
        return steps

    def add_to(self, batch: Batch, lane: Lane) -> None:
        """Add the whole run of a transaction to the batch, at the price that `price` has computed."""
        count = len(self.messages)
        steps = self._price.steps(count) if self._price is not None else sum(self._priced)
        self._move(batch, lane, count, steps, self._bytes)

    def _depends_on_content(self, costs: Costs) -> bool:
        publisher = self.publisher
        return not publisher.has_failed and costs.depends_on_content(
            publisher.connection.vhost, self.exchange
        )

    def _price_together(self, costs: Costs) -> Price | None:
        if self.publisher.has_failed:
            return Price(0, 0)  # applying the entry skips it
        if self._price is None:
            self._price = costs.price(
                self.publisher.connection.vhost,
                self.exchange,
                self._keys(),
                is_plain=self.attributes is None,
            )
        return self._price

    def _price_next(self, costs: Costs) -> bool:
        """Compute the price of the next message. Return False if the next pass must search its routes."""
        message = self.messages[len(self._priced)]
        price = costs.message_steps(self.publisher.connection.vhost, self.exchange, self._keys(), message)
        if price is not None:
            self._priced.append(price)
        return price is not None

    def _keys(self) -> tuple[str, ...]:
        if self.attributes is None:
            return (self.routing_key,)
        return (self.routing_key, *self.attributes.more_keys)


class OpenCommit:
    """A transaction: a single batch takes all of it, or it is refused."""

    def __init__(
        self,
        commit: PendingCommand,
        content: Sequence[OpenEnqueue | PendingCommand],
        refuse: Callable[[OpenCommit, int], None],
    ) -> None:
        """Create a transaction from its commit command and its content.

        `refuse` is called with this object and its price in steps if the price is above TRANSACTION_STEPS_MAX.
        """
        self._parts = (commit, *content)
        self._refuse = refuse
        self._steps = COMMIT_STEPS * len(content)
        self._priced = 0
        """The number of parts whose price is included in `_steps`."""
        self.size = sum(part.size for part in self._parts)

    def take(self, batch: Batch, lane: Lane, costs: Costs) -> PartOutcome:
        while self._priced < len(self._parts):
            steps = None if costs.is_budget_spent else self._parts[self._priced].price(costs)
            if steps is None:
                return PartOutcome.PUT_OFF
            self._priced += 1
            self._steps += steps
            costs.route_steps += steps  # count it now, because a refused transaction is charged nowhere else
            if self._steps > TRANSACTION_STEPS_MAX:
                self._refuse(self, self._steps)
                return PartOutcome.REFUSED
        cost = self._steps + self.size // STEP_BYTES
        if cost > BATCH_STEPS_MAX and not lane.charged:
            lane.charged = cost
            return PartOutcome.CHARGED
        if not batch.has_room(self._steps, self.size):
            return PartOutcome.NO_ROOM
        for part in self._parts:
            part.add_to(batch, lane)
        batch.steps += COMMIT_STEPS * (len(self._parts) - 1)
        lane.charged = 0
        return PartOutcome.TAKEN


def _is_large(message: bytes, large_bytes: int) -> bool:
    return len(message) > large_bytes and len(message) - head_stop(message) > large_bytes


def bytes_of_messages(messages: Sequence[bytes]) -> int:
    """Return the octets that messages count as."""
    return sum(map(len, messages)) + MESSAGE_BYTES * len(messages)


def bytes_of_run(run: OpenEnqueue) -> int:
    """Return the octets that a run of messages counts as, without its messages."""
    size = COMMAND_BYTES + len(run.exchange) + len(run.routing_key)
    if run.attributes is not None:
        size += sum(map(len, run.attributes.more_keys)) + len(run.attributes.publisher)
    return size


def bytes_of_command(command: Command) -> int:
    size = COMMAND_BYTES
    for field in command:
        match field:
            case str() | bytes():
                size += len(field)
            case list():
                size += sum(len(part) if isinstance(part, str) else NUMBER_BYTES for part in field)
            case dict():
                size += table_bytes(field)
            case _:
                pass
    return size


def _sealed(run: OpenEnqueue, count: int) -> Enqueue | Publish:
    """Return the command that publishes the first `count` messages of a run."""
    publisher = run.publisher
    enqueue = Enqueue(
        publisher.session,
        run.first_sequence,
        count,
        run.exchange,
        run.routing_key,
        run.mandatory,
        publisher.number,
    )
    if run.attributes is None:
        return enqueue
    more_keys, priority, ttl_ms, delay_ms, publisher_id, publish_seq = run.attributes
    return Publish(*enqueue, list(more_keys), priority, ttl_ms, delay_ms, publisher_id, publish_seq)
