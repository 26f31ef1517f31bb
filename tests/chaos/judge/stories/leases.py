"""Stories of leases: a leased message is at a single place, until a commit removes it or a release returns it."""

from __future__ import annotations

from tests.chaos.judge.histories import Row, Story
from tests.chaos.judge.stories.registry import healthy, planted


def _queue_with(story: Story, *numbers: int) -> None:
    story.queue()
    for number in numbers:
        story.publish(number)


def _sign(story: Story, client: str, number: int) -> None:
    """Show that the client's connection is alive: it gets a message that is published now."""
    story.publish(number, by="sign#1")
    story.take(number, client, by="sign")


# Healthy


@healthy
def leased_read_twice_and_committed(story: Story) -> None:
    _queue_with(story, 1, 2, 3)
    story.reader("open_group", "reader", fence=0)
    story.lease(0, 1, 2)
    story.read(0, 1, 2)
    story.lease(1, 3)
    story.commit(1)
    story.reader("read_lease", "reader", "fail", lease=0)


@healthy
def released_and_consumed(story: Story) -> None:
    _queue_with(story, 1)
    story.lease(0, 1)
    story.release(0)
    story.take(1)


@healthy
def released_and_leased_by_another_group(story: Story) -> None:
    _queue_with(story, 1, 2)
    story.lease(0, 1, 2)
    story.release(0)
    story.lease(0, 1, 2, group="other")
    story.commit(0, group="other")


@healthy
def released_without_an_answer_and_consumed(story: Story) -> None:
    _queue_with(story, 1)
    story.lease(0, 1)
    story.release(0, None)
    story.take(1)


@healthy
def committed_without_an_answer_and_released_at_the_end(story: Story) -> None:
    _queue_with(story, 1, 2)
    story.lease(0, 1)
    story.lease(1, 2)
    story.commit(1, "unknown")
    story.reader("close_group", "reader", fence=0)
    for number in (1, 2):
        story.take(number)


@healthy
def released_before_a_commit_of_higher_leases(story: Story) -> None:
    _queue_with(story, 1, 2)
    story.lease(0, 1)
    story.lease(1, 2)
    story.release(0)
    story.commit(1)
    story.take(1)


@healthy
def released_although_the_group_was_taken_over_before_the_answer(story: Story) -> None:
    """The refusal comes from the state after the request."""
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=0)
    story.lease(0, 1)
    release = story.row("invoke", "release_lease", "reader", queue=story.name, group="g", fence=0, lease=0)
    story.reader("open_group", "other", fence=1)
    story.end(release, "fail")
    story.lease(0, 1, group="other", by="other")
    story.commit(0, group="other", by="other")


@healthy
def refused_to_its_former_owner_and_committed(story: Story) -> None:
    _queue_with(story, 1, 2)
    story.reader("open_group", "reader", fence=0)
    story.lease(0, 1)
    story.reader("open_group", "other", fence=1)
    story.commit(0, "fail")
    story.release(0, "fail")
    story.read(0, 1, by="other")
    story.commit(0, by="other", fence=1)
    story.take(2)


@healthy
def group_opened_again_with_a_lower_fence(story: Story) -> None:
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=7)
    story.reader("close_group", "reader", fence=7)
    story.reader("open_group", "other", fence=0)
    story.lease(0, 1, by="other")
    story.commit(0, by="other")


@healthy
def group_may_have_been_closed_before_a_lower_fence(story: Story) -> None:
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=7)
    story.reader("close_group", "reader", None, fence=7)
    story.reader("open_group", "other", fence=0)
    story.take(1)


@healthy
def returned_by_a_consumer_and_leased(story: Story) -> None:
    _queue_with(story, 1)
    story.deliver(1)
    story.settle(1, "nack")
    story.lease(0, 1)
    story.commit(0)


@healthy
def leased_after_the_end_of_its_consumer(story: Story) -> None:
    _queue_with(story, 1)
    story.connect("con#1")
    story.deliver(1)
    story.row("info", "connect", "con#1", **story.place("con#1"), detail="lost")
    story.lease(0, 1)
    story.commit(0)


@healthy
def leased_although_its_acknowledgement_was_sent(story: Story) -> None:
    """The acknowledgement has no answer: it may have been lost with its connection."""
    _queue_with(story, 1)
    story.connect("con#1")
    story.take(1, outcome=None)
    story.lease(0, 1)
    story.commit(0)


@healthy
def published_twice_and_leased_and_delivered(story: Story) -> None:
    """The first attempt may have left a copy."""
    story.queue()
    story.publish(1, "unknown")
    story.publish(1, attempt=2)
    story.lease(0, 1)
    story.take(1)
    story.commit(0)


# Planted


@planted
def read_with_other_messages(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1, 2, 3)
    story.lease(0, 1, 2)
    row = story.read(0, 1, 3)
    story.commit(0)
    story.take(3)
    return {"lease_repeatable": [row]}


@planted
def read_in_another_order(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1, 2)
    story.lease(0, 1, 2)
    row = story.read(0, 2, 1, by="other")
    story.commit(0)
    return {"lease_repeatable": [row]}


@planted
def read_with_fewer_messages(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1, 2)
    story.lease(0, 1, 2)
    row = story.read(0, 1)
    story.commit(0)
    return {"lease_repeatable": [row]}


@planted
def in_the_leases_of_two_groups(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    [row] = story.lease(0, 1, group="other", by="other")
    story.commit(0)
    story.commit(0, group="other", by="other")
    return {"lease_holders": [row]}


@planted
def in_two_leases_of_a_group(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    [row] = story.lease(1, 1)
    story.commit(1)
    return {"lease_holders": [row]}


@planted
def twice_in_a_lease(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1, 2)
    row = story.lease(0, 1, 2, 1)[-1]
    story.commit(0)
    return {"lease_holders": [row]}


@planted
def delivered_while_leased(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    story.connect("con#1")
    row = story.take(1)
    story.commit(0)
    return {"lease_holders": [row]}


@planted
def leased_while_a_live_consumer_has_it(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.connect("con#1")
    row = story.deliver(1)
    story.lease(0, 1)
    story.commit(0)
    _sign(story, "con#1", 2)
    return {"lease_holders": [row]}


@planted
def leased_after_its_acknowledgement(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.connect("con#1")
    story.call("consume", "con#1", queue=story.name, consumer="con#1.1")
    story.take(1)
    story.call("cancel", "con#1", queue=story.name, consumer="con#1.1")
    [row] = story.lease(0, 1)
    story.commit(0)
    return {"lease_holders": [row]}


@planted
def delivered_after_its_commit(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    story.commit(0)
    story.connect("con#1")
    return {"lease_committed": [story.take(1)]}


@planted
def delivered_after_a_commit_of_a_higher_lease(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1, 2)
    story.lease(0, 1)
    story.lease(1, 2)
    story.commit(1)
    story.connect("con#1")
    return {"lease_committed": [story.take(1)]}


@planted
def delivered_after_its_commit_to_a_consumer_from_before(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.connect("con#1")
    story.lease(0, 1)
    story.commit(0)
    row = story.take(1)
    _sign(story, "con#1", 2)
    return {"lease_committed": [row]}


@planted
def leased_again_after_its_commit(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    story.commit(0)
    [row] = story.lease(1, 1)
    story.commit(1)
    return {"lease_committed": [row]}


@planted
def committed_by_a_stale_fence(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=0)
    story.lease(0, 1)
    story.reader("open_group", "other", fence=1)
    return {"lease_fenced": [story.commit(0)]}


@planted
def released_by_a_stale_fence(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=3)
    story.lease(0, 1, fence=3)
    story.reader("open_group", "other", fence=4)
    row = story.release(0, fence=3)
    story.take(1)
    return {"lease_fenced": [row]}


@planted
def released_although_refused_to_a_stale_fence(story: Story) -> dict[str, list[Row]]:
    """The refusal is certain, because the fence was stale before the request."""
    _queue_with(story, 1)
    story.reader("open_group", "reader", fence=0)
    story.lease(0, 1)
    story.reader("open_group", "other", fence=1)
    story.release(0, "fail")
    story.connect("con#1")
    row = story.take(1)
    story.commit(0, by="other", fence=1)
    return {"lease_holders": [row]}


@planted
def gone_before_its_end(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    story.lease(0, 1)
    row = story.reader("read_lease", "reader", "fail", lease=0, detail="no lease")
    story.commit(0)
    return {"lease_settled": [row]}


@planted
def released_and_gone(story: Story) -> dict[str, list[Row]]:
    _queue_with(story, 1)
    rows = story.lease(0, 1)
    story.release(0)
    return {"lease_settled": rows}
