"""Operators that break a recorded history: each makes a violation that the judge must find.

An operator gets a copy of the history and a seed's randomness, chooses a message and changes its rows as a broken
broker would have made clients record them. It is registered with promises, and the judge must report a breach of any
of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from random import Random
from typing import Any, NamedTuple

Row = dict[str, Any]
MS = 1_000_000
SECOND = 1000 * MS
ANSWERS = ("ack", "nack", "reject")


class Operator(NamedTuple):
    name: str
    promises: frozenset[str]
    apply: Callable[[Copy], None]

    def damaged(self, rows: Sequence[Row], seed: int) -> list[Row]:
        """Return a damaged copy of the history, in the order of time."""
        copy = Copy(rows, Random(f"{self.name}/{seed}"))
        self.apply(copy)
        return in_order(copy.rows)


OPERATORS: list[Operator] = []


def breaks(*promises: str) -> Callable[[Callable[[Copy], None]], Callable[[Copy], None]]:
    def register(apply: Callable[[Copy], None]) -> Callable[[Copy], None]:
        OPERATORS.append(Operator(apply.__name__, frozenset(promises), apply))
        return apply

    return register


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows in the order of time, each later than the row before."""
    last_ns = 0
    ordered = sorted(rows, key=lambda row: row["time_ns"])
    for row in ordered:
        last_ns = row["time_ns"] = max(last_ns + 1, row["time_ns"])
    return ordered


class Message(NamedTuple):
    """The rows of a message in a queue, by operation."""

    queue: str
    id: str
    invokes: list[Row]
    ends: list[Row]
    deliveries: list[Row]
    settlements: list[Row]

    @property
    def rows(self) -> list[Row]:
        return [*self.invokes, *self.ends, *self.deliveries, *self.settlements]

    @property
    def is_clean(self) -> bool:
        """Whether it was published once, confirmed, delivered once for the first time, and acknowledged."""
        return (
            [row["type"] for row in self.ends] == ["ok"]
            and len(self.invokes) == len(self.deliveries) == 1
            and not self.deliveries[0]["redelivered"]
            and "deaths" not in self.deliveries[0]
            and [(row["op"], row["type"]) for row in self.settlements] == [("ack", "invoke"), ("ack", "ok")]
        )


class Copy:
    """A history to be damaged."""

    def __init__(self, rows: Sequence[Row], random: Random) -> None:
        self.rows: list[Row] = [dict(row) for row in rows]
        self.random = random
        self.messages: dict[tuple[str, str], Message] = {}
        for row in self.rows:
            if "id" not in row:
                continue
            key = row["queue"], row["id"]
            message = self.messages.setdefault(key, Message(*key, [], [], [], []))
            if row["op"] == "leased":
                continue
            if row["op"] == "deliver":
                message.deliveries.append(row)
            elif row["op"] in ANSWERS:
                message.settlements.append(row)
            else:
                (message.invokes if row["type"] == "invoke" else message.ends).append(row)

    def choose(self, fits: Callable[[Message], object], queue: str = "") -> Message:
        """Return a message from a queue with a name that begins with `queue`."""
        fitting = [each for each in self.messages.values() if each.queue.startswith(queue) and fits(each)]
        return self.random.choice(fitting)

    def clean(self, queue: str = "confirm") -> Message:
        return self.choose(lambda message: message.is_clean and "tx" not in message.invokes[0], queue)

    def early(self, queue: str = "confirm") -> Message:
        """Return a clean message from before the first fault."""
        fitting = [each for each in self.messages.values() if each.is_clean and each.queue.startswith(queue)]
        return self.random.choice(sorted(fitting, key=lambda each: each.deliveries[0]["time_ns"])[:8])

    def drop(self, *rows: Row) -> None:
        gone = {id(row) for row in rows}
        self.rows = [row for row in self.rows if id(row) not in gone]

    def add(self, row: Row, after_ns: int = MS, **changes: Any) -> Row:
        """Add a changed copy of the row, so much later."""
        added = {**row, "time_ns": row["time_ns"] + after_ns, **changes}
        self.rows.append({key: value for key, value in added.items() if value is not None})
        return self.rows[-1]

    def of(self, op: str, type_: str = "ok") -> list[Row]:
        return [row for row in self.rows if (row["op"], row["type"]) == (op, type_)]

    def consumers(self, queue: str) -> list[Row]:
        """Return the requests of the queue's consumers."""
        return [row for row in self.of("consume", "invoke") if row["queue"] == queue]

    def streams(self, queue: str) -> list[list[Message]]:
        """Return the clean messages of each consumer and publisher of such queues, in order, if there are several."""
        streams: dict[Any, list[Message]] = defaultdict(list)
        for message in self.messages.values():
            if message.queue.startswith(queue) and message.is_clean:
                row = message.deliveries[0]
                streams[message.queue, row["connection"], row["consumer"], row["publisher"]].append(message)
        for stream in streams.values():
            stream.sort(key=lambda message: message.deliveries[0]["time_ns"])
        return [stream for stream in streams.values() if len(stream) > 2]


def _place(row: Row) -> Row:
    """Return the client and place of a delivery, to give them to another delivery."""
    return {key: row.get(key) for key in ("process", "node", "connection", "channel", "consumer")}


# Arrival


@breaks("lost")
def never_delivered(copy: Copy) -> None:
    message = copy.clean()
    copy.drop(*message.deliveries, *message.settlements)


@breaks("lost")
def backlog_never_delivered(copy: Copy) -> None:
    message = copy.clean("backlog")
    copy.drop(*message.deliveries, *message.settlements)


@breaks("lost")
def never_settled(copy: Copy) -> None:
    copy.drop(*copy.clean().settlements)


@breaks("lost", "phantom")
def body_damaged(copy: Copy) -> None:
    message = copy.clean()
    for row in (*message.deliveries, *message.settlements):
        row["id"] = f"corrupt {row['id']}"


@breaks("phantom")
def invented(copy: Copy) -> None:
    copy.add(copy.clean().deliveries[0], id="nobody:1", publisher="nobody", sequence=1)


@breaks("phantom")
def refused_and_delivered(copy: Copy) -> None:
    copy.clean().ends[0]["type"] = "fail"


@breaks("phantom")
def published_by_nobody(copy: Copy) -> None:
    message = copy.clean()
    copy.drop(*message.invokes, *message.ends)


@breaks("routing")
def delivered_from_another_queue(copy: Copy) -> None:
    message = copy.clean()
    for row in (*message.deliveries, *message.settlements):
        row["queue"] = "backlog"


@breaks("routing")
def delivered_from_another_queue_too(copy: Copy) -> None:
    copy.add(copy.clean().deliveries[0], queue="single-active")


@breaks("routing")
def routed_against_its_key(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean, "routed-odd")
    copy.add(message.deliveries[0], queue="routed-even")


@breaks("routing")
def left_out_by_the_exchange(copy: Copy) -> None:
    message = copy.choose(
        lambda message: message.is_clean and ("routed-all", message.id) in copy.messages, "routed-odd"
    )
    copy.drop(*message.deliveries, *message.settlements)


@breaks("causality")
def confirmed_before_its_publish(copy: Copy) -> None:
    message = copy.clean()
    message.ends[0]["time_ns"] = message.invokes[0]["time_ns"] - MS


@breaks("causality")
def confirmed_without_a_publish(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean, "backlog")
    copy.add(message.ends[0], id=f"{message.id}0", call=10**9)


@breaks("causality")
def delivered_before_its_publish(copy: Copy) -> None:
    message = copy.clean()
    message.deliveries[0]["time_ns"] = message.invokes[0]["time_ns"] - MS


@breaks("causality")
def dead_letter_delivered_before_its_publish(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) == 1, "dead-letter-second")
    origin = copy.messages["dead-letter-first", message.id]
    message.deliveries[0]["time_ns"] = origin.invokes[0]["time_ns"] - MS


# Duplicates


@breaks("unmarked_duplicate")
def delivered_again_unmarked(copy: Copy) -> None:
    copy.add(copy.clean().deliveries[0])


@breaks("unmarked_duplicate")
def delivered_again_unmarked_elsewhere(copy: Copy) -> None:
    message = copy.early()
    first = message.deliveries[0]
    others = [row for row in copy.consumers(message.queue) if row["connection"] != first["connection"]]
    copy.add(first, **_place(copy.random.choice(others)), time_ns=max(copy.rows[-1]["time_ns"], 0) + SECOND)


@breaks("unmarked_duplicate")
def redelivery_unmarked(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) == 4, "dead-letter-first")
    message.deliveries[2].update(redelivered=False, delivery_count=0)


@breaks("dedup_duplicate")
def repeated_publish_not_recognized(copy: Copy) -> None:
    copy.add(copy.clean("dedup").deliveries[0])


@breaks("acknowledged")
def again_after_the_acknowledgement(copy: Copy) -> None:
    message = copy.clean()
    added = copy.add(message.deliveries[0], redelivered=True, delivery_count=1)
    added["time_ns"] = message.settlements[-1]["time_ns"] + MS


@breaks("acknowledged")
def again_after_the_commit(copy: Copy) -> None:
    message = copy.choose(
        lambda message: (
            [row["type"] for row in message.settlements] == ["invoke", "ok"]
            and len(message.deliveries) == 1
            and [row["type"] for row in message.ends] == ["ok"]
        ),
        "tx-",
    )
    added = copy.add(message.deliveries[0], redelivered=True, delivery_count=1)
    added["time_ns"] = message.settlements[-1]["time_ns"] + MS


# Consumers


@breaks("two_holders")
def at_two_consumers(copy: Copy) -> None:
    message = copy.early()
    held = message.deliveries[0]
    others = [
        row
        for row in copy.consumers(message.queue)
        if row["connection"] != held["connection"] and row["time_ns"] < held["time_ns"]
    ]
    copy.add(held, 1000, **_place(copy.random.choice(others)), redelivered=True, delivery_count=1)
    for row in message.settlements:
        row["time_ns"] += MS


@breaks("two_holders")
def again_to_its_holder(copy: Copy) -> None:
    message = copy.clean()
    copy.add(message.deliveries[0], 1000, redelivered=True, delivery_count=1)
    for row in message.settlements:
        row["time_ns"] += MS


@breaks("two_holders")
def came_back_without_a_return(copy: Copy) -> None:
    message = copy.choose(lambda message: _on_a_connection(message.deliveries[:2]), "dead-letter-first")
    first = message.settlements[0]["call"]
    copy.drop(*(row for row in message.settlements if row["call"] == first))


def _on_a_connection(deliveries: Sequence[Row]) -> bool:
    """Whether these are two deliveries, both on the same connection."""
    return len(deliveries) == 2 and len({row["connection"] for row in deliveries}) == 1


@breaks("redelivery")
def marked_at_its_first_delivery(copy: Copy) -> None:
    copy.early().deliveries[0].update(redelivered=True, delivery_count=1)


@breaks("redelivery")
def marked_in_a_classic_queue(copy: Copy) -> None:
    copy.early("confirm-classic").deliveries[0].update(redelivered=True)


@breaks("redelivery")
def marked_without_a_count(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) > 1, "dead-letter-first")
    message.deliveries[1]["delivery_count"] = 0


@breaks("redelivery")
def counted_without_a_mark(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean, "confirm-1")
    message.deliveries[0]["delivery_count"] = 1


@breaks("redelivery")
def counted_twice_the_same(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) == 4, "dead-letter-first")
    message.deliveries[2]["delivery_count"] = 1


@breaks("redelivery")
def counted_down(copy: Copy) -> None:
    message = copy.choose(lambda message: _on_a_connection(message.deliveries[1:3]), "dead-letter-first")
    for row, count in zip(message.deliveries[1:3], (2, 1), strict=True):
        row["delivery_count"] = count


@breaks("cancelled")
def delivered_after_cancel_ok(copy: Copy) -> None:
    cancelled = {(row["connection"], row["consumer"]): row for row in copy.of("cancel")}
    last = {
        (row["connection"], row["consumer"]): row
        for row in copy.of("deliver")
        if (row["connection"], row.get("consumer")) in cancelled
    }
    key = copy.random.choice(sorted(last))
    cancelled[key]["time_ns"] = last[key]["time_ns"] - 1


@breaks("cancelled")
def delivered_before_its_consume(copy: Copy) -> None:
    first = {(row["connection"], row.get("consumer")): row for row in reversed(copy.of("deliver"))}
    request = copy.random.choice(
        [row for row in copy.of("consume", "invoke") if (row["connection"], row["consumer"]) in first]
    )
    request["time_ns"] = first[request["connection"], request["consumer"]]["time_ns"] + 1


@breaks("single_active")
def second_consumer_active(copy: Copy) -> None:
    stream = copy.random.choice([stream for stream in copy.streams("single-active") if len(stream) > 4])
    message = stream[len(stream) // 2]
    row = message.deliveries[0]
    other = next(
        row
        for row in copy.consumers("single-active")
        if row["connection"] != stream[0].deliveries[0]["connection"]
    )
    row.update(_place(other))
    for settlement in message.settlements:
        settlement.update(_place(other))


# Order


def _swap(one: Message, other: Message) -> None:
    """Let each message be delivered in the other's place, and settled there."""
    about = ("id", "publisher", "sequence", "priority")
    for rows in zip(one.deliveries + one.settlements, other.deliveries + other.settlements, strict=True):
        first, second = ({key: row[key] for key in about if key in row} for row in rows)
        rows[0].update(second)
        rows[1].update(first)


@breaks("order")
def overtaken_by_the_next(copy: Copy) -> None:
    stream = copy.random.choice(copy.streams("confirm"))
    _swap(*copy.random.choice(list(pairwise(stream))))


@breaks("order")
def overtaken_by_many(copy: Copy) -> None:
    stream = max(copy.streams("confirm"), key=len)
    _swap(stream[0], stream[-1])


@breaks("order")
def delivered_late(copy: Copy) -> None:
    stream = copy.random.choice(copy.streams("dedup"))
    late, *_, last = stream
    for row in (*late.deliveries, *late.settlements):
        row["time_ns"] = last.deliveries[0]["time_ns"] + MS


@breaks("priority_order")
def normal_before_an_older_high(copy: Copy) -> None:
    pairs = [
        (high, normal)
        for stream in copy.streams("priority")
        for high in stream
        for normal in stream
        if high.invokes[0]["priority"] >= 5 > normal.invokes[0]["priority"]
        and _is_older(high, normal)
        and high.deliveries[0]["time_ns"] < normal.deliveries[0]["time_ns"]
    ]
    _swap(*copy.random.choice(pairs))


def _is_older(one: Message, other: Message) -> bool:
    """Return whether a message certainly came before the other into their queue."""
    places = [(message.invokes[0]["connection"], message.invokes[0]["channel"]) for message in (one, other)]
    in_order = one.invokes[0]["time_ns"] < other.invokes[0]["time_ns"]
    return one.ends[0]["time_ns"] < other.invokes[0]["time_ns"] or (in_order and places[0] == places[1])


@breaks("priority_ratio")
def normal_first(copy: Copy) -> None:
    """Deliver normal messages first, in the order of publishing."""
    for stream in copy.streams("priority"):
        places = [
            [{**_place(row), "time_ns": row["time_ns"], "call": row["call"]} for row in message.deliveries]
            for message in stream
        ]
        waiting = sorted(stream, key=lambda message: message.ends[0]["time_ns"])
        for [place] in places:
            ready = [each for each in waiting if each.ends[0]["time_ns"] < place["time_ns"]]
            normal = [each for each in ready if each.invokes[0]["priority"] < 5]
            message = (normal or ready or waiting)[0]
            waiting.remove(message)
            message.deliveries[0].update(place)


# Limits and times


@breaks("delivery_limit")
def delivered_above_the_limit(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) == 4, "dead-letter-first")
    copy.add(message.deliveries[-1], 1000, delivery_count=4)


@breaks("delivery_limit")
def delivered_more_often_than_the_limit(copy: Copy) -> None:
    message = copy.choose(lambda message: len(message.deliveries) == 4, "dead-letter-first")
    copy.add(message.deliveries[-1], 1000)


@breaks("ttl")
def delivered_after_it_expired(copy: Copy) -> None:
    dead = copy.choose(_expired, "timed-expired")
    drain = copy.consumers("timed-short")[-1]
    for row in (*dead.deliveries, *dead.settlements):
        row.pop("deaths", None)
        row.update(_place(drain), queue="timed-short", time_ns=row["time_ns"] + drain["time_ns"])


def _expired(message: Message) -> bool:
    deaths = message.deliveries[0].get("deaths", ())
    return len(message.deliveries) == 1 and [death["reason"] for death in deaths] == ["expired"]


@breaks("ttl")
def expired_too_early(copy: Copy) -> None:
    dead = copy.choose(_expired, "timed-expired")
    copy.messages["timed-short", dead.id].invokes[0]["ttl_ms"] = 600_000
    copy.messages["timed-short", dead.id].invokes[0]["queue"] = "timed"
    for row in copy.messages["timed-short", dead.id].ends:
        row["queue"] = "timed"
    for row in dead.deliveries:
        row["deaths"] = [{**row["deaths"][0], "queue": "timed"}]


@breaks("delay")
def delivered_before_its_delay(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean and "delay_ms" in message.invokes[0], "timed")
    message.invokes[0]["delay_ms"] = 600_000


@breaks("max_length")
def longer_than_its_length(copy: Copy) -> None:
    """A dropped message is in the queue at the end."""
    drain = copy.consumers("bounded")[-1]
    dropped = [each for each in copy.messages.values() if each.queue == "bounded-dropped" and each.deliveries]
    for message in dropped:
        if copy.messages["bounded", message.id].ends[0]["type"] == "ok":
            for row in (*message.deliveries, *message.settlements):
                row.pop("deaths", None)
                row.update(_place(drain), queue="bounded", time_ns=row["time_ns"] + drain["time_ns"])


@breaks("liveness")
def forgotten_in_its_queue(copy: Copy) -> None:
    message = copy.clean()
    for row in (*message.deliveries, *message.settlements):
        row["time_ns"] += 200 * SECOND


@breaks("resurrected")
def back_after_the_delete(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean, "churn")
    delivery = message.deliveries[0]
    deleted = next(
        row
        for row in copy.of("delete")
        if row["queue"] == message.queue
        and row.get("connection") == delivery["connection"]
        and row["time_ns"] > delivery["time_ns"]
    )
    copy.add(deleted, 1000, **{**delivery, "time_ns": deleted["time_ns"] + 1000})


@breaks("resurrected")
def back_after_the_purge(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean, "backlog")
    confirm = message.ends[0]
    place = {"process": "admin", "call": 1, "op": "purge", "queue": "backlog"}
    copy.rows.append({**place, "type": "invoke", "time_ns": confirm["time_ns"] + 1})
    copy.rows.append({**place, "type": "ok", "time_ns": confirm["time_ns"] + 2})


# Transactions


def _of_commit(copy: Copy, outcome: str) -> list[Message]:
    """Return the messages of each transaction with such an outcome, first come first; each was published once."""
    transactions: dict[str, list[Message]] = defaultdict(list)
    for message in copy.messages.values():
        ends = [row["type"] for row in message.ends]
        if len(message.invokes) == 1 and "tx" in message.invokes[0] and ends == [outcome]:
            transactions[message.invokes[0]["tx"]].append(message)
    return copy.random.choice([messages for messages in transactions.values() if len(messages) == 2])


@breaks("tx_atomic")
def half_committed(copy: Copy) -> None:
    message = copy.random.choice(_of_commit(copy, "ok"))
    copy.drop(*message.deliveries, *message.settlements)


@breaks("tx_atomic")
def half_of_a_commit_without_an_answer(copy: Copy) -> None:
    messages = _of_commit(copy, "ok")
    tx = messages[0].invokes[0]["tx"]
    for row in copy.rows:
        if row.get("tx") == tx and row["type"] == "ok":
            row["type"] = "unknown"
    copy.drop(*messages[0].deliveries, *messages[0].settlements)


@breaks("tx_atomic")
def rolled_back_and_delivered(copy: Copy) -> None:
    message = copy.random.choice(_of_commit(copy, "fail"))
    seen = copy.choose(lambda message: message.is_clean, "tx-a").deliveries[0]
    about = {key: message.invokes[0][key] for key in ("queue", "id", "publisher", "sequence")}
    copy.add(seen, **about)


@breaks("tx_atomic")
def acknowledgement_undone(copy: Copy) -> None:
    message = copy.choose(lambda message: message.is_clean and "tx" in message.settlements[-1], "tx-")
    end_ns = copy.rows[-1]["time_ns"] + SECOND
    place = {"process": "late", "connection": "late#1", "channel": 1, "node": "n1"}
    copy.rows.append({**place, "time_ns": end_ns, "call": 1, "type": "invoke", "op": "connect"})
    copy.add(
        message.deliveries[0], redelivered=True, delivery_count=1, **place, consumer=None, time_ns=end_ns + 1
    )


# Dead letters


def _rejected(copy: Copy, target: str) -> Message:
    """Return a message that was rejected, and arrived once in the target."""
    return copy.choose(
        lambda message: (
            len(message.deliveries) == 1
            and message.deliveries[0]["deaths"][0]["reason"] == "rejected"
            and message.deliveries[0]["redelivered"]
        ),
        target,
    )


@breaks("dead_letter")
def dead_letter_lost(copy: Copy) -> None:
    name = _rejected(copy, "dead-letter-second").id
    gone = [message.rows for key, message in copy.messages.items() if key[1] == name and key[0] != FIRST]
    copy.drop(*(row for rows in gone for row in rows))


FIRST = "dead-letter-first"


@breaks("dead_letter")
def over_delivered_and_lost(copy: Copy) -> None:
    name = copy.choose(
        lambda message: message.deliveries[0]["deaths"][-1]["reason"] == "delivery_limit",
        "dead-letter-second",
    ).id
    gone = [message.rows for key, message in copy.messages.items() if key[1] == name and key[0] != FIRST]
    copy.drop(*(row for rows in gone for row in rows))


@breaks("dead_letter")
def dead_letter_twice(copy: Copy) -> None:
    message = copy.choose(
        lambda message: len(message.deliveries) == 1 and not message.deliveries[0]["redelivered"],
        "dead-letter-second",
    )
    copy.add(message.deliveries[0])


@breaks("dead_letter")
def rejected_dead_letter_twice(copy: Copy) -> None:
    """Both arrivals are marked redelivered, because of the rejection."""
    message = copy.choose(
        lambda message: (
            len(message.deliveries) == 1
            and message.deliveries[0]["redelivered"]
            and message.settlements
            and message.settlements[0]["op"] == "ack"
        ),
        "dead-letter-last",
    )
    copy.add(message.deliveries[0])


@breaks("dead_letter")
def died_of_a_rejection_by_nobody(copy: Copy) -> None:
    name = _rejected(copy, "dead-letter-second").id
    for row in copy.messages[FIRST, name].settlements:
        row["op"] = "ack"


def _deaths(row: Row) -> list[dict[str, Any]]:
    row["deaths"] = [dict(death) for death in row["deaths"]]
    return row["deaths"]


@breaks("x_death")
def no_death_history(copy: Copy) -> None:
    del _rejected(copy, "dead-letter-second").deliveries[0]["deaths"]


@breaks("x_death")
def deaths_in_the_wrong_order(copy: Copy) -> None:
    _deaths(_rejected(copy, "dead-letter-last").deliveries[0]).reverse()


@breaks("x_death")
def a_death_left_out(copy: Copy) -> None:
    _deaths(_rejected(copy, "dead-letter-last").deliveries[0]).pop()


@breaks("x_death")
def a_death_counted_twice(copy: Copy) -> None:
    _deaths(_rejected(copy, "dead-letter-second").deliveries[0])[0]["count"] = 2


@breaks("x_death")
def died_of_a_limit_that_there_is_not(copy: Copy) -> None:
    _deaths(_rejected(copy, "dead-letter-second").deliveries[0])[0]["reason"] = "maxlen"


@breaks("x_death")
def died_in_another_queue(copy: Copy) -> None:
    _deaths(_rejected(copy, "dead-letter-second").deliveries[0])[0]["queue"] = "confirm-1"


@breaks("x_death")
def history_of_a_death_that_never_was(copy: Copy) -> None:
    copy.clean().deliveries[0]["deaths"] = [{"queue": "confirm-1", "reason": "expired", "count": 1}]


# Leases


def _leases(copy: Copy) -> list[list[Row]]:
    """Return the messages of each lease that was certainly committed by itself, as its first reader read them."""
    committed = {_lease(row) for row in copy.of("commit_leases")}
    refused = {_lease(row) for row in copy.of("release_lease", "invoke")}
    leases: dict[Any, list[Row]] = defaultdict(list)
    for row in copy.of("leased"):
        if row["place"] == 0:
            leases.setdefault((_lease(row), row["process"]), [])
        leases[_lease(row), row["process"]].append(row)
    firsts: dict[Any, list[Row]] = {}
    for (lease, _), rows in leases.items():
        firsts.setdefault(lease, rows)
    return [rows for lease, rows in firsts.items() if lease in committed - refused]


def _lease(row: Row) -> tuple[str, int]:
    return row["group"], row["lease"]


def _some_lease(copy: Copy) -> list[Row]:
    return copy.random.choice(_leases(copy))


def _reads(copy: Copy, lease: tuple[str, int]) -> list[Row]:
    return [row for row in copy.of("read_lease") if _lease(row) == lease and row["messages"]]


@breaks("lease_repeatable")
def lease_has_other_messages(copy: Copy) -> None:
    reads = [found for rows in _leases(copy) if len(found := _reads(copy, _lease(rows[0]))) > 1]
    copy.random.choice(copy.random.choice(reads))["digest"] = "0" * 16


@breaks("lease_repeatable")
def lease_grew(copy: Copy) -> None:
    copy.random.choice(_reads(copy, _lease(_some_lease(copy)[0])))["messages"] += 1


@breaks("lease_holders")
def leased_by_both_groups(copy: Copy) -> None:
    """A committed message of a group is in a lease that the other group takes meanwhile."""
    leases = _leases(copy)
    pairs = [
        (one, other)
        for one, other in product(leases, leases)
        if one[0]["group"] != other[0]["group"]
        and _open_ns(copy, one) < _open_ns(copy, other) < _end_ns(copy, one)
    ]
    one, other = copy.random.choice(pairs)
    _put_into(copy, copy.random.choice(one), other)


def _open_ns(copy: Copy, rows: list[Row]) -> int:
    """Return when a lease had been taken."""
    return min(
        row["time_ns"]
        for row in copy.rows
        if (row["op"], row["type"]) in (("take_lease", "ok"), ("read_lease", "ok"))
        and row["messages"]
        and _lease(row) == _lease(rows[0])
    )


def _end_ns(copy: Copy, rows: list[Row]) -> int:
    """Return when its commit was requested first."""
    return min(row["time_ns"] for row in copy.of("commit_leases", "invoke") if _lease(row) == _lease(rows[0]))


def _put_into(copy: Copy, message: Row, lease: list[Row]) -> None:
    """Let a message be in a further lease, too, at the place behind its last message."""
    copy.add(
        lease[-1],
        1,
        **{name: message[name] for name in ("id", "publisher", "sequence")},
        place=lease[-1]["place"] + 1,
    )


@breaks("lease_holders")
def twice_in_a_lease(copy: Copy) -> None:
    lease = _some_lease(copy)
    _put_into(copy, copy.random.choice(lease), lease)


@breaks("lease_holders")
def delivered_while_leased(copy: Copy) -> None:
    """A new consumer gets a message of a lease before the commit is requested."""
    lease = copy.random.choice(
        [rows for rows in _leases(copy) if _end_ns(copy, rows) - rows[-1]["time_ns"] > 10 * MS]
    )
    _deliver(copy, copy.random.choice(lease), lease[-1]["time_ns"])


def _deliver(copy: Copy, message: Row, after_ns: int) -> None:
    """Let a consumer that connects then get a leased message."""
    place = {"process": "late", "connection": "late#1", "channel": 1, "node": "n1"}
    copy.rows.append({**place, "time_ns": after_ns + 1, "call": 1, "type": "invoke", "op": "connect"})
    about = {name: message[name] for name in ("queue", "workload", "id", "publisher", "sequence")}
    counts = {"redelivered": False, "delivery_count": 0}
    copy.rows.append(
        {**place, **about, **counts, "time_ns": after_ns + 2, "call": 2, "type": "ok", "op": "deliver"}
    )


@breaks("lease_holders")
def leased_after_its_acknowledgement(copy: Copy) -> None:
    """The consumer's next request was answered, so the acknowledgement has arrived."""
    lease = max(_leases(copy), key=lambda rows: rows[0]["time_ns"])
    asked = {(row["process"], row["call"]): row["time_ns"] for row in copy.of("cancel", "invoke")}
    answered = {row["connection"]: asked[row["process"], row["call"]] for row in copy.of("cancel")}
    message = copy.choose(
        lambda message: (
            message.is_clean
            and message.settlements[0]["time_ns"] < answered.get(message.deliveries[0]["connection"], 0)
            and message.settlements[-1]["time_ns"] < _open_ns(copy, lease)
        ),
        lease[0]["queue"],
    )
    _put_into(copy, message.deliveries[0], lease)


@breaks("lease_committed")
def delivered_after_its_commit(copy: Copy) -> None:
    lease = _some_lease(copy)
    _deliver(copy, copy.random.choice(lease), copy.rows[-1]["time_ns"] + SECOND)


@breaks("lease_committed")
def leased_after_its_commit(copy: Copy) -> None:
    first, *_, last = sorted(_leases(copy), key=lambda rows: rows[0]["time_ns"])
    _put_into(copy, copy.random.choice(first), last)


@breaks("lease_fenced")
def carried_out_for_a_former_owner(copy: Copy) -> None:
    """A refused request is answered as if it was carried out."""
    opens = copy.of("open_group")
    asked = {(row["process"], row["call"]): row["time_ns"] for row in copy.rows if row["type"] == "invoke"}
    refused = [
        row
        for op in ("commit_leases", "release_lease")
        for row in copy.of(op, "fail")
        for opened in opens
        if opened["group"] == row["group"]
        and opened["fence"] > row["fence"]
        and opened["time_ns"] < asked[row["process"], row["call"]]
    ]
    copy.random.choice(refused)["type"] = "ok"


@breaks("lease_settled")
def released_and_gone(copy: Copy) -> None:
    """A released message is seen nowhere again."""
    released = {_lease(row) for row in copy.of("release_lease")}
    ids = {row["id"] for row in copy.of("leased") if _lease(row) in released}
    name = copy.random.choice(sorted(ids))
    again = [
        row
        for row in copy.rows
        if row.get("id") == name
        and row["op"] != "publish"
        and not (row["op"] == "leased" and _lease(row) in released)
    ]
    copy.drop(*again)


@breaks("lease_settled")
def gone_before_its_commit(copy: Copy) -> None:
    later = [
        row
        for rows in _leases(copy)
        for row in _reads(copy, _lease(rows[0]))[1:]
        if row["time_ns"] < _end_ns(copy, rows)
    ]
    row = copy.random.choice(later)
    row["type"] = "fail"
    del row["messages"], row["digest"]


def renamed(rows: Iterable[Row], prefix: str) -> list[Row]:
    """Return the rows under other names, so that several histories can be judged as one."""
    names = ("process", "connection", "consumer", "id", "publisher", "tx", "group")
    changed: list[Row] = []
    for row in rows:
        copy = {**row, **{name: f"{prefix}{row[name]}" for name in names if name in row}}
        if "queue" in row:
            copy["queue"] = f"{prefix}{row['queue']}"
        if "deaths" in row:
            copy["deaths"] = [{**death, "queue": f"{prefix}{death['queue']}"} for death in row["deaths"]]
        changed.append(copy)
    return changed


SEED, SECONDS = 4, 4.0
"""A simulated run that gives most operators a message to damage."""
OF_MANY_MESSAGES = {"longer_than_its_length"}
"""Operators that need a longer history."""
QUICK = [operator for operator in OPERATORS if operator.name not in OF_MANY_MESSAGES]
