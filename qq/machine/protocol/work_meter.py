"""What the entry that is being applied has cost so far, where that does not follow from its size.

Invariant: everything here is counted alike on every node, and begins anew with each entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REVIEW_STEPS_MAX = 15_000
"""How many steps one entry may spend on finding the policies that apply; what is left is for the next entries."""

GOT_AT_ONCE = 64
"""How many messages one command may get: the last answer of each session is kept."""
RANGES_AT_ONCE = 1_000
"""How many ranges of messages one command may settle or bring back; if there are more, all are put off."""
MOVED_AT_ONCE = 1_000
"""How many messages of its source one step of a move looks at: as many as a leader takes, and several times as many
that have come back since it looked. What is beyond is for the next step."""
RANGES_MAX = 4_000
"""How many ranges that were put off are done at the end of one entry: 3 us each, if they come back."""
RANGES_OF_QUEUE_MAX = 1_000
"""How many of the ranges that were put off may be of one queue, before other queues have their turn."""
SERVED_MAX = 6_000
"""How many ranges queues may give to consumers, expire, release after a delay or drop over a limit, for the commands of
one entry, and as many at its end: 1.5 us each. What is left is for the next entries."""
SERVING_RANGES = 4
"""How many ranges it counts as to serve a queue, beside those that it gives."""
DUE_QUEUES_MAX = 2_000
"""How many queues are found in one entry at which something is due: 3 us each. Others follow in the next."""

LOST_MAX = 1_500
"""How many sessions and consumers of a node that is gone are ended by the entry that says so, and as many at its end,
and in each of the next ones: 8 us each."""

QUEUES_GONE_MAX = 500
"""How many queues that nobody needs any more, with their bindings and consumers, are removed by a command, and as many
twice at the end of an entry: 6 to 20 us each. What is left is for the next entries."""

REMAINS_MAX = 2_000
"""How many objects of what is gone are let go of in one entry: 6 us each at most."""

FEW_QUEUES = 16
"""A message that reaches at most so many queues costs in proportion to its size, and is not counted."""
COPIES_MAX = 5000
"""How many queues the messages that reach more than FEW_QUEUES may reach together, in one entry and virtual host. Who
gathers messages into batches sees to it (costs.py), so this is reached only if bindings have changed on the way."""
CHEAP_STEPS_MAX = 200
"""The most steps (`Router.steps`) of a cheap way: it costs less than to take the message in, so it is always found."""
CONTENT_STEPS = 20
"""How many steps of finding a way it counts as to look into a message."""
WAYS_STEPS_MAX = 500_000
"""How many steps one entry may spend in one virtual host on finding ways and on looking into messages: a few hundred
milliseconds at most. Like `COPIES_MAX`, it is reached only if bindings have changed on the way."""
DEAD_STEPS_MAX = 75_000
"""How many steps one entry may spend in one virtual host on finding where dead letters go; the rest is left for the
next entries."""


@dataclass(slots=True)
class Work:
    """How much work one entry has done so far."""

    steps: int = 0
    """How many steps of finding policies were taken, of a quarter of a microsecond each."""
    served: int = 0
    """How many ranges queues have moved for commands."""
    copies: dict[str, int] = field(default_factory=dict)
    """Messages times the many queues that each reached, by virtual host; those that reach few are not counted."""

    def copy(self, vhost: str, queues: int) -> bool:
        """Note that messages reach so many queues; says whether that is too much for one entry."""
        copies = self.copies[vhost] = self.copies.get(vhost, 0) + queues
        return copies > COPIES_MAX

    ways: dict[str, int] = field(default_factory=dict)
    """The steps of finding ways for published messages, by virtual host."""
    dear_ways: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """The exchange and routing key of each dear way among them that a node may remember, by virtual host."""

    def walk(self, vhost: str, steps: int) -> None:
        """Count the steps that it has taken to find where a message goes."""
        self.ways[vhost] = self.ways.get(vhost, 0) + steps

    def walk_known(self, vhost: str, exchange: str, routing_key: str, steps: int) -> None:
        """Note what a way costs that nodes may remember or have to find; it counts once until bindings change."""
        found = self.dear_ways.setdefault(vhost, set())
        if (exchange, routing_key) not in found:
            found.add((exchange, routing_key))
            self.walk(vhost, steps)

    def has_walked_enough(self, vhost: str) -> bool:
        """Whether no more dear ways are found for messages of a virtual host in this entry."""
        return self.ways.get(vhost, 0) > WAYS_STEPS_MAX

    dead_steps: dict[str, int] = field(default_factory=dict)
    """The steps of finding ways for dead letters, by virtual host."""

    def find(self, vhost: str, steps: int) -> None:
        """Count the steps that it has taken to find where a dead letter goes."""
        self.dead_steps[vhost] = self.dead_steps.get(vhost, 0) + steps

    def has_moved_enough(self, vhost: str) -> bool:
        """Whether dead letters of a virtual host have to wait for another entry."""
        return self.copies.get(vhost, 0) > COPIES_MAX or self.dead_steps.get(vhost, 0) > DEAD_STEPS_MAX

    def clear(self) -> None:
        self.steps = self.served = 0
        if self.dead_steps:
            self.dead_steps = {}
        if self.copies:
            self.copies = {}
        if self.ways:
            self.ways, self.dear_ways = {}, {}
