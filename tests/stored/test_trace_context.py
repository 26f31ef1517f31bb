from typing import Any

import pytest

from qq.amqp10.sections import DATA
from qq.amqp10.values import Symbol
from qq.stored.trace_context import TraceContext, trace_context
from tests.amqp.amqp_wire import array, long, long_string, stored_message
from tests.stored.messages10 import message10

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SAMPLED, UNSAMPLED = TraceContext(True, PARENT), TraceContext(False)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (None, None),
        ([], None),
        ([("traceparent", long_string(PARENT))], SAMPLED),
        ([("traceparent", b"x" + long_string(PARENT)[1:])], SAMPLED),
        (
            [("a", long(1)), ("tracestate", long_string("v=1")), ("traceparent", long_string(PARENT))],
            TraceContext(True, PARENT, "v=1"),
        ),
        ([("traceparent", long_string(f"{PARENT}-of a later version"))], SAMPLED),
        ([("traceparent", long_string(f"{PARENT[:-1]}f"))], TraceContext(True, f"{PARENT[:-1]}f")),
        ([("traceparent", long_string(f"{PARENT[:-1]}0"))], UNSAMPLED),
        ([("traceparent", long_string(f"{PARENT[:-1]}2"))], UNSAMPLED),
        ([("traceparent", long_string(f"{PARENT[:-1]}x"))], None),
        ([("traceparent", long_string(PARENT[:-1]))], None),
        ([("traceparent", long_string(PARENT.upper()))], None),
        ([("traceparent", long_string(b"\xff" * 55))], None),
        ([("traceparent", long_string(b""))], None),
        ([("traceparent", long(1))], None),
        ([("traceparent", array(long_string(PARENT)))], None),
        ([("Traceparent", long_string(PARENT))], None),
        ([("a", long_string("traceparent"))], None),
        ([("tracestate", long(1)), ("traceparent", long_string(PARENT))], SAMPLED),
    ],
)
def test_the_headers_of_a_trace_context(
    headers: list[tuple[str, bytes]] | None, found: TraceContext | None
) -> None:
    assert trace_context(stored_message(headers)) == found


def test_trace_context_in_the_body_is_ignored() -> None:
    traced = stored_message([("traceparent", long_string(PARENT))])
    message = stored_message([("other", long_string("text"))], body_size=0)
    assert trace_context(message + traced) is None


def test_trace_state_longer_than_the_headers_is_cut_at_their_end() -> None:
    inner = b"\x0atracestateS\0\1\0\0rest"
    message = stored_message([("traceparent", long_string(PARENT)), ("a", long_string(inner))])
    assert trace_context(message + b"body") == TraceContext(True, PARENT, "rest\xce")


@pytest.mark.parametrize(
    ("annotations", "named", "found"),
    [
        (None, None, None),
        (None, {"traceparent": PARENT, "tracestate": "v=1"}, TraceContext(True, PARENT, "v=1")),
        (None, {"traceparent": PARENT, "tracestate": "v" * 300}, TraceContext(True, PARENT, "v" * 300)),
        ({"x-a": "b", "traceparent": Symbol(PARENT)}, None, SAMPLED),
        (None, {"traceparent": f"{PARENT}-of a later version" + "!" * 300}, None),
        (None, {"traceparent": f"{PARENT[:-1]}0"}, UNSAMPLED),
        (None, {"traceparent": PARENT.encode()}, None),
    ],
)
def test_trace_context_of_sections(
    annotations: dict[str, Any] | None, named: dict[str, Any] | None, found: TraceContext | None
) -> None:
    assert trace_context(message10(annotations=annotations, named=named)) == found


def test_trace_context_in_the_body_of_sections_is_ignored() -> None:
    traced = message10(named={"traceparent": PARENT})
    assert trace_context(message10(body=[(DATA, traced)])) is None
