"""Every answer of the HTTP API has RabbitMQ's fields with their types, in each state, except for the list below.

`api_fields.py` has recorded the fields of RabbitMQ 4.0.5. A strict client fails without a field, and when the type of a
field changes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from qq.machine.protocol.versions import VERSIONS
from tests.queues.api_fields import OPAQUE, Api, Fields, record, recorded
from tests.queues.clients import wait_until
from tests.queues.nodes_here import ClusterHere

STATISTICS_S = 6.0
"""Seconds until a node shows the rates of a change: it samples every five seconds."""
RECORDED = recorded()
ABSENT = "(absent)"


class Difference(NamedTuple):
    field: str
    """A regular expression that matches the name of a field, or its end behind a dot."""
    ours: str
    """A regular expression that matches the types of the field."""
    why: str
    path: str = ".*"
    """A regular expression that matches a whole path of the API."""


DIFFERENCES = (
    Difference(
        r"garbage_collection|reductions(_details)?|proc_(used|used_details|total)|net_ticktime|gc_bytes_reclaimed"
        r"(_details)?|metrics_gc_queue_length|ra_open_file_metrics|open_files|cowboy_opts|ssl_opts|config_files\[\]"
        r"|log_files\[\]|enabled_plugins\[\]|cluster_links\[\]|pending_raft_commands",
        ABSENT,
        "describes the Erlang VM and its processes",
    ),
    Difference(
        r"(io_(read|reopen|seek|write)|mnesia|msg_store|queue_index)_\w+|disk_(reads|writes)(_details)?"
        r"|storage_version|memory|publishers|messages_ready_(high|normal|returned)"
        r"|head_message_timestamp",
        ABSENT,
        "describes RabbitMQ's stores and the processes of its queues and channels",
    ),
    Difference(
        r"queue_(created|deleted)(_details)?", ABSENT, "counted for the cluster, see churn_rates", "nodes.*"
    ),
    Difference(r"io_(sync|write)_avg_time_details", ABSENT, "an average has no rate", "nodes.*"),
    Difference(r"idle_since", ABSENT, "shown for idle objects; RabbitMQ's are seconds old"),
    Difference(r"default_queue_type", ABSENT, "an import of the document would set it", r"definitions.*"),
    Difference(
        r"socket_opts\..*|contexts\[\]\.protocol", ABSENT, "options of Erlang's sockets", "overview|nodes.*"
    ),
    Difference(r"\[\]", ABSENT, "extensions are scripts of RabbitMQ's page", "extensions"),
    Difference(
        r"(peer_cert|ssl)_\w+", "null", "null, as in RabbitMQ's list of connections", "connections/CONNECTION"
    ),
    Difference(
        r"single_active_consumer_tag",
        "null",
        "RabbitMQ shows a single consumer here, where none was wanted",
        "queues/VHOST/quorum",
    ),
)


@pytest.fixture(scope="module")
def fields(cluster_here: ClusterHere) -> Fields:
    node = cluster_here.nodes[1]
    # A new cluster agrees on the newest version of the state in its first second.
    api = Api(node.url, f"http://127.0.0.1:{node.http_port}", STATISTICS_S)
    wait_until(lambda: api.request("GET", "cluster")["version"] == VERSIONS[1])
    return record(api)


def test_answers_have_the_fields_of_rabbitmq(fields: Fields) -> None:
    unlisted = [
        (path, field, state, theirs, ours)
        for path, of_path in RECORDED.items()
        for field, kinds in of_path.items()
        if not _is_of_a_node(field) and _parent_is_here(field, fields.get(path, {}))
        for state, theirs in kinds.items()
        if not set((ours := fields.get(path, {}).get(field, {}).get(state, ABSENT)).split())
        <= set(theirs.split())
        and not _is_listed(path, field, ours)
    ]
    assert unlisted == []


def test_listed_differences_exist(fields: Fields) -> None:
    missing = [
        (path, field, fields.get(path, {}).get(field, {}).get(state, ABSENT))
        for path, of_path in RECORDED.items()
        for field, kinds in of_path.items()
        for state in kinds
    ]
    for each in DIFFERENCES:
        assert any(_matches(each, *place) for place in missing), each


def test_type_of_a_field_is_the_same_in_each_state(fields: Fields) -> None:
    """A field is null, or of a single type."""
    changing = [
        (path, field, kinds)
        for path, of_path in fields.items()
        for field, kinds in of_path.items()
        if field.rpartition(".")[2] not in OPAQUE
        and len({kind for each in kinds.values() for kind in each.split()} - {"null"}) > 1
    ]
    assert changing == []


def _is_of_a_node(field: str) -> bool:
    """Return whether a field is named by a node of the recorded cluster."""
    return "@" in field


def _parent_is_here(field: str, fields: dict[str, dict[str, str]]) -> bool:
    parent = field.removesuffix("[]") if field.endswith("[]") else field.rpartition(".")[0]
    return parent in ("", *fields)


def _is_listed(path: str, field: str, ours: str) -> bool:
    return any(_matches(each, path, field, ours) for each in DIFFERENCES)


def _matches(difference: Difference, path: str, field: str, ours: str) -> bool:
    return (
        re.fullmatch(difference.path, path) is not None
        and re.fullmatch(rf"(.*[.])?({difference.field})", field) is not None
        and re.fullmatch(re.escape(difference.ours), ours) is not None
    )
