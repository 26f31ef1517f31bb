"""Declarations: what is refused, with RabbitMQ's texts, and what counts as the same."""

from __future__ import annotations

from typing import Any

import pytest
from leader_changes import QUIET
from pika.compat import long
from queue_clients import HERE, QUORUM, barrier, declare, got, publish, ready, refused
from queue_world import World

MODULE = "of queue type rabbit_quorum_queue"


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": False, "auto_delete": True, "exclusive": True}, "auto-delete"),
        ({"durable": False, "exclusive": True}, "exclusive-owner"),
    ],
)
def test_a_quorum_queue_is_durable_shared_and_permanent(
    world: World, queue: str, flags: dict[str, bool], what: str
) -> None:
    channel = world.channel(1)
    world.change_leader()
    with refused(406, f"PRECONDITION_FAILED - invalid property '{what}' for queue '{queue}' {HERE}"):
        channel.queue_declare(queue, arguments=dict(QUORUM), **flags)


@QUIET
def test_a_quorum_queue_has_a_name_of_its_own(world: World) -> None:
    channel = world.channel(1)
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    with refused(406, text):
        channel.queue_declare("", durable=True, arguments=dict(QUORUM))


@QUIET
def test_names_that_begin_with_amq_are_reserved(world: World) -> None:
    with refused(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        declare(world.channel(1), "amq.mine")


def test_line_ends_in_a_name_are_dropped(world: World, queue: str) -> None:
    channel = world.channel(1)
    # Without an answer, which pika would not take for the answer to this.
    channel._impl.queue_declare(f"{queue}\r\n-end", durable=True, arguments=dict(QUORUM))
    world.change_leader()
    assert ready(channel, f"{queue}-end") == 0


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-expires": -1}, "{value_negative,-1}"),
        ({"x-expires": "soon"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-max-length": True}, '"expected integer, got bool"'),
        ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
        ({"x-max-in-memory-length": -1}, "{value_negative,-1}"),
        ({"x-overflow": "drop-tail"}, "invalid_overflow"),
        ({"x-overflow": 1}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-exchange": 1}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-dead-letter-strategy": "at-some-time"}, "invalid_dlx_strategy"),
        ({"x-single-active-consumer": "true"}, "{unacceptable_type,longstr}"),
        ({"x-quorum-initial-group-size": 0}, "{value_zero,0}"),
        ({"x-quorum-target-group-size": -3}, "{value_negative,-3}"),
        ({"x-queue-leader-locator": "nearby"}, "invalid_queue_locator_arg"),
        ({"x-consumer-timeout": -1}, "{value_negative,-1}"),
        ({"x-delayed-retry-type": "some"}, "invalid_delayed_retry_type"),
        ({"x-delayed-retry-min": 0}, "{value_zero,0}"),
        ({"x-priority-mode": "loose"}, "invalid_priority_mode"),
        ({"x-return-position": "tail"}, "invalid_return_position"),
        ({"x-delivery-count-mode": "3.8"}, "invalid_delivery_count_mode"),
        ({"x-consumer-timeout-action": "wait"}, "invalid_consumer_timeout_action"),
        ({"x-queue-type": "stream"}, "\"unsupported queue type 'stream'\""),
    ],
    ids=str,
)
@QUIET
def test_an_argument_with_an_impossible_value_is_refused(
    world: World, queue: str, arguments: dict[str, Any], wrong: str
) -> None:
    [key] = arguments
    with refused(406, f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{queue}' {HERE}: {wrong}"):
        declare(world.channel(1), queue, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-priority": 5},
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-max-age": "1D"},
        {"x-stream-max-segment-size-bytes": 1000},
        {"x-queue-master-locator": "client-local"},
    ],
    ids=str,
)
@QUIET
def test_an_argument_for_other_types_of_queues_is_refused(
    world: World, queue: str, arguments: dict[str, Any]
) -> None:
    [key] = arguments
    with refused(406, f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{queue}' {HERE} {MODULE}"):
        declare(world.channel(1), queue, arguments)


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
def test_arguments_that_are_accepted_and_kept(world: World, queue: str, arguments: dict[str, Any]) -> None:
    channel = world.channel(1)
    declare(channel, queue, arguments)
    world.change_leader()
    declare(channel, queue, arguments)
    assert world.ask(f"/api/queues/%2F/{queue}")["arguments"] == {**QUORUM, **arguments}


# The same again


def test_a_declaration_that_is_repeated_tells_messages_and_consumers(world: World, queue: str) -> None:
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
def test_a_declaration_with_other_arguments_is_refused(
    world: World, queue: str, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue, first)
    world.change_leader()
    place = f"queue '{queue}' {HERE}"
    with refused(406, f"PRECONDITION_FAILED - inequivalent arg {text.format(place)}"):
        declare(channel, queue, second)


@QUIET
def test_a_declaration_without_the_type_is_another_one(world: World, queue: str) -> None:
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
def test_a_declaration_with_other_flags_is_refused(
    world: World, queue: str, flags: dict[str, bool], field: str, received: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    current = "true" if received == "false" else "false"
    text = f"inequivalent arg '{field}' for queue '{queue}' {HERE}: received '{received}' but current is '{current}'"
    with refused(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, arguments=dict(QUORUM), **flags)


def test_numbers_of_different_widths_and_arguments_nobody_knows_are_not_compared(
    world: World, queue: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-max-length": 5, "x-mine": 1})
    world.change_leader()
    # pika sends the smallest type that fits: this one is a long long.
    declare(channel, queue, {"x-max-length": long(5), "x-mine": 2})
    barrier(channel)


def test_an_exclusive_queue_is_locked_for_others(world: World, queue: str) -> None:
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


@QUIET
def test_what_is_not_there_is_not_found(world: World, queue: str) -> None:
    text = f"NOT_FOUND - no queue '{queue}' {HERE}"
    for method in (
        lambda channel: ready(channel, queue),
        lambda channel: channel.basic_get(queue),
        lambda channel: channel.basic_consume(queue, print),
        lambda channel: channel.queue_purge(queue),
        lambda channel: channel.queue_bind(queue, "amq.direct", "k"),
    ):
        with refused(404, text):
            method(world.channel(1))
