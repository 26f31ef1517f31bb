"""The data of the queue oracle: messages, queues, consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qq.machine.policy.queue_options import QueueSettings
from qq.machine.protocol.death_history import REJECTED, History
from qq.ranges import Range

if TYPE_CHECKING:
    from qq.machine.queue.queue import DeadMessages, Queue

Deaths = tuple[tuple[str, str, int], ...]
"""A message's death history, newest first: queue, reason, count."""
Key = tuple[int, int, Deaths]
"""A message's place in the log and its death history; together they are unique in a queue."""
Consumer = tuple[str, int]
"""Node and consumer id."""


@dataclass(slots=True, eq=False)
class Message:
    """A message in a queue; a message in several queues is several Messages."""

    place: tuple[int, int]
    deaths: Deaths
    level: int
    expires_ms: int
    """Milliseconds; 0 is never. For a delayed message: the expiry if it becomes ready on time."""
    ready_ms: int
    """Earliest time of delivery, in ms."""
    key: str | None = None
    """The routing key that replaced the published keys when the message died."""
    arrival: int = 0
    """Arrival number among the messages of its level that wait for their first delivery; 0 if it does not wait."""
    returns: int = 0
    failures: int = 0
    reason: str = ""
    """Reason of its present death."""
    first: str = ""
    """The queue in which it died first."""
    over: int = 0
    """Number of its deaths, the oldest in its history, that came before it was moved."""
    annotations: tuple[tuple[str, bytes], ...] = ()
    """The annotations that clients gave it."""

    @property
    def name(self) -> Key:
        return (*self.place, self.deaths)


@dataclass(slots=True, eq=False)
class QueueModel:
    """The oracle's model of a queue."""

    name: str
    number: int
    is_quorum: bool
    settings: QueueSettings
    used_ms: int
    """Available time, in ms, of the last use by a client or the last change of `x-expires`."""
    used_s: float
    """Total seconds with a majority at that time."""
    ready: dict[Key, list[Message]] = field(default_factory=dict)
    """Messages that may be delivered, now or after a delay."""
    count: int = 0
    """Number of ready and delayed messages."""
    held: int = 0
    """Number of unsettled messages at consumers."""
    dead: deque[Message] = field(default_factory=deque)
    """Messages to be dead-lettered, in the machine's order."""
    died: list[Message] = field(default_factory=list)
    """Messages that died after these; their order has not been read from the machine yet."""
    first_dead: int = 0
    """Number of the first message in `dead`, counted since the queue was declared."""
    stuck: dict[int, Message] = field(default_factory=dict)
    """Dead messages that some target had no room for, by number (since version 11)."""
    expiries: list[tuple[int, int, Message]] = field(default_factory=list)
    """A heap of messages by expiry time; some of them are not ready any more."""
    delays: list[tuple[int, int, Message]] = field(default_factory=list)
    """A heap of delayed messages by due time; some of them have been removed already."""
    order: dict[int, dict[int, Message]] = field(default_factory=dict)
    """Messages that wait for their first delivery, by level and arrival number."""
    newest: dict[int, int] = field(default_factory=dict)
    """The last arrival number of each level with a first delivery."""
    doubtful: list[Message] = field(default_factory=list)
    """Dead letters that the queue may have had no room for."""
    was_full: bool = False
    """Whether the queue may have been full when a doubtful message arrived."""
    peak: int = 0
    """Largest possible number of messages in this entry, if none had been removed."""
    drops_head: bool = False
    """Whether the queue may have dropped messages over its limit in this entry."""
    keeps_dead: bool = False
    """Whether messages that died in this entry may have had to be dead-lettered."""
    drops_dead: bool = False
    """Whether messages that died in this entry may have been dropped."""
    trims: bool = False
    """Whether the queue may have had a limit that drops messages."""
    least_limit: int | None = None
    """The smallest maximum length that applied in this entry."""

    def set_settings(self, settings: QueueSettings) -> None:
        """Apply settings that may change in the middle of an entry; expiry and limits may act before or after."""
        self.settings = settings
        self.trims |= is_trimmed(settings)
        self.drops_head |= settings.overflow == "drop-head"
        self.keeps_dead |= settings.dead_letter_exchange is not None
        self.drops_dead |= settings.dead_letter_exchange is None
        limit = settings.max_length
        if limit is not None and (self.least_limit is None or limit < self.least_limit):
            self.least_limit = limit

    def begin_entry(self) -> None:
        self.peak = self.count
        self.trims = self.drops_head = self.keeps_dead = self.drops_dead = False
        self.least_limit = None
        self.set_settings(self.settings)

    @property
    def messages(self) -> int:
        """Number of all messages except held messages."""
        return self.count + len(self.dead) + len(self.died) + len(self.stuck)


@dataclass(slots=True, eq=False)
class Flow:
    """The credit that a client has set for its consumer, and the reports that it waits for."""

    wants_activity: bool
    was_active: bool
    number: int = 0
    limit: int = 0
    """Messages with ids below it may be delivered."""
    peak: int = 0
    """The highest limit in this entry."""
    is_draining: bool = False
    wants_state: bool = False


class Holder:
    """A consumer, or the messages of a get."""

    def __init__(
        self, session: int, model: QueueModel, prefetch: int, timeout_ms: int, flow: Flow | None = None
    ) -> None:
        self.session = session
        self.model = model
        self.prefetch = prefetch
        """Messages that the consumer may hold; 0 for a get."""
        self.timeout_ms = timeout_ms
        """Milliseconds that it may hold a message, unless the queue has a limit of its own."""
        self.flow = flow
        """None unless the client sets the credit."""
        self.is_consumer = prefetch > 0 or flow is not None
        """Whether it is no get. Its messages count for the limit of its channel."""
        self.live = self.is_consumer
        self.held: dict[int, Message] = {}
        self.since_ms: dict[int, int] = {}
        self.next_id = 0

    @property
    def room(self) -> int:
        """Number of further messages that it may be given, whatever the limit of its channel."""
        if self.flow is not None:
            return max(self.flow.limit - self.next_id, 0)
        return self.prefetch - len(self.held)


def expiry_ms(model: QueueModel, own_ms: int | None, ready_ms: int) -> int:
    times = [ttl_ms for ttl_ms in (own_ms, model.settings.message_ttl_ms) if ttl_ms is not None]
    return ready_ms + min(times) if times else 0


def rejects(model: QueueModel) -> bool:
    return model.settings.overflow == "reject-publish"


def is_full(model: QueueModel, beyond: int = 0) -> bool:
    """Return whether a rejecting queue may have been full, `beyond` messages ago."""
    settings = model.settings
    by_count = settings.max_length is not None and model.messages >= settings.max_length + beyond
    return rejects(model) and (by_count or settings.max_length_bytes is not None)


def is_trimmed(settings: QueueSettings) -> bool:
    is_limited = settings.max_length is not None or settings.max_length_bytes is not None
    return is_limited and settings.overflow == "drop-head"


def ready_messages(model: QueueModel) -> Iterator[Message]:
    for messages in model.ready.values():
        yield from messages


def waiting_ranges(queue: Queue) -> list[Range]:
    """Return the ready and delayed messages of the machine's queue."""
    backlog = queue.backlog.freeze()
    return [
        *(backlog.browse(0, queue.backlog.count) if queue.backlog.count else ()),
        *backlog.delayed.browse(),
    ]


def dead_ranges(queue: Queue) -> list[Range]:
    """Return all messages that await dead-lettering."""
    return [dead.range for dead in (*queue.dead, *(dead for _, dead, _ in stuck_of(queue)))]


def stuck_of(queue: Queue) -> Iterator[tuple[int, DeadMessages, str]]:
    """Yield the messages in the lines of targets: the number of the first, the messages, and the target."""
    for target in queue.stuck:
        for number, dead in queue.stuck_messages(target, 0, queue.dead_count):
            yield number, dead, target


def names_of(queue: Queue, ranges: Iterable[Range]) -> Iterator[Key]:
    for range_ in ranges:
        deaths = deaths_of(queue.histories.get(range_.history))
        for slot in range(range_.slot, range_.slot + range_.count):
            yield range_.index, slot, deaths


def deaths_of(history: History | None) -> Deaths:
    return (
        () if history is None else tuple((death.queue, death.reason, death.count) for death in history.deaths)
    )


def over_after(message: Message, queue: str, reason: str) -> int:
    """Return how many deaths came before the move, after another death; a repeated death counts as new."""
    before = message.deaths[len(message.deaths) - message.over :]
    return message.over - any(death[:2] == (queue, reason) for death in before)


def deaths_after(deaths: Deaths, queue: str, reason: str) -> Deaths:
    times = sum(number for *cause, number in deaths if cause == [queue, reason])
    others = tuple(death for death in deaths if death[:2] != (queue, reason))
    return ((queue, reason, times + 1), *others)


def goes_in_circles(deaths: Deaths, over: int, target: str) -> bool:
    """Return whether a message returns to a queue where it died, without a rejection or a move since."""
    for queue, reason, _ in deaths[: len(deaths) - over]:
        if reason == REJECTED:
            return False
        if queue == target:
            return True
    return False
