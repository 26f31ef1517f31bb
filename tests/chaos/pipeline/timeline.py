"""A story for the tables: confirms of publishers at two nodes, second by second, under some faults."""

from __future__ import annotations

from tests.chaos.judge.histories import History, Story

START_S = 100


def add_timeline(history: History) -> None:
    """All of it is on nodes of its own, and in seconds of its own."""
    story = Story(history, "timeline", START_S)
    story.queue()
    story.queue("-backlog", workload="backlog")
    _quantiles(story)
    _unavailable(story)
    _faults(story)


def _at(story: Story, seconds: float) -> None:
    """Set the time of the next row, in seconds since the begin of the run."""
    # The next row adds a millisecond.
    story.now_ms = seconds * 1000 - 1


def _publish(
    story: Story, number: int, seconds: float, end: tuple[str, float], node: str, by: str = "pub#1"
) -> None:
    _at(story, seconds)
    invoke = story.publish(number, None, by=by, node=node)
    _at(story, end[1])
    story.end(invoke, end[0])


def _quantiles(story: Story) -> None:
    """In second 100: ten messages, confirmed after 2 ms, the last after 40 ms, and delivered 3 ms later."""
    for number in range(1, 11):
        begin_s = START_S + number / 20
        confirmed_s = begin_s + (0.04 if number == 10 else 0.002)
        _publish(story, number, begin_s, ("ok", confirmed_s), "east")
        _at(story, confirmed_s + 0.003)
        story.take(number, node="west")
    # A message that waits on purpose.
    _at(story, START_S + 0.9)
    story.publish(1, by="other#1", queue="timeline-backlog", node="east")
    _at(story, START_S + 189)
    story.take(1, by="other", queue="timeline-backlog", node="west")


def _unavailable(story: Story) -> None:
    _publish(story, 11, 105.0, ("ok", 105.2), "east")  # too short to be called that
    # Killed: the publisher loses its connection, tries in vain, and waits until something is confirmed again.
    _publish(story, 12, 111.0, ("unknown", 112.0), "east")
    _at(story, 112.1)
    story.connect("pub#2", "fail", node="east")
    _at(story, 113.0)
    story.connect("pub#3", node="east")
    _publish(story, 13, 113.1, ("ok", 113.5), "east")
    # The publisher goes elsewhere, and comes back much later.
    _publish(story, 14, 120.0, ("unknown", 121.0), "east")
    _publish(story, 15, 121.1, ("ok", 121.2), "west")
    _publish(story, 16, 140.0, ("ok", 140.1), "east")
    # A consumer that waits for its connection is no publisher.
    _at(story, 160.0)
    waiting = story.row("invoke", "connect", "con#2", node="east")
    _at(story, 165.0)
    story.end(waiting, "ok")
    # No publish there is confirmed from now on.
    _publish(story, 17, 170.0, ("unknown", 175.0), "west")
    # Publishers at the other node do not wait meanwhile.
    _at(story, 180.0)
    waiting = story.publish(18, None, node="west")
    for number in range(1, 65):
        _publish(story, number, 180.0 + number / 10, ("ok", 180.05 + number / 10), "east", by="far#1")
        story.take(number, "con-far#1", by="far", node="east")
    _at(story, 186.5)
    story.end(waiting, "unknown")
    for number in (13, 15, 16, 11):
        story.take(number, f"con-{number}#1", node="west")


def _faults(story: Story) -> None:
    for fault, begin_s, end_s in (
        ("kill_leader", 110.9, 112.5),
        ("partition_ring", 119.9, 120.5),
        ("latency", 150.0, 151.0),
    ):
        _at(story, begin_s)
        invoke = story.row("invoke", "fault", "nemesis", node="n1,n2", fault=fault, detail="{}")
        _at(story, end_s)
        story.end(invoke, "ok")
    _at(story, 155.0)
    story.row("info", "fault", "nemesis", fault="left_out")
    _at(story, 290.0)
    story.row("invoke", "fault", "nemesis", node="n3", fault="pause")
