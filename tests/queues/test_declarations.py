"""Declarations: refusals with RabbitMQ's texts, and equivalent arguments."""

from __future__ import annotations

from typing import Any

import pytest
from pika.compat import long

from tests.queues.clients import HERE, QUORUM, barrier, declare, got, publish, ready, refused
from tests.queues.leader_changes import QUIET
from tests.queues.world import World


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": False, "auto_delete": True, "exclusive": True}, "auto-delete"),
        ({"durable": False, "exclusive": True}, "exclusive-owner"),
    ],
)
def test_a_quorum_queue_is_durable_shared_and_permanent(
    world: World, queue: str, flags: dict[str, bool], expected: str
) -> None:
    channel = world.channel(1)
    world.change_leader()
    with refused(406, f"PRECONDITION_FAILED - invalid property '{expected}' for queue '{queue}' {HERE}"):
        channel.queue_declare(queue, arguments=dict(QUORUM), **flags)


def test_line_ends_in_a_name_are_dropped(world: World, queue: str) -> None:
    channel = world.channel(1)
    # Without an answer, which pika would not take for the answer to this.
    channel._impl.queue_declare(f"{queue}\r\n-end", durable=True, arguments=dict(QUORUM))
    world.change_leader()
    assert ready(channel, f"{queue}-end") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-quorum-initial-group-size": 5},
        {"x-quorum-target-group-size": 3},
        {"x-queue-leader-locator": "balanced"},
        {"x-max-in-memory-length": 10, "x-max-in-memory-bytes": 10},
        {"x-overflow": "reject-publish-dlx"},
        {"x-delivery-limit": "whatever"},
        {"x-unknown": ["of", {"all": "sorts"}]},
    ],
    ids=str,
)
def test_valid_arguments_are_kept(world: World, queue: str, arguments: dict[str, Any]) -> None:
    channel = world.channel(1)
    declare(channel, queue, arguments)
    world.change_leader()
    declare(channel, queue, arguments)
    assert world.request(f"/api/queues/%2F/{queue}")["arguments"] == {**QUORUM, **arguments}


# The same again


def test_repeated_declaration_returns_the_queue_counts(world: World, queue: str) -> None:
    channel, other = world.channel(1), world.channel(2)
    declare(channel, queue, {"x-max-length": 10})
    publish(channel, queue, "abc")
    got(channel, queue, auto_ack=False)
    other.basic_qos(prefetch_count=1)
    other.basic_consume(queue, lambda *_: None)
    world.change_leader()
    method = other.queue_declare(queue, durable=True, arguments={**QUORUM, "x-max-length": 10}).method
    assert (method.queue, method.message_count, method.consumer_count) == (queue, 1, 1)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            {"x-max-length": 1},
            {"x-max-length": 2},
            "'x-max-length' for {}: received '2' but current is '1'",
        ),
        (
            {},
            {"x-max-length": 2},
            "'x-max-length' for {}: received the value '2' of type 'signedint' but current is none",
        ),
        (
            {"x-message-ttl": 1000},
            {},
            "'x-message-ttl' for {}: received none but current is the value '1000' of type 'signedint'",
        ),
        (
            {"x-overflow": "drop-head"},
            {"x-overflow": "reject-publish"},
            "'x-overflow' for {}: received 'reject-publish' but current is 'drop-head'",
        ),
        (
            {"x-single-active-consumer": True},
            {},
            "'x-single-active-consumer' for {}: received none but current is the value 'true' of type 'bool'",
        ),
        (
            {},
            {"x-queue-type": "classic"},
            "'x-queue-type' for {}: received 'classic' but current is 'quorum'",
        ),
    ],
)
def test_declaration_with_different_arguments_is_refused(
    world: World, queue: str, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue, first)
    world.change_leader()
    place = f"queue '{queue}' {HERE}"
    with refused(406, f"PRECONDITION_FAILED - inequivalent arg {text.format(place)}"):
        declare(channel, queue, second)


@QUIET
def test_declaration_without_the_queue_type_is_refused(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    text = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' {HERE}: "
    with refused(406, text + "received 'classic' but current is 'quorum'"):
        channel.queue_declare(queue, durable=True)


@pytest.mark.parametrize(
    ("flags", "field", "received"),
    [
        ({"durable": False}, "durable", "false"),
        ({"durable": True, "auto_delete": True}, "auto_delete", "true"),
    ],
)
@QUIET
def test_declaration_with_different_flags_is_refused(
    world: World, queue: str, flags: dict[str, bool], field: str, received: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    current = "true" if received == "false" else "false"
    text = f"inequivalent arg '{field}' for queue '{queue}' {HERE}: received '{received}' but current is '{current}'"
    with refused(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, arguments=dict(QUORUM), **flags)


def test_declaration_ignores_integer_width_and_unknown_arguments(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-max-length": 5, "x-mine": 1})
    world.change_leader()
    # pika sends the smallest type that fits: here a long long.
    declare(channel, queue, {"x-max-length": long(5), "x-mine": 2})
    barrier(channel)


def test_exclusive_queue_is_locked_for_a_second_connection(world: World, queue: str) -> None:
    channel = world.channel(1)
    channel.queue_declare(queue, exclusive=True)
    world.change_leader()
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' {HERE}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )
    with refused(405, text if len(text) <= 255 else text[:252] + "..."):
        ready(world.channel(2), queue)
