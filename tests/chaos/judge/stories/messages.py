"""Stories of messages: healthy stories break no promise, planted stories return the rows to be found."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from chaos.judge.priorities import IN_HAND, PHASE, UNSEEN
from tests.chaos.judge.histories import Row, Story, died
from tests.chaos.judge.stories.registry import healthy, planted

JUMPS_MS = 90_000
"""Jumps of clocks concern all messages of their time, so such stories are apart from all others."""

# Healthy


@healthy
def published_and_taken(story: Story) -> None:
    story.queue()
    for number in range(1, 6):
        story.publish(number)
        story.take(number, to=f"con-{number % 2}#1")


@healthy
def unknown_outcomes_either_way(story: Story) -> None:
    story.queue()
    story.publish(1, "unknown")
    story.publish(2, "unknown")
    story.take(2)
    story.publish(3, None)
    story.publish(4, None)
    story.take(4)


@healthy
def refused_and_not_delivered(story: Story) -> None:
    story.queue()
    story.publish(1, "fail")
    story.publish(2)
    story.take(2)


@healthy
def published_again_and_both_arrive(story: Story) -> None:
    story.queue()
    story.publish(1, "unknown")
    story.publish(2, by="pub#2")
    story.publish(1, by="pub#2", attempt=2)
    for number in (2, 1, 1):
        story.take(number)


@healthy
def published_again_after_a_refusal(story: Story) -> None:
    story.queue()
    story.publish(1, "fail")
    story.publish(1, attempt=2)
    story.take(1)


@healthy
def redelivered_after_a_lost_connection(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1, "con-1#1")
    story.row("info", "connect", "con-1#1", detail="lost")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)


@healthy
def redelivered_although_acknowledged(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.take(1, "con-1#1")
    story.connect("con-2#1")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)


@healthy
def first_delivery_is_seen_late(story: Story) -> None:
    """It was on its way to a slow client when its connection was given up."""
    story.queue()
    story.connect("con-1#1")
    story.connect("con-2#1")
    story.publish(1)
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)
    story.deliver(1, "con-1#1")


@healthy
def published_late_from_a_node_that_was_cut_off(story: Story) -> None:
    story.queue()
    story.publish(1, "unknown")
    story.publish(2, by="pub#2")
    story.take(2)
    story.take(1)


@healthy
def order_holds_within_a_consumer_only(story: Story) -> None:
    story.queue()
    for number in (1, 2, 3):
        story.publish(number)
    story.take(2, "con-2#1")
    story.take(1, "con-1#1")
    story.take(3, "con-1#1")


@healthy
def earlier_consumer_is_delivered_last(story: Story) -> None:
    """A delivery that was sent first may be received last."""
    story.queue()
    story.connect("con-1#1")
    story.call("consume", "con-1#1", queue=story.name, consumer="con-1#1.1")
    story.publish(1)
    story.publish(2)
    story.connect("con-2#1")
    story.take(2, "con-2#1")
    story.take(1, "con-1#1")


@healthy
def later_consumer_gets_redeliveries_and_concurrent_publishes(story: Story) -> None:
    """Redeliveries and concurrent publishes have no place in the order."""
    story.queue()
    story.publish(1)
    unseen = story.publish(2, None)
    third = story.publish(3, None, by="pub#2")
    for invoke in (unseen, third):
        story.end(invoke, "ok")
    story.take(3)
    story.connect("con-2#1")
    story.take(2, "con-2#1")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)


@healthy
def higher_priority_overtakes_at_a_second_consumer(story: Story) -> None:
    story.queue(priorities=True)
    story.publish(1, priority=0)
    story.publish(2, priority=9)
    story.take(2)
    story.connect("con-2#1")
    story.take(1, "con-2#1")


@healthy
def higher_priority_overtakes(story: Story) -> None:
    story.queue(priorities=True)
    story.publish(1, priority=0)
    story.publish(2, priority=9)
    story.take(2)
    story.take(1)


@healthy
def confirmed_on_two_connections_at_once(story: Story) -> None:
    """Neither was confirmed when the other was published."""
    story.queue()
    first = story.publish(1, None)
    second = story.publish(2, None, by="pub#2")
    story.end(second, "ok")
    story.end(first, "ok")
    story.take(2)
    story.take(1)


@healthy
def purged_and_deleted(story: Story) -> None:
    purged = story.queue("-purged")
    story.publish(1, queue=purged)
    story.call("purge", "admin#1", queue=purged)
    story.publish(2, queue=purged)
    story.take(2, queue=purged)
    perhaps = story.queue("-perhaps")
    story.call("delete", "admin#1", "unknown", queue=perhaps)
    story.publish(1, by="late#1", queue=perhaps)
    published = story.queue("-while-deleted")
    invoke = story.publish(1, None, by="other#1", queue=published)
    story.call("delete", "admin#1", queue=published)
    story.end(invoke, "ok")


@healthy
def on_its_way_when_it_was_purged(story: Story) -> None:
    story.queue()
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.call("purge", "con#1", queue=story.name)
    story.take(1)


@healthy
def in_the_hands_of_a_consumer_when_it_was_purged(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1, "con-1#1")
    story.call("purge", "admin#1", queue=story.name)
    story.connect("con-2#1")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)


@healthy
def purged_in_vain_or_too_early(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.call("purge", "admin#1", "fail", queue=story.name)
    story.call("delete", "admin#1", "unknown", queue=story.name)
    early = story.queue("-early")
    publish = story.publish(1, None, by="other#1", queue=early)
    purge = story.row("invoke", "purge", "admin#1", queue=early)
    story.end(publish, "ok")
    story.end(purge, "ok")
    story.connect("con#1")
    story.take(1)
    story.take(1, by="other", queue=early)


@healthy
def deleted_redeclared_and_filled(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.call("delete", "admin#1", queue=story.name)
    story.call("declare", "admin#1", queue=story.name)
    story.publish(2)
    story.deliver(2, "admin#1", consumer=None)
    story.settle(2, to="admin#1")


@healthy
def a_circle_is_deleted_behind_a_dead_letter(story: Story) -> None:
    """It was in the other queue meanwhile."""
    work, rest = f"{story.name}-work", f"{story.name}-rest"
    story.queue("-work", dead_letters_to=rest)
    story.queue("-rest", dead_letters_to=work, message_ttl=1)
    story.publish(1, queue=work)
    story.deliver(1, queue=work)
    story.settle(1, "reject", queue=work)
    story.call("delete", "admin#1", queue=work)
    story.connect("con#2")
    story.take(1, "con#2", queue=work, deaths=[died(rest, "expired"), died(work)])


@healthy
def not_emptied(story: Story) -> None:
    story.queue(drained=False)
    story.publish(1)
    story.queue("-source", dead_letters_to=story.name)
    story.publish(1, by="other#1", queue=f"{story.name}-source")


@healthy
def dropped_over_a_limit(story: Story) -> None:
    story.queue(max_length=1)
    story.publish(1)
    story.publish(2)
    story.take(2)


@healthy
def taken_without_acknowledgement(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1)


def _chain(story: Story, **of_second: Any) -> tuple[str, str, str]:
    """Three queues in a chain of dead-lettering; all three numbers are rejected in the first queue."""
    last = story.queue("-3")
    second = story.queue("-2", dead_letters_to=last, **of_second)
    first = story.queue("-1", dead_letters_to=second)
    for number in (1, 2, 3):
        story.publish(number, queue=first)
        story.deliver(number, queue=first)
        story.settle(number, "reject", queue=first)
    return first, second, last


@healthy
def dead_letters_go_on(story: Story) -> None:
    last = story.queue("-3")
    second = story.queue("-2", dead_letters_to=last)
    first = story.queue("-1", dead_letters_to=second, delivery_limit=1, message_ttl=1)
    for number in (1, 2, 3):
        story.publish(number, queue=first)
    story.deliver(1, queue=first)
    story.settle(1, "reject", queue=first)
    story.deliver(1, "con-2#1", queue=second, deaths=[died(first)])
    story.settle(1, "reject", "con-2#1", queue=second)
    story.take(1, "con-3#1", queue=last, deaths=[died(second), died(first)])
    story.deliver(2, queue=first)
    story.settle(2, "nack", queue=first)
    story.deliver(2, queue=first, redelivered=True, delivery_count=1)
    story.settle(2, "nack", queue=first)
    story.take(2, "con-2#1", queue=second, deaths=[died(first, "delivery_limit")])
    # Expired before any delivery.
    story.take(3, "con-2#1", queue=second, deaths=[died(first, "expired")])


@healthy
def dead_letters_are_purged_further_on(story: Story) -> None:
    first, second, last = _chain(story)
    for number in (1, 2, 3):
        story.deliver(number, "con-2#1", queue=second, deaths=[died(first)])
        story.settle(number, "reject", "con-2#1", queue=second)
    story.take(1, "con-3#1", queue=last, deaths=[died(second), died(first)])
    story.deliver(2, "con-3#1", queue=last, deaths=[died(second), died(first)])
    story.call("purge", "admin#1", queue=last)


@healthy
def dead_letters_stay_in_an_undrained_queue(story: Story) -> None:
    target = story.queue("-target", drained=False)
    story.queue(dead_letters_to=target)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "reject")
    story.deliver(1, "con-2#1", queue=target, deaths=[died(story.name)])


@healthy
def dead_letters_delivered_and_not_settled(story: Story) -> None:
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "reject")
    story.deliver(1, "con-2#1", queue=target, deaths=[died(story.name)])


@healthy
def dead_letters_go_round(story: Story) -> None:
    work, rest = f"{story.name}-work", f"{story.name}-rest"
    story.queue("-work", dead_letters_to=rest)
    story.queue("-rest", dead_letters_to=work, message_ttl=1)
    story.publish(1, queue=work)
    for turn in range(3):
        deaths = [died(rest, "expired", turn), died(work, "rejected", turn)] if turn else None
        story.deliver(1, queue=work, deaths=deaths)
        story.settle(1, "ack" if turn == 2 else "reject", queue=work)


@healthy
def dead_letters_of_both_copies(story: Story) -> None:
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    story.publish(1, "unknown")
    story.publish(1, attempt=2)
    for _ in range(2):
        story.deliver(1)
        story.settle(1, "reject")
        story.take(1, "con-2#1", queue=target, deaths=[died(story.name)])


@healthy
def deduplicated(story: Story) -> None:
    story.queue(dedup=True)
    story.publish(1, "unknown", dedup=True)
    story.publish(1, attempt=2, dedup=True)
    story.deliver(1)
    story.settle(1, "nack")
    story.take(1, redelivered=True, delivery_count=1)


@healthy
def transactions_of_all_kinds(story: Story) -> None:
    story.queue()
    for number, outcome in ((1, "ok"), (2, "fail"), (3, "unknown"), (4, "unknown")):
        tx = f"{story.name}/tx-{number}"
        story.publish(2 * number, outcome, tx=tx)
        story.publish(2 * number + 1, outcome, tx=tx)
        story.call("tx_commit", "pub#1", outcome, tx=tx)
    rolled_back = f"{story.name}/tx-5"
    story.publish(10, "fail", tx=rolled_back)
    story.call("tx_rollback", "pub#1", tx=rolled_back)
    story.publish(11, "fail", tx=f"{story.name}/tx-6")  # the connection is lost before the commit
    for number in (2, 3, 6, 7):
        story.take(number)


@healthy
def acknowledged_in_transactions(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1)
    story.settle(1, outcome="fail", tx=f"{story.name}/tx-1")
    story.call("tx_rollback", "con#1", tx=f"{story.name}/tx-1")
    story.connect("con#2")
    story.deliver(1, "con#2", redelivered=True, delivery_count=1)
    story.settle(1, to="con#2", tx=f"{story.name}/tx-2")
    story.call("tx_commit", "con#2", tx=f"{story.name}/tx-2")


def _committed_with(story: Story, acknowledged: int, *, publish: int, queue: str | None = None) -> Row:
    """Add a transaction whose commit has no answer; return the row of its acknowledgement."""
    tx = f"{story.name}/tx"
    parts = [
        story.publish(publish, None, tx=tx, queue=queue),
        story.settle(acknowledged, outcome=None, tx=tx),
    ]
    story.call("tx_commit", "con#1", "unknown", tx=tx)
    for part in parts:
        story.end(part, "unknown")
    return parts[1]


@healthy
def acknowledged_in_an_unknown_commit_and_back_in_time(story: Story) -> None:
    """When the first sign of the commit was seen, the other connection had been there for long."""
    story.queue()
    story.publish(1)
    story.deliver(1)
    _committed_with(story, 1, publish=2)
    story.connect("con#2")
    story.take(2, "con#2")
    story.take(1, "con#2", redelivered=True, delivery_count=1)


@healthy
def acknowledged_in_a_commit_that_was_lost(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1)
    _committed_with(story, 1, publish=2)
    story.connect("con#2")
    story.take(1, "con#2", redelivered=True, delivery_count=1)


@healthy
def acknowledged_in_a_commit_that_leaves_no_trace(story: Story) -> None:
    story.queue()
    elsewhere = story.queue("-elsewhere", drained=False)
    story.publish(1)
    story.deliver(1)
    _committed_with(story, 1, publish=2, queue=elsewhere)


@healthy
def single_active_consumers_in_turn(story: Story) -> None:
    story.queue(single_active=True)
    story.call("consume", "con-1#1", queue=story.name, consumer="con-1#1.1")
    for number in range(1, 9):
        story.publish(number)
    for number, client in ((1, "con-1#1"), (2, "con-1#1"), (3, "con-2#1"), (4, "con-2#1")):
        story.take(number, client)
    # The first consumer consumes again, under its old tag.
    story.call("consume", "con-1#1", queue=story.name, consumer="con-1#1.1")
    for number, client in ((5, "con-1#1"), (6, "con-1#1"), (7, "con-2#2"), (8, "con-2#2")):
        story.take(number, client)


@healthy
def single_active_delivery_recorded_late(story: Story) -> None:
    """A delivery to the former active consumer is received after the next consumer became active."""
    story.queue(single_active=True)
    for number in (1, 2, 3):
        story.publish(number)
    story.take(1, "con-1#1")
    story.take(3, "con-2#1")
    story.take(2, "con-1#1")


def _taken_by(story: Story, pattern: str, messages: int = 180) -> list[Row]:
    """Take a backlog, half high (H) and half normal (N), in a pattern, within a second.

    Return the deliveries at which both kinds waited for the consumer.
    """
    story.queue(priorities=True)
    waiting: dict[str, list[int]] = {"H": [], "N": []}
    for number in range(1, messages + 1):
        kind = "HN"[number % 2]
        waiting[kind].append(number)
        story.publish(number, priority=7 if kind == "H" else 0)
    rows: list[Row] = []
    for kind in cycle(pattern):
        if not waiting["H"]:
            break
        rows.append(story.take(waiting[kind].pop(0)))
    for number in waiting["N"]:
        story.take(number)
    return rows[:-1]


@healthy
def two_high_for_each_normal(story: Story) -> None:
    _taken_by(story, "HHN")


@healthy
def ratio_with_messages_of_unknown_place(story: Story) -> None:
    """High messages that were published twice count, too."""
    story.queue(priorities=True)
    for number in range(1, 181):
        story.publish(number, priority=7 if number > 90 else 0)
    for number in range(91, 151):
        story.publish(number, attempt=2, priority=7)
    high = iter((*range(91, 181), *range(91, 151)))
    for normal in range(1, 91):
        for number in islice(high, 2):
            story.take(number)
        story.take(normal)


@healthy
def few_high_in_a_queue_that_keeps_up(story: Story) -> None:
    story.queue(priorities=True)
    for number in range(1, 151):
        story.publish(number, priority=7 if number % 3 == 0 else 0)
        story.take(number)


@healthy
def published_to_two_queues(story: Story) -> None:
    story.queue()
    other = story.queue("-other")
    for queue in (None, other):
        story.publish(1, queue=queue)
        story.take(1, queue=queue)


@healthy
def acknowledged_and_another_on_the_same_connection(story: Story) -> None:
    story.queue()
    story.publish(1, "unknown")
    story.publish(1, attempt=2)
    story.take(1)
    story.take(1)


@healthy
def settled_in_a_transaction_that_failed_and_again_on_its_connection(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1)
    story.settle(1, outcome="fail", tx=f"{story.name}/tx")
    story.settle(1, "nack")
    story.take(1, redelivered=True, delivery_count=1)


def _consumer(story: Story, client: str, number: int, *, queue: str | None = None) -> None:
    """Show that the client's connection is alive: it gets a message that is published now."""
    story.publish(number, by="sign#1", queue=queue)
    story.take(number, client, by="sign", queue=queue)


@healthy
def returned_by_a_dead_consumer_that_is_seen_alive_no_more(story: Story) -> None:
    story.queue()
    story.connect("con-1#1")
    story.publish(1)
    story.deliver(1, "con-1#1")
    story.connect("con-2#1")
    story.deliver(1, "con-2#1", redelivered=True, delivery_count=1)
    _consumer(story, "con-2#1", 1)
    story.settle(1, to="con-2#1")
    story.row("info", "connect", "con-1#1", **story.place("con-1#1"), detail="lost")


@healthy
def requeued_by_a_consumer_that_stays(story: Story) -> None:
    story.queue()
    story.publish(1)
    story.deliver(1, "con-1#1")
    story.settle(1, "nack", "con-1#1")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)
    for client in ("con-1#1", "con-2#1"):
        _consumer(story, client, int(client[4]))


@healthy
def returned_by_a_consumer_that_died_without_showing_it(story: Story) -> None:
    story.queue()
    for client in ("con-1#1", "con-2#1"):
        story.connect(client)
        story.call("consume", client, queue=story.name, consumer=f"{client}.1")
    story.publish(1)
    story.row("info", "connect", "con-1#1", **story.place("con-1#1"), detail="lost")
    story.take(1, "con-2#1", redelivered=True, delivery_count=1)
    _consumer(story, "con-2#1", 1)


@healthy
def returned_by_a_library_whose_consumer_was_being_cancelled(story: Story) -> None:
    story.queue()
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.call("cancel", "con#1", queue=story.name, consumer="con#1.1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.2")
    story.take(1, consumer="con#1.2", redelivered=True, delivery_count=1)


@healthy
def returned_by_a_get_whose_answer_was_lost(story: Story) -> None:
    story.queue()
    story.connect("con-1#1")
    story.connect("con-2#1")
    story.publish(1)
    story.call("get", "con-1#1", "unknown", queue=story.name)
    story.row("info", "connect", "con-1#1", **story.place("con-1#1"), detail="lost")
    story.take(1, "con-2#1", consumer=None, redelivered=True, delivery_count=1)
    story.publish(2)
    story.take(2, "con-2#1", consumer=None)


@healthy
def classic_queue_marks_and_counts_nothing(story: Story) -> None:
    story.queue(kind="classic")
    story.publish(1)
    story.deliver(1)
    story.settle(1, "nack")
    for _ in range(2):
        story.deliver(1, redelivered=True)
        story.settle(1, "nack")
    story.take(1, redelivered=True)


@healthy
def cancelled_after_its_last_delivery(story: Story) -> None:
    story.queue()
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.publish(2)
    cancel = story.row(
        "invoke", "cancel", "con#1", **story.place("con#1"), queue=story.name, consumer="con#1.1"
    )
    story.take(1)
    story.end(cancel, "ok")
    story.take(2, "con#2")


def _rejected_once(story: Story) -> str:
    """Return the target of a queue whose message 1 was rejected."""
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "reject")
    return target


@healthy
def rejected_and_returned_further_on(story: Story) -> None:
    """Its first count there is that of its rejections, and its second that of its returns there."""
    target = _rejected_once(story)
    fields: dict[str, Any] = {"queue": target, "redelivered": True, "deaths": [died(story.name)]}
    story.connect("con-2#1")
    story.deliver(1, "con-2#1", delivery_count=1, **fields)
    story.row("info", "connect", "con-2#1", **story.place("con-2#1"), detail="lost")
    story.connect("con-2#2")
    story.take(1, "con-2#2", delivery_count=1, **fields)


@healthy
def expires_in_time_or_is_delivered_before(story: Story) -> None:
    target = story.queue("-target")
    story.queue(dead_letters_to=target, message_ttl=20)
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.take(1)
    story.publish(2, ttl_ms=10)
    story.wait(30)
    story.take(2, "con-2#1", queue=target, deaths=[died(story.name, "expired")])
    # It was sent in time, and seen late.
    story.publish(3)
    story.wait(30)
    story.take(3)


@healthy
def delayed_and_delivered_in_time(story: Story) -> None:
    story.queue()
    story.publish(1, delay_ms=20)
    story.wait(20)
    story.take(1)


@healthy
def as_many_ready_as_the_length(story: Story) -> None:
    target = story.queue("-target")
    story.queue(max_length=2, dead_letters_to=target)
    for number in (1, 2, 3):
        story.publish(number)
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.take(2)
    story.take(3)
    story.take(1, "con-2#1", queue=target, deaths=[died(story.name, "maxlen")])


@healthy
def delivered_before_its_delay_after_jumps(story: Story) -> None:
    """The clocks of a majority put the cluster's time forward."""
    story.queue()
    story.wait(3 * JUMPS_MS)
    story.publish(1, delay_ms=1000)
    story.move_clocks("n1", 2000)
    story.move_clocks("n2", -1000)
    story.take(1)


@healthy
def normal_before_a_younger_high(story: Story) -> None:
    story.queue(priorities=True)
    story.publish(1, priority=0)
    story.publish(2, priority=9)
    story.take(1)
    story.take(2)


@healthy
def waits_for_a_consumer_for_long(story: Story) -> None:
    story.queue(workload="backlog")
    story.publish(1)
    story.wait(100_000)
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.take(1)


# Planted


@planted
def confirmed_and_never_seen(story: Story) -> dict[str, list[Row]]:
    story.queue()
    row = story.publish(1)
    story.publish(2)
    story.take(2)
    return {"lost": [row]}


@planted
def confirmed_after_the_purge(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.call("purge", "admin#1", queue=story.name)
    story.call("purge", "admin#1", "fail", queue=story.name)
    return {"lost": [story.publish(1)]}


@planted
def seen_and_never_settled(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.publish(2)
    row = story.deliver(1)
    story.take(2)
    return {"lost": [row]}


@planted
def acknowledgement_rolled_back_and_lost(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.publish(2)
    row = story.deliver(1)
    story.settle(1, outcome="fail", tx=f"{story.name}/tx")
    story.call("tx_rollback", "con#1", tx=f"{story.name}/tx")
    story.take(2)
    return {"lost": [row]}


@planted
def dropped_and_not_dead_lettered(story: Story) -> dict[str, list[Row]]:
    story.queue("-target")
    story.queue(max_length=1, dead_letters_to=f"{story.name}-target")
    return {"lost": [story.publish(1)]}


@planted
def deleted_and_delivered_to_its_deleter(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.call("delete", "admin#1", queue=story.name)
    story.call("declare", "admin#1", queue=story.name)
    return {"resurrected": [story.deliver(1, "admin#1", consumer=None)]}


@planted
def deleted_and_back_on_a_new_connection(story: Story) -> dict[str, list[Row]]:
    """The message was deleted with its queue, although a consumer held it."""
    story.queue()
    story.publish(1)
    story.deliver(1, "con-1#1")
    story.call("delete", "admin#1", queue=story.name)
    story.publish(2)
    story.call("delete", "admin#1", "unknown", queue=story.name)
    story.connect("con-2#1")
    return {"resurrected": [story.take(1, "con-2#1", redelivered=True, delivery_count=1)]}


@planted
def purged_and_back_for_a_new_consumer(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.connect("con#1")
    story.publish(1)
    story.call("purge", "admin#1", queue=story.name)
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    return {"resurrected": [story.take(1)]}


@planted
def never_published(story: Story) -> dict[str, list[Row]]:
    story.queue()
    return {"phantom": [story.take(1)]}


@planted
def delivered_from_the_wrong_queue(story: Story) -> dict[str, list[Row]]:
    story.queue()
    other = story.queue("-other")
    story.publish(1)
    story.take(1)
    return {"routing": [story.take(1, queue=other)]}


@planted
def refused_and_delivered(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, "fail")
    return {"phantom": [story.take(1)]}


@planted
def unmarked_twice(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.take(1)
    return {"unmarked_duplicate": [story.take(1, "con-2#1")]}


@planted
def unmarked_more_often_than_published(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, "unknown")
    story.publish(1, attempt=2)
    story.take(1)
    story.take(1)
    return {"unmarked_duplicate": [story.take(1)]}


@planted
def unmarked_on_a_new_connection(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.deliver(1, "con-1#1", redelivered=True, delivery_count=1)
    story.connect("con-2#1")
    return {"unmarked_duplicate": [story.take(1, "con-2#1")]}


@planted
def unmarked_on_the_same_connection(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.take(1, redelivered=True, delivery_count=1)
    row = story.take(1)
    return {"unmarked_duplicate": [row], "acknowledged": [row]}


@planted
def deduplicated_and_twice(story: Story) -> dict[str, list[Row]]:
    story.queue(dedup=True)
    story.publish(1, "unknown", dedup=True)
    story.publish(1, attempt=2, dedup=True)
    story.take(1)
    row = story.take(1)
    return {"dedup_duplicate": [row], "acknowledged": [row]}


@planted
def deduplicated_and_again_after_the_acknowledgement(story: Story) -> dict[str, list[Row]]:
    story.queue(dedup=True)
    story.publish(1, dedup=True)
    story.take(1, redelivered=True, delivery_count=1)
    story.connect("con#2")
    return {"dedup_duplicate": [story.take(1, "con#2")]}


@planted
def overtaken_on_a_channel(story: Story) -> dict[str, list[Row]]:
    """Both were under way at once, so only their channel puts them into an order."""
    story.queue()
    first, second = story.publish(1, None), story.publish(2, None)
    story.end(first, "ok")
    story.end(second, "ok")
    story.take(2)
    return {"order": [story.take(1)]}


@planted
def overtaken_after_the_confirm(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, by="pub#1")
    story.publish(2, by="pub#2")
    story.take(2)
    return {"order": [story.take(1)]}


@planted
def overtaken_within_a_priority(story: Story) -> dict[str, list[Row]]:
    story.queue(priorities=True)
    story.publish(1, priority=7)
    story.publish(2, priority=7)
    story.take(2)
    return {"order": [story.take(1)]}


@planted
def overtaken_on_a_later_connection(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.publish(2)
    story.take(2, "con-1#1")
    story.connect("con-2#1")
    return {"order": [story.take(1, "con-2#1")]}


@planted
def overtaken_by_an_earlier_consumer(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.connect("con-2#1")
    story.publish(1)
    story.publish(2)
    story.take(2, "con-1#1")
    story.call("consume", "con-2#1", queue=story.name, consumer="con-2#1.1")
    return {"order": [story.take(1, "con-2#1")]}


@planted
def counted_above_the_limit(story: Story) -> dict[str, list[Row]]:
    story.queue(delivery_limit=2)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "nack")
    for count in (1, 2):
        story.deliver(1, redelivered=True, delivery_count=count)
        story.settle(1, "nack")
    return {"delivery_limit": [story.take(1, redelivered=True, delivery_count=3)]}


@planted
def more_deliveries_than_the_limit(story: Story) -> dict[str, list[Row]]:
    story.queue(delivery_limit=1)
    story.publish(1)
    story.deliver(1)
    for count in (1, 1):
        story.settle(1, "nack")
        row = story.deliver(1, redelivered=True, delivery_count=count)
    story.settle(1)
    return {"delivery_limit": [row], "redelivery": [row]}


@planted
def high_priorities_first(story: Story) -> dict[str, list[Row]]:
    rows = _taken_by(story, "H")
    return {"priority_ratio": [rows[IN_HAND + 2 * UNSEEN + PHASE]]}


@planted
def three_high_for_each_normal(story: Story) -> dict[str, list[Row]]:
    """Only the shares show it, because each four deliveries exceed the share by a third."""
    return {"priority_ratio": [_taken_by(story, "HHHN", 200)[-1]]}


@planted
def served_by_turns(story: Story) -> dict[str, list[Row]]:
    """Each pair exceeds the share of normal messages by a third, and the last message by two."""
    rows = _taken_by(story, "HN")
    return {"priority_ratio": [rows[IN_HAND + 2 * (UNSEEN + PHASE) - 1], rows[-1]]}


@planted
def normal_messages_first(story: Story) -> dict[str, list[Row]]:
    """Both kinds waited only for two dozen deliveries."""
    story.queue(priorities=True)
    for number in range(1, 36):
        story.publish(number, priority=7 if number > 34 else 0)
    rows = [story.take(number) for number in range(1, 36)]
    return {"priority_ratio": [rows[IN_HAND + (UNSEEN + PHASE) // 2]]}


@planted
def second_consumer_between_by_number(story: Story) -> dict[str, list[Row]]:
    """By their numbers: all three were in the queue before."""
    story.queue(single_active=True)
    for number in (1, 2, 3):
        story.publish(number)
    story.take(1, "con-1#1")
    row = story.take(2, "con-2#1")
    story.take(3, "con-1#1")
    return {"single_active": [row]}


@planted
def second_consumer_between_by_time(story: Story) -> dict[str, list[Row]]:
    """By the time: it is a redelivery, which has no place among the numbers."""
    story.queue(single_active=True)
    story.publish(1)
    story.take(1, "con-1#1")
    story.publish(2)
    row = story.take(2, "con-2#1", redelivered=True, delivery_count=1)
    story.publish(3)
    story.take(3, "con-1#1")
    return {"single_active": [row]}


@planted
def committed_and_not_whole(story: Story) -> dict[str, list[Row]]:
    story.queue()
    tx = f"{story.name}/tx"
    missing = story.publish(1, None, tx=tx)
    invoke = story.publish(2, None, tx=tx)
    story.call("tx_commit", "pub#1", tx=tx)
    confirm = story.end(missing, "ok")
    story.end(invoke, "ok")
    story.take(2)
    return {"lost": [confirm], "tx_atomic": [missing]}


@planted
def rolled_back_and_delivered(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, "fail", tx=f"{story.name}/tx")
    story.call("tx_rollback", "pub#1", tx=f"{story.name}/tx")
    row = story.take(1)
    return {"phantom": [row], "tx_atomic": [row]}


@planted
def uncommitted_and_delivered(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, "fail", tx=f"{story.name}/tx")
    row = story.take(1)
    return {"phantom": [row], "tx_atomic": [row]}


@planted
def half_of_an_unknown_commit(story: Story) -> dict[str, list[Row]]:
    story.queue()
    tx = f"{story.name}/tx"
    missing = story.publish(1, None, tx=tx)
    invoke = story.publish(2, None, tx=tx)
    story.call("tx_commit", "pub#1", "unknown", tx=tx)
    for row in (missing, invoke):
        story.end(row, "unknown")
    story.take(2)
    return {"tx_atomic": [missing]}


@planted
def acknowledged_in_a_commit_and_back(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.deliver(1)
    story.settle(1, tx=f"{story.name}/tx")
    story.call("tx_commit", "con#1", tx=f"{story.name}/tx")
    story.connect("con#2")
    return {"tx_atomic": [story.take(1, "con#2", redelivered=True, delivery_count=1)]}


@planted
def acknowledged_in_an_unknown_commit_that_was_seen_and_back(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.deliver(1)
    _committed_with(story, 1, publish=2)
    story.take(2)
    story.connect("con#2")
    return {"tx_atomic": [story.take(1, "con#2", redelivered=True, delivery_count=1)]}


@planted
def acknowledged_in_a_half_applied_commit(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.deliver(1)
    return {"tx_atomic": [_committed_with(story, 1, publish=2)]}


@planted
def rejected_and_not_dead_lettered(story: Story) -> dict[str, list[Row]]:
    story.queue("-target")
    story.queue(dead_letters_to=f"{story.name}-target")
    story.publish(1)
    row = story.deliver(1)
    story.settle(1, "reject")
    return {"dead_letter": [row]}


@planted
def overdelivered_and_not_dead_lettered(story: Story) -> dict[str, list[Row]]:
    story.queue("-target")
    story.queue(dead_letters_to=f"{story.name}-target", delivery_limit=1)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "nack")
    row = story.deliver(1, redelivered=True, delivery_count=1)
    story.settle(1, "nack")
    return {"dead_letter": [row]}


@planted
def dead_lettered_twice(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    story.publish(1)
    story.deliver(1)
    story.settle(1, "reject")
    story.take(1, "con-2#1", queue=target, deaths=[died(story.name)])
    return {"dead_letter": [story.take(1, "con-2#1", queue=target, deaths=[died(story.name)])]}


@planted
def rejected_downstream_and_not_dead_lettered(story: Story) -> dict[str, list[Row]]:
    first, second, last = _chain(story)
    rows = [story.deliver(number, "con-2#1", queue=second, deaths=[died(first)]) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        story.settle(number, "ack" if number == 1 else "reject", "con-2#1", queue=second)
    story.take(2, "con-3#1", queue=last, deaths=[died(second), died(first)])
    return {"dead_letter": [rows[2]]}


@planted
def overdelivered_downstream_and_not_dead_lettered(story: Story) -> dict[str, list[Row]]:
    first, second, _ = _chain(story, delivery_limit=5)
    for number in (1, 2):
        story.take(number, "con-2#1", queue=second, deaths=[died(first)])
    return {"dead_letter": [story.deliver(3, "con-2#1", queue=second, deaths=[died(first)])]}


@planted
def seen_at_the_end_and_never_settled(story: Story) -> dict[str, list[Row]]:
    first, second, last = _chain(story)
    rows = []
    for number in (1, 2, 3):
        story.deliver(number, "con-2#1", queue=second, deaths=[died(first)])
        story.settle(number, "reject", "con-2#1", queue=second)
        rows.append(story.deliver(number, "con-3#1", queue=last, deaths=[died(second), died(first)]))
    for number in (1, 2):
        story.settle(number, "ack", "con-3#1", queue=last)
    return {"lost": [rows[2]]}


@planted
def dead_lettered_without_a_rejection(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    for number in (1, 2):
        story.publish(number)
    story.deliver(1)
    story.settle(1, "reject")
    story.take(1, "con-2#1", queue=target, deaths=[died(story.name)])
    return {"dead_letter": [story.take(2, "con-2#1", queue=target, deaths=[died(story.name)])]}


@planted
def confirmed_before_it_is_published(story: Story) -> dict[str, list[Row]]:
    story.queue()
    confirm = story.row("ok", "publish", "pub#1", 1, **story.place("pub#1"), **story.message(1, "pub"))
    confirm["queue"] = story.name
    story.row(
        "invoke", "publish", "pub#1", 1, **story.place("pub#1"), **story.message(1, "pub"), queue=story.name
    )
    story.take(1)
    return {"causality": [confirm]}


@planted
def delivered_before_it_is_published(story: Story) -> dict[str, list[Row]]:
    story.queue()
    row = story.take(1)
    story.publish(1)
    return {"causality": [row]}


@planted
def delivered_between_a_refusal_and_the_next_attempt(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, "fail")
    row = story.take(1)
    story.publish(1, attempt=2)
    return {"causality": [row]}


@planted
def left_out_of_a_queue(story: Story) -> dict[str, list[Row]]:
    story.queue()
    other = story.queue("-other")
    story.publish(1)
    row = story.publish(1, queue=other)
    story.publish(2, queue=other)
    story.take(1)
    story.take(2, queue=other)
    return {"routing": [row]}


@planted
def again_on_the_connection_that_acknowledged_it(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.take(1)
    return {"acknowledged": [story.take(1, redelivered=True, delivery_count=1)]}


@planted
def at_two_live_consumers(story: Story) -> dict[str, list[Row]]:
    story.queue()
    for client in ("con-1#1", "con-2#1"):
        story.connect(client)
    story.publish(1)
    story.deliver(1, "con-1#1")
    row = story.deliver(1, "con-2#1", redelivered=True, delivery_count=1)
    for client in ("con-1#1", "con-2#1"):
        _consumer(story, client, int(client[4]))
        story.settle(1, to=client)
    return {"two_holders": [row]}


@planted
def redelivered_although_no_consumer_had_it(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    row = story.take(1, redelivered=True, delivery_count=1)
    _consumer(story, "con#1", 1)
    return {"redelivery": [row]}


@planted
def counted_higher_than_its_returns(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.deliver(1)
    story.settle(1, "nack")
    row = story.take(1, redelivered=True, delivery_count=2)
    _consumer(story, "con#1", 1)
    return {"redelivery": [row]}


@planted
def counted_and_not_marked(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.publish(2)
    story.deliver(1)
    row = story.deliver(2)
    story.settle(2, "nack")
    row = story.take(2, redelivered=True)
    story.settle(1)
    return {"redelivery": [row]}


@planted
def counted_down(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    story.deliver(1)
    story.settle(1, "nack")
    story.deliver(1, redelivered=True, delivery_count=2)
    story.settle(1, "nack")
    return {"redelivery": [story.take(1, redelivered=True, delivery_count=1)]}


@planted
def delivered_after_cancel_ok(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.call("cancel", "con#1", queue=story.name, consumer="con#1.1")
    return {"cancelled": [story.take(1)]}


@planted
def delivered_before_it_consumes(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1)
    row = story.take(1)
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    return {"cancelled": [row]}


@planted
def rejected_and_dead_lettered_twice(story: Story) -> dict[str, list[Row]]:
    """Its first arrival is marked redelivered, too, because of the rejection."""
    target = _rejected_once(story)
    fields: dict[str, Any] = {"queue": target, "redelivered": True, "delivery_count": 1}
    story.take(1, "con-2#1", **fields, deaths=[died(story.name)])
    return {"dead_letter": [story.take(1, "con-2#1", **fields, deaths=[died(story.name)])]}


@planted
def rejected_and_dead_lettered_to_two_live_consumers(story: Story) -> dict[str, list[Row]]:
    target = _rejected_once(story)
    fields: dict[str, Any] = {"queue": target, "redelivered": True, "delivery_count": 1}
    for client in ("con-2#1", "con-3#1"):
        row = story.take(1, client, **fields, deaths=[died(story.name)])
    for client in ("con-2#1", "con-3#1"):
        _consumer(story, client, int(client[4]), queue=target)
    return {"dead_letter": [row]}


@planted
def dead_letter_without_its_history(story: Story) -> dict[str, list[Row]]:
    target = _rejected_once(story)
    return {"x_death": [story.take(1, "con-2#1", queue=target)]}


@planted
def dead_letter_of_a_queue_that_it_never_saw(story: Story) -> dict[str, list[Row]]:
    target = _rejected_once(story)
    deaths = [died(target, "expired"), died(story.name)]
    return {"x_death": [story.take(1, "con-2#1", queue=target, deaths=deaths)]}


@planted
def dead_letter_with_two_deaths_of_one_rejection(story: Story) -> dict[str, list[Row]]:
    target = _rejected_once(story)
    return {"x_death": [story.take(1, "con-2#1", queue=target, deaths=[died(story.name, count=2)])]}


@planted
def expired_in_a_queue_without_lifetimes(story: Story) -> dict[str, list[Row]]:
    target = _rejected_once(story)
    return {"x_death": [story.take(1, "con-2#1", queue=target, deaths=[died(story.name, "expired")])]}


@planted
def delivered_after_it_expired(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(dead_letters_to=target, message_ttl=10)
    story.publish(1)
    story.wait(20)
    story.connect("con#1")
    return {"ttl": [story.take(1)]}


@planted
def delivered_behind_a_message_published_after_it_expired(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(dead_letters_to=target)
    story.publish(1, ttl_ms=10, by="other#1")
    story.wait(20)
    story.publish(1)
    story.take(1)
    return {"ttl": [story.take(1, by="other")]}


@planted
def expired_before_its_time(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(dead_letters_to=target, message_ttl=1000)
    story.publish(1)
    return {"ttl": [story.take(1, "con-2#1", queue=target, deaths=[died(story.name, "expired")])]}


@planted
def delivered_before_its_delay(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.publish(1, delay_ms=1000)
    return {"delay": [story.take(1)]}


@planted
def delivered_before_its_delay_at_a_jump_of_a_single_clock(story: Story) -> dict[str, list[Row]]:
    """The clock of a single node does not put the cluster's time forward."""
    story.queue()
    story.wait(JUMPS_MS)
    story.publish(1, delay_ms=1000)
    story.move_clocks("n1", 5000)
    return {"delay": [story.take(1)]}


@planted
def delivered_before_its_delay_after_a_small_jump(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.wait(2 * JUMPS_MS)
    story.publish(1, delay_ms=1000)
    story.move_clocks("n1,n2", 500)
    return {"delay": [story.take(1)]}


@planted
def normal_before_an_older_high(story: Story) -> dict[str, list[Row]]:
    story.queue(priorities=True)
    story.publish(1, priority=9)
    story.publish(2, priority=0)
    story.take(2)
    return {"priority_order": [story.take(1)]}


@planted
def normal_before_an_older_high_of_its_channel(story: Story) -> dict[str, list[Row]]:
    """Both were under way at once, so only their channel puts them into an order."""
    story.queue(priorities=True)
    first, second = story.publish(1, None, priority=9), story.publish(2, None, priority=0)
    story.end(first, "ok")
    story.end(second, "ok")
    story.take(2)
    return {"priority_order": [story.take(1)]}


@planted
def delivered_much_too_late(story: Story) -> dict[str, list[Row]]:
    story.queue()
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.publish(1)
    story.wait(100_000)
    return {"liveness": [story.take(1)]}


@planted
def more_ready_than_the_length(story: Story) -> dict[str, list[Row]]:
    target = story.queue("-target")
    story.queue(max_length=1, dead_letters_to=target)
    for number in (1, 2):
        story.publish(number)
    connect = story.row("invoke", "connect", "con#1", **story.place("con#1"), queue=story.name)
    for number in (1, 2):
        story.take(number)
    return {"max_length": [connect]}
