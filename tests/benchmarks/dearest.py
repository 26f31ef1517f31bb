"""Measure the processor time of the most expensive legal entries: a part of `make bench` (ARCHITECTURE, invariant 3).

Builds each expensive situation of a state machine at its limits, and applies the largest entry that a leader would
compose for it (`Costs`, `GroupConfig.entry_weight_max`). Takes the processor time that every node spends on the
entry. Prints a Markdown table, and ends with status 1 if an entry takes more than its aim. Entries are neither
replicated nor sent.

    python tests/benchmarks/dearest.py [--only topic] [--repeat 3]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

from cluster.config import GroupConfig
from qq.machine.catalog.limits import MAX_BINDINGS_PER_QUEUE, NONE
from qq.machine.handlers.cost_estimate import BATCH_STEPS_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    BindExchange,
    BindQueue,
    Cancel,
    Checkout,
    Command,
    ConnectionDown,
    DeadLetter,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    Discard,
    Enqueue,
    Limit,
    Publish,
    PurgeQueue,
    PutPolicy,
    Recover,
    SessionDown,
    Settle,
    SetVhostLimits,
)
from qq.machine.protocol.effects import Failed
from qq.routing.exchanges import QUEUES_MAX
from qq.sessions.dead_letters import CONTENT_MESSAGES_MAX, MESSAGES_MAX
from qq.sessions.submissions import WEIGHT_STEPS
from qq.stored.content import content_of
from qq.stored.properties import KEYS_MAX, NO_PRIORITY, NO_TTL

ENTRY_MS_MAX = 50.0
"""Aim."""
NAMES_MAX = 10_000
"""Queues of a virtual host, binding keys of an exchange."""
QUEUES = 100_000
BINDINGS_OF_QUEUE = 1000
BINDINGS_OF_EXCHANGE = 50_000
BINDINGS_OF_AUTO_DELETE_QUEUE = 39
POLICIES = 1000
CONSUMERS = 5000
MESSAGES = 10_000_000
SINGLES = 1_000_000

Work = tuple[Sequence[Command], Sequence[bytes]]
"""Commands of an entry, and their messages."""


class Situation(NamedTuple):
    """A machine at a limit, and the largest entries whose commands are expensive there."""

    machine: QueueMachine
    entries: Iterator[Work]


class World:
    """A machine that is being brought into a situation."""

    def __init__(self) -> None:
        self.machine = QueueMachine(content_of)
        self.index = 0
        # The cost of an exchange's bindings does not depend on the number of their queues.
        self.do([SetVhostLimits("/", {MAX_BINDINGS_PER_QUEUE: NONE})])

    def do(self, commands: Sequence[Command], messages: Sequence[bytes] = ()) -> None:
        apply(self.machine, commands, messages)
        while self.machine.due_ms() == 0:
            self.machine.end_entry(1000)

    def queues(self, number: int, **arguments: object) -> list[str]:
        names = [f"q{each}" for each in range(number)]
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.do([DeclareQueue(1, 1, name, False, True, False, False, False, table) for name in names])
        return names


_indexes = count(1)


def apply(machine: QueueMachine, commands: Sequence[Command], messages: Sequence[bytes]) -> float:
    """Processor time of an entry, in milliseconds."""
    payload = b"".join(encode_batch(commands, messages))
    gc.collect()
    gc.disable()
    begun_s = time.thread_time()
    effects = machine.apply_batch("n1", next(_indexes), 0, 1000, payload)
    machine.end_entry(1000)
    took_ms = (time.thread_time() - begun_s) * 1000
    gc.enable()
    refused = [effect.text for effect in effects if isinstance(effect, Failed)]
    if refused:
        raise ValueError(f"this is not legal: {refused[0]}")
    return took_ms


def filled(machine: QueueMachine, works: Iterator[tuple[Command, list[bytes]]]) -> Iterator[Work]:
    """Return entries with as many commands as a leader would put into each."""
    limit = GroupConfig("n1", {}, "c").entry_weight_max * WEIGHT_STEPS
    commands: list[Command] = []
    messages: list[bytes] = []
    steps = 0
    for command, published in works:
        machine.costs.begin_pass()
        cost = cost_of(machine, command, published)
        if commands and steps + cost > limit:
            yield commands, messages
            commands, messages, steps = [], [], 0
        commands.append(command)
        messages += published
        steps += cost
    if commands:
        yield commands, messages


def cost_of(machine: QueueMachine, command: Command, messages: list[bytes]) -> int:
    if not isinstance(command, Enqueue | Publish):
        return machine.costs.steps("n1", command)
    keys = [command.routing_key, *(command.more_keys if isinstance(command, Publish) else ())]
    costs, exchange = machine.costs, command.exchange
    if costs.depends_on_content("/", exchange):
        found = [costs.message_steps("/", exchange, keys, message) for message in messages]
    else:
        price = costs.price("/", exchange, keys, is_plain=isinstance(command, Enqueue))
        found = [None if price is None else price.steps(len(messages))]
    machine.vhosts["/"]._forget_routes()  # so that the entry finds them itself
    return sum(BATCH_STEPS_MAX if steps is None else steps for steps in found)


def publish(exchange: str, key: str, keys: Sequence[str] = (), priority: int = NO_PRIORITY) -> Command:
    plain = Enqueue(1, 0, 1, exchange, key, False, 1)
    if not keys and priority == NO_PRIORITY:
        return plain
    return Publish(*plain, list(keys), priority, NO_TTL, 0, "", 0)


def consume(number: int, queue: str, credit: int, session: int = 1) -> Checkout:
    flags = (False, False, True, False, False)
    return Checkout(session, 1, 1, number, queue, f"t{number}", credit, *flags, 0, {})


def message(headers: dict[str, str] | dict[str, list[None]]) -> bytes:
    """The stored form of an empty message."""
    table = b"".join(
        bytes([len(name)])
        + name.encode()
        + (b"S" if isinstance(value, str) else b"A")
        + len(value).to_bytes(4, "big")
        + (value.encode() if isinstance(value, str) else b"V" * len(value))
        for name, value in headers.items()
    )
    payload = b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + len(table).to_bytes(4, "big") + table
    return b"\x02\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


# --- the situations


def topic_patterns() -> Situation:
    """10,000 binding keys like #.a.#.b of 63 words, and the longest keys"""
    world, rnd = World(), random.Random(1)
    world.queues(1)
    patterns = [".".join(["#", rnd.choice("ab")] * 31) + f".{number}" for number in range(NAMES_MAX)]
    world.do([BindQueue(1, 1, "q0", "amq.topic", pattern, {}) for pattern in patterns])
    keys = (".".join(rnd.choice("ab") for _ in range(127)) for _ in count())
    return Situation(
        world.machine, filled(world.machine, ((publish("amq.topic", key), [b"x"]) for key in keys))
    )


def topic_stars() -> Situation:
    """10,000 binding keys of * and a, all of which stand at each word, and match"""
    world = World()
    world.queues(1)
    patterns = [
        f"{number:014b}".replace("0", "a.").replace("1", "*.") + "*." * 45 + "#"
        for number in range(NAMES_MAX)
    ]
    world.do([BindQueue(1, 1, "q0", "amq.topic", pattern, {}) for pattern in patterns])
    keys = (".".join(["a"] * 126 + [str(number)]) for number in count())
    return Situation(
        world.machine, filled(world.machine, ((publish("amq.topic", key), [b"x"]) for key in keys))
    )


def routing_keys() -> Situation:
    """256 keys in CC, past 10,000 binding keys with wildcards"""
    world = World()
    world.queues(1)
    world.do([BindQueue(1, 1, "q0", "amq.topic", f"*.{number}.#.z", {}) for number in range(NAMES_MAX)])
    keys = ([f"a.{number}.b.{batch}.z" for number in range(KEYS_MAX)] for batch in count())
    works = ((publish("amq.topic", "k", more), [b"x"]) for more in keys)
    return Situation(world.machine, filled(world.machine, works))


def exchange_graph() -> Situation:
    """250 exchanges, each bound to each"""
    world = World()
    names = [f"x{number}" for number in range(250)]
    world.do([DeclareExchange(1, name, "fanout", False, True, False, False, {}) for name in names])
    world.do([BindExchange(1, name, source, "", {}) for source in names for name in names])
    works = ((publish("x0", str(number)), [b"x"]) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def fanout(priority: int = NO_PRIORITY) -> Situation:
    """a message to 5000 queues"""
    world = World()
    names = world.queues(QUEUES_MAX)
    world.do([BindQueue(1, 1, name, "amq.fanout", "", {}) for name in names])
    works = ((publish("amq.fanout", str(number), priority=priority), [b"x"]) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def fanout_with_properties() -> Situation:
    """a message with a priority to 5000 queues"""
    return fanout(priority=3)


def headers() -> Situation:
    """10,000 bindings with the same conditions, and messages with 1000 headers"""
    world = World()
    world.queues(1)
    conditions = {f"h{number}": "v" for number in range(20)}
    world.do(
        [
            BindQueue(1, 1, "q0", "amq.headers", str(number), {**conditions, "x-match": how, "n": number})
            for number in range(NAMES_MAX // 2)
            for how in ("all", "any")
        ]
    )
    stored = message({f"h{number}": "v" for number in range(1000)})
    works = ((publish("amq.headers", str(number)), [stored]) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def values_in_headers() -> Situation:
    """messages with 120,000 values in a header, about which there is a binding"""
    world = World()
    world.queues(1)
    world.do([BindQueue(1, 1, "q0", "amq.headers", "", {"t": [None]})])
    stored = message({"t": [None] * 120_000})
    works = ((publish("amq.headers", str(number)), [stored]) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def consistent_hash() -> Situation:
    """249 bindings, each with a weight of its own, and ever new keys"""
    world = World()
    names = world.queues(249)
    world.do([DeclareExchange(1, "h", "x-consistent-hash", False, True, False, False, {})])
    world.do([BindQueue(1, 1, name, "h", str(weight), {}) for weight, name in enumerate(names, 1)])
    works = ((publish("h", str(number)), [b"x"]) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def acknowledgements() -> Situation:
    """acknowledgements on a channel with 5000 consumers that wait for its limit"""
    world = World()
    world.queues(1)
    world.do([Limit(1, 1), *(consume(number, "q0", 10) for number in range(CONSUMERS))])
    world.do([Enqueue(1, 0, CONSUMERS, "", "q0", False, 1)], [b"x"] * CONSUMERS)
    works = ((Settle(number % CONSUMERS, 0, 9), list[bytes]()) for number in count())
    return Situation(world.machine, filled(world.machine, works))


def limit_lifted() -> Situation:
    """the limit of a channel lifted for which 5000 consumers wait"""
    world = World()
    world.queues(1)
    world.do([Limit(1, 1), *(consume(number, "q0", 10) for number in range(CONSUMERS))])
    world.do([Enqueue(1, 0, CONSUMERS, "", "q0", False, 1)], [b"x"] * CONSUMERS)
    return Situation(world.machine, iter([([Limit(1, 0)], []), ([Limit(1, 1)], []), ([Limit(1, 0)], [])]))


def single_active_consumer() -> Situation:
    """single active consumers that go, one after the other, with 5000 that wait"""
    world = World()
    world.queues(1, x_single_active_consumer=True)
    world.do([consume(number, "q0", 10) for number in range(CONSUMERS)])
    works = ((Cancel(1, number), list[bytes]()) for number in range(CONSUMERS))
    return Situation(world.machine, filled(world.machine, works))


def policy(number: int, pattern: str) -> PutPolicy:
    return PutPolicy("/", f"p{number}", False, pattern, "all", number, {"max-length": 1 + number})


def policies() -> Situation:
    """a policy for 10,000 queues, beside 1000 others"""
    world = World()
    world.do([policy(number, "no.*such.*queue") for number in range(POLICIES)])
    world.queues(NAMES_MAX)
    return Situation(world.machine, iter([([policy(n, "q.*1")], list[bytes]()) for n in range(5)]))


def dear_patterns() -> Situation:
    """queues declared for which the patterns of 1000 policies need all steps that there are"""
    world = World()
    world.do([policy(number, "(.*)(.*)(.*)x") for number in range(POLICIES)])
    name = "a" * 240
    declared = (
        DeclareQueue(1, 1, f"{name}{number}", False, True, False, False, False, {}) for number in count()
    )
    return Situation(world.machine, filled(world.machine, ((command, []) for command in declared)))


def queue_with_bindings() -> Situation:
    """a queue deleted with 1000 bindings of 60 words"""
    world = World()
    names = world.queues(6)
    pattern = ".".join(["#", "a"] * 30)
    for name in names:
        world.do(
            [BindQueue(1, 1, name, "amq.topic", f"{pattern}.{name}{n}", {}) for n in range(BINDINGS_OF_QUEUE)]
        )
    works = ((DeleteQueue(1, 1, name, False, False), list[bytes]()) for name in names)
    return Situation(world.machine, filled(world.machine, works))


def exchange_with_bindings() -> Situation:
    """an exchange deleted that has 50,000 bindings"""
    world = World()
    names = world.queues(BINDINGS_OF_EXCHANGE)
    world.do([DeclareExchange(1, "x", "topic", False, True, False, False, {})])
    world.do([BindQueue(1, 1, name, "x", f"*.{name}", {}) for name in names])
    return Situation(world.machine, iter([([DeleteExchange(1, "x", False)], []), *[([], [])] * 2]))


def virtual_host() -> Situation:
    """a virtual host deleted with 100,000 queues, and as many bindings and consumers"""
    world = World()
    names = world.queues(QUEUES)
    exchanges = ("amq.direct", "amq.topic")
    world.do([BindQueue(1, 1, name, exchanges[n % 2], name, {}) for n, name in enumerate(names)])
    world.do([consume(n, name, 1, 1 + n // CONSUMERS) for n, name in enumerate(names)])
    return Situation(world.machine, iter([([DeleteVhost("/")], []), *[([], [])] * 2]))


def exclusive_queues() -> Situation:
    """a connection closed that has 50,000 exclusive queues, each with a binding with wildcards"""
    world = World()
    names = [f"q{number}" for number in range(BINDINGS_OF_EXCHANGE)]
    world.do([DeclareQueue(1, 1, name, False, False, True, False, False, {}) for name in names])
    world.do([BindQueue(1, 1, name, "amq.topic", f"*.{name}", {}) for name in names])
    return Situation(world.machine, iter([([ConnectionDown(1)], []), *[([], [])] * 2]))


def auto_delete_queues() -> Situation:
    """a channel closed that has the last consumers of 5000 auto-delete queues, with 39 bindings each"""
    world = World()
    names = [f"q{number}" for number in range(CONSUMERS)]
    world.do([DeclareQueue(1, 1, name, False, False, False, True, False, {}) for name in names])
    exchanges = ("amq.topic", "amq.direct", "amq.fanout", "amq.headers")
    world.do(
        [
            BindQueue(1, 1, name, exchanges[n % 4], f"*.{name}.{n}", {})
            for name in names
            for n in range(BINDINGS_OF_AUTO_DELETE_QUEUE)
        ]
    )
    world.do([consume(number, name, 1) for number, name in enumerate(names)])
    return Situation(world.machine, iter([([SessionDown(1)], []), *[([], [])] * 2]))


def unused_queues() -> Situation:
    """100,000 queues that expire without use"""
    world = World()
    world.queues(QUEUES, x_expires=500)
    core = world.machine._core
    for queue in world.machine.queues():
        queue.used_ms = 0
        core.queue_timers.set(queue, queue.due_ms())
    return Situation(world.machine, iter([([], []) for _ in range(3)]))


def messages_of_many_queues() -> Situation:
    """a message in each of 100,000 queues, all of which expire together"""
    world = World()
    world.queues(QUEUES, x_message_ttl=1)
    core = world.machine._core
    for queue in world.machine.queues():
        queue.backlog.add(next(_indexes), 0, 1, 1, expires_ms=1)
        core.queue_timers.set(queue, queue.due_ms())
    return Situation(world.machine, iter([([], []) for _ in range(3)]))


def lost_node() -> Situation:
    """the rest of the work for a lost node with 100,000 consumers of as many queues"""
    world = World()
    names = world.queues(QUEUES)
    world.do([consume(n, name, 1, 1 + n // CONSUMERS) for n, name in enumerate(names)])

    def entries() -> Iterator[Work]:
        world.machine.origin_down("n1", 1000, evicted=True)
        yield from [([], [])] * 3

    return Situation(world.machine, entries())


def many_consumers() -> Situation:
    """consumers with a prefetch of 10,000, for a million messages that were published each by itself"""
    world = World()
    world.queues(1)
    queue = world.machine.vhosts["/"].queues["q0"]
    for _ in range(SINGLES):
        queue.backlog.add(next(_indexes), 0, 1, 1)
    works = ((consume(number, "q0", 10_000), list[bytes]()) for number in range(CONSUMERS))
    return Situation(world.machine, filled(world.machine, works))


def held_in_single_ranges(*commands: Command, **arguments: object) -> Situation:
    world = World()
    world.queues(1, **arguments)
    world.do([consume(0, "q0", SINGLES)])
    queue = world.machine.vhosts["/"].queues["q0"]
    for _ in range(SINGLES):
        queue.backlog.add(next(_indexes), 0, 1, 1)
    world.machine._core.touch(queue)
    world.do([])
    return Situation(world.machine, iter([(commands, []), *[([], [])] * 2]))


def session_ends() -> Situation:
    """a channel closed that holds a million messages, each by itself"""
    return held_in_single_ranges(SessionDown(1))


def recovered() -> Situation:
    """a million messages recovered that were delivered each by itself"""
    return held_in_single_ranges(Recover(1), x_queue_type="quorum")


def settled() -> Situation:
    """a million messages acknowledged together that were delivered each by itself"""
    return held_in_single_ranges(Settle(0, 0, SINGLES))


def rejected() -> Situation:
    """the same rejected"""
    return held_in_single_ranges(Discard(0, 0, SINGLES), x_dead_letter_exchange="amq.fanout")


def long_backlog() -> Situation:
    """a queue purged of ten million messages"""
    world = World()
    world.queues(1)
    for _ in range(MESSAGES // 100_000):
        world.do([Enqueue(1, 0, 1, "", "q0", False, 1)] * 1, [b""])
        world.machine.vhosts["/"].queues["q0"].backlog.add(next(_indexes), 0, 99_999, 0)
    return Situation(world.machine, iter([([PurgeQueue(1, 1, "q0")], [])]))


def expiry() -> Situation:
    """100,000 messages that expire together, each by itself"""
    world = World()
    world.queues(1, x_message_ttl=1)
    queue = world.machine.vhosts["/"].queues["q0"]
    for number in range(100_000):
        queue.backlog.add(next(_indexes), 0, 1, 1, expires_ms=1 + number % 900)
    world.machine._core.touch(queue)
    return Situation(world.machine, iter([([], []) for _ in range(3)]))


def dead_letters(content: bool = False) -> Situation:
    """20,000 messages dead-lettered in a single step"""
    world = World()
    exchange = "amq.headers" if content else "amq.fanout"
    world.queues(1, x_dead_letter_exchange=exchange, x_max_length=0)
    bounded = {"x-max-length": 5, "x-overflow": "reject-publish"}
    world.do([DeclareQueue(1, 1, "d", False, True, False, False, False, bounded)])
    world.do([BindQueue(1, 1, "d", exchange, "", {})])
    total = CONTENT_MESSAGES_MAX if content else MESSAGES_MAX
    entries: list[Work] = []
    queue = world.machine.vhosts["/"].queues["q0"]
    for number in range(3):
        world.do([Enqueue(1, 0, total, "", "q0", False, 1)], [b"x"] * total)
        place = ("/", "q0", queue.number, number * total, total)
        entries.append(([DeadLetter(*place, "", "q0", [], [], "", NO_PRIORITY, content, {}, {})], []))
    return Situation(world.machine, iter(entries))


def dead_letters_with_content() -> Situation:
    """1000 messages dead-lettered each by itself in a single step"""
    return dead_letters(content=True)


SITUATIONS: list[Callable[[], Situation]] = [
    topic_patterns,
    topic_stars,
    routing_keys,
    exchange_graph,
    fanout,
    fanout_with_properties,
    headers,
    values_in_headers,
    consistent_hash,
    acknowledgements,
    limit_lifted,
    single_active_consumer,
    policies,
    dear_patterns,
    queue_with_bindings,
    exchange_with_bindings,
    virtual_host,
    exclusive_queues,
    auto_delete_queues,
    unused_queues,
    messages_of_many_queues,
    lost_node,
    many_consumers,
    session_ends,
    recovered,
    settled,
    rejected,
    long_backlog,
    expiry,
    dead_letters,
    dead_letters_with_content,
]


def main() -> int:
    parser = argparse.ArgumentParser(description="What the dearest legal entries cost.")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--repeat", type=int, default=3, help="entries of each kind")
    options = parser.parse_args()
    print(f"| entry | commands | ms (aim: {ENTRY_MS_MAX:.0f}) |\n| --- | --- | --- |")
    missed = 0
    for make in SITUATIONS:
        if options.only not in make.__name__:
            continue
        situation = make()
        entries = list(islice(situation.entries, options.repeat))
        took_ms = max(apply(situation.machine, *entry) for entry in entries)
        is_missed = took_ms > ENTRY_MS_MAX
        missed += is_missed
        shown = f"**{took_ms:.1f}**" if is_missed else f"{took_ms:.1f}"
        print(f"| {make.__doc__} | {len(entries[0][0])} | {shown} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
