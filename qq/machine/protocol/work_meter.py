"""Limits on the work of an entry, and the counters of the work that the current entry has done.

The counters cover work that the size of the entry does not bound. Work above a limit is put off to the next entries.

Invariant: every node counts alike, and the counters start from zero with each entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REVIEW_STEPS_MAX = 15_000
"""Steps that an entry may spend on matching policies; the remaining queues and exchanges wait for the next entries."""

GOT_AT_ONCE = 64
"""Messages that a command may get. The bound keeps answers small, because each session keeps its last answer."""
RANGES_AT_ONCE = 1_000
"""Ranges of messages that a command may settle or return; with more, all of them are put off."""
MOVED_AT_ONCE = 1_000
"""Source messages that a step of a move examines: as many as a leader takes, and several times as many that returned
after the leader read them. The next step examines the rest."""
RANGES_MAX = 4_000
"""Put-off ranges that are settled or returned at the end of an entry; a returned range takes 3 us."""
RANGES_OF_QUEUE_MAX = 1_000
"""Put-off ranges of a single queue that are handled before the other queues get their share."""
SERVED_MAX = 6_000
"""Ranges that queues may deliver, expire, release after a delay or drop over a limit: so many for the commands of an
entry, and so many again at its end. A range takes 1.5 us. The rest waits for the next entries."""
SERVING_RANGES = 4
"""Ranges that serving a queue counts as, on top of the ranges it delivers."""
DUE_QUEUES_MAX = 2_000
"""Queues with due work that are looked up in an entry, 3 us each. The rest waits for the next entry."""

LOST_MAX = 1_500
"""Sessions and consumers of a disconnected node that are ended by the entry that reports the loss; so many again at the
end of that entry and of each following entry. Each takes 8 us."""

QUEUES_GONE_MAX = 500
"""Unneeded queues that a command removes, with their bindings and consumers; twice as many at the end of an entry. A
queue takes 6 to 20 us. The rest waits for the next entries."""

FREED_MAX = 2_000
"""Removed objects whose memory is freed in an entry, at most 6 us each."""

FEW_QUEUES = 16
"""Queues that a message may reach without being counted here, because its cost is then in proportion to its size."""
COPIES_MAX = 5000
"""Copies per entry and virtual host, for messages that reach more than FEW_QUEUES queues. The node that gathers a batch
already keeps to this limit (cost_estimate.py), so it is reached only if bindings change before the batch is applied."""
CHEAP_STEPS_MAX = 200
"""Steps (`Router.steps`) up to which a route is cheap: it costs less than receiving the message, so it is always
computed."""
CONTENT_STEPS = 20
"""Steps of routing that looking into a message counts as."""
ROUTING_STEPS_MAX = 500_000
"""Steps that an entry may spend per virtual host on routing and on looking into messages: a few hundred milliseconds at
most. Like `COPIES_MAX`, it is reached only if bindings change before the batch is applied."""
DEAD_STEPS_MAX = 75_000
"""Steps that an entry may spend per virtual host on routing dead letters; the rest waits for the next entries."""


@dataclass(slots=True)
class Work:
    """The work that the current entry has done so far."""

    steps: int = 0
    """Steps of policy matching, a quarter of a microsecond each."""
    served: int = 0
    """Ranges that queues have moved for commands."""
    copies: dict[str, int] = field(default_factory=dict)
    """Messages times queues reached, per virtual host; messages that reach at most FEW_QUEUES queues are left out."""

    def copy(self, vhost: str, queues: int) -> bool:
        """Count messages that reach many queues. Return whether the entry now exceeds its limit of copies."""
        copies = self.copies[vhost] = self.copies.get(vhost, 0) + queues
        return copies > COPIES_MAX

    route_steps: dict[str, int] = field(default_factory=dict)
    """Steps of routing published messages, per virtual host."""
    expensive_routes: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """(exchange, routing key) of each expensive cacheable route among them, per virtual host."""

    def count_route(self, vhost: str, steps: int) -> None:
        """Count steps of routing published messages."""
        self.route_steps[vhost] = self.route_steps.get(vhost, 0) + steps

    def count_cached_route(self, vhost: str, exchange: str, routing_key: str, steps: int) -> None:
        """Count the steps of a cacheable route; it counts again in this entry only after bindings have changed."""
        found = self.expensive_routes.setdefault(vhost, set())
        if (exchange, routing_key) not in found:
            found.add((exchange, routing_key))
            self.count_route(vhost, steps)

    def has_routed_enough(self, vhost: str) -> bool:
        """Return whether this entry computes no more expensive routes for messages of a virtual host."""
        return self.route_steps.get(vhost, 0) > ROUTING_STEPS_MAX

    dead_steps: dict[str, int] = field(default_factory=dict)
    """Steps of routing dead letters, per virtual host."""

    def count_dead_letter_route(self, vhost: str, steps: int) -> None:
        """Count steps of routing a dead letter."""
        self.dead_steps[vhost] = self.dead_steps.get(vhost, 0) + steps

    def has_dead_lettered_enough(self, vhost: str) -> bool:
        """Return whether the remaining dead letters of a virtual host must wait for the next entry."""
        return self.copies.get(vhost, 0) > COPIES_MAX or self.dead_steps.get(vhost, 0) > DEAD_STEPS_MAX

    def clear(self) -> None:
        self.steps = self.served = 0
        if self.dead_steps:
            self.dead_steps = {}
        if self.copies:
            self.copies = {}
        if self.route_steps:
            self.route_steps, self.expensive_routes = {}, {}
