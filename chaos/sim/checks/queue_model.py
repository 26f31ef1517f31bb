"""What the oracle of the queues keeps: messages, queues and who holds what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qq.machine.policy.settings import QueueSettings
from qq.machine.protocol.death_history import REJECTED, History
from qq.ranges import Range

if TYPE_CHECKING:
    from qq.machine.queue.queue import Queue

Deaths = tuple[tuple[str, str, int], ...]
"""What befell a message, the newest first: queue, reason, how often."""
Key = tuple[int, int, Deaths]
"""A message as its place in the log and what befell it tell it from all others in a queue."""
Consumer = tuple[str, int]
"""Node and consumer id."""


@dataclass(slots=True, eq=False)
class Message:
    """A message in one queue; in each queue that it is in, it is a message of its own."""

    place: tuple[int, int]
    deaths: Deaths
    level: int
    expires_ms: int
    """0 is never. While it waits for its delay: when it expires if it does not have to wait for longer."""
    ready_ms: int
    """The message is not delivered before this moment."""
    key: str | None = None
    """The routing key that took the place of those it was published with, when it died."""
    arrival: int = 0
    """Number among those of its level that wait for their first delivery in their order; 0 if it is not one of them."""
    returns: int = 0
    failures: int = 0
    reason: str = ""
    """Why it is dying."""
    first: str = ""
    """The queue in which it died first."""
    over: int = 0
    """How many of its deaths, the last ones, came before it was moved."""

    @property
    def name(self) -> Key:
        return (*self.place, self.deaths)


@dataclass(slots=True, eq=False)
class QueueModel:
    """What the oracle knows of a queue."""

    name: str
    number: int
    settings: QueueSettings
    used_ms: int
    """The available time at which a client has last used it, or its `x-expires` has changed."""
    used_s: float
    """For how long there was a majority until then."""
    ready: dict[Key, list[Message]] = field(default_factory=dict)
    """Messages that may be delivered, now or after a delay."""
    count: int = 0
    """How many these are."""
    held: int = 0
    """How many consumers have and have not settled."""
    dying: deque[Message] = field(default_factory=deque)
    """Messages that are to be dead-lettered, in the order in which the machine does it."""
    died: list[Message] = field(default_factory=list)
    """Messages that follow them, in an order that the machine has not been asked for yet."""
    dying_first: int = 0
    """Number of the first of them, counted since the queue was declared."""
    expiries: list[tuple[int, int, Message]] = field(default_factory=list)
    """A heap of messages by the moment when they expire; some in it are not ready any more."""
    delays: list[tuple[int, int, Message]] = field(default_factory=list)
    """A heap of those that were published with a delay, by the moment when they are due; some are gone already."""
    order: dict[int, dict[int, Message]] = field(default_factory=dict)
    """Messages that wait for their first delivery in their order, by level and arrival."""
    newest: dict[int, int] = field(default_factory=dict)
    """The last arrival of each level that was delivered for the first time."""
    doubtful: list[Message] = field(default_factory=list)
    """Dead letters that it may have had no room for."""
    was_full: bool = False
    """Whether one of these may have been too many."""
    peak: int = 0
    """How many there could be at once in this entry, at most, if none had gone."""
    drops_head: bool = False
    """Whether it may have dropped messages over its limit in this entry."""
    keeps_dead: bool = False
    """Whether messages that died in this entry may have had to be dead-lettered."""
    drops_dead: bool = False
    """Whether messages that died in this entry may have been dropped."""
    trims: bool = False
    """Whether it may have had a limit and dropped what was over it."""
    least_limit: int | None = None
    """The smallest maximum length that counted in this entry."""

    def note_settings(self, settings: QueueSettings) -> None:
        """Other settings may come in the middle of an entry, and what time and limits do may come before or after."""
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
        self.note_settings(self.settings)

    @property
    def messages(self) -> int:
        """All that is not held."""
        return self.count + len(self.dying) + len(self.died)


class Holder:
    """A consumer, or what a get took."""

    def __init__(self, session: int, model: QueueModel, prefetch: int, timeout_ms: int) -> None:
        self.session = session
        self.model = model
        self.prefetch = prefetch
        """How much it may hold; 0 for what a get took."""
        self.timeout_ms = timeout_ms
        """How long it may hold a message if its queue does not say."""
        self.live = prefetch > 0
        self.held: dict[int, Message] = {}
        self.since_ms: dict[int, int] = {}
        self.next_id = 0


def expiry_ms(model: QueueModel, own_ms: int | None, ready_ms: int) -> int:
    times = [ttl_ms for ttl_ms in (own_ms, model.settings.message_ttl_ms) if ttl_ms is not None]
    return ready_ms + min(times) if times else 0


def rejects(model: QueueModel) -> bool:
    return model.settings.overflow == "reject-publish"


def is_full(model: QueueModel, beyond: int = 0) -> bool:
    """Whether a queue that rejects may have been full, if it has so many messages more than it had then."""
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
    """What the machine's queue has, ready or delayed."""
    backlog = queue.backlog.freeze()
    return [
        *(backlog.browse(0, queue.backlog.count) if queue.backlog.count else ()),
        *backlog.delayed.browse(),
    ]


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
    """How many of its deaths came before it was moved, when it has died once more; a repetition counts as new."""
    before = message.deaths[len(message.deaths) - message.over :]
    return message.over - any(death[:2] == (queue, reason) for death in before)


def deaths_after(deaths: Deaths, queue: str, reason: str) -> Deaths:
    times = sum(number for *cause, number in deaths if cause == [queue, reason])
    others = tuple(death for death in deaths if death[:2] != (queue, reason))
    return ((queue, reason, times + 1), *others)


def goes_in_circles(deaths: Deaths, over: int, target: str) -> bool:
    """Whether it comes back to where it died, and nobody rejected or moved it since."""
    for queue, reason, _ in deaths[: len(deaths) - over]:
        if reason == REJECTED:
            return False
        if queue == target:
            return True
    return False
