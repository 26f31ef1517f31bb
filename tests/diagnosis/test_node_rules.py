"""Findings of a node about itself."""

from __future__ import annotations

import pytest

from qq.diagnosis.findings import Finding
from qq.diagnosis.node_rules import (
    REPORTED_MAX,
    Certificate,
    HeldLimit,
    NodeFacts,
    SlowReader,
    ThrottledPublisher,
    findings_of_node,
)

NOW_S = 1_800_000_000
DAY_S = 86400
HEALTHY = NodeFacts(
    "n1",
    writes=1000,
    write_median_s=0.002,
    write_high_s=0.02,
    loop_high_s=0.01,
    cores=0.5,
    memory_bytes=2**29,
    memory_limit_bytes=2**30,
    disk_free_bytes=2**34,
    disk_free_limit_bytes=2**26,
    disk_watched_s=600,
    files=100,
    files_max=1000,
    connections=100,
    connections_max=1000,
    certificates=[Certificate("/tls/cert.pem", NOW_S + 31 * DAY_S)],
)


def found(facts: NodeFacts) -> list[Finding]:
    return list(findings_of_node(facts, NOW_S))


def test_healthy_node_and_node_without_samples_have_no_findings() -> None:
    assert found(HEALTHY) == found(NodeFacts("n1")) == []


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (
            {"why_publishers_wait": "low on disk", "blocked": 12},
            "disk-alarm",
            (
                "publishers wait: too many other nodes are low on disk (16.0 GiB free here, limit 64.0 MiB); "
                "connections that wait with publishing: 12"
            ),
        ),
        (
            {"why_publishers_wait": "low on memory", "memory_bytes": 2**31},
            "memory-alarm",
            "publishers wait: this node is short of memory (2.0 GiB of 1.0 GiB used here)",
        ),
        (
            {"write_high_s": 0.2},
            "disk-slow",
            "half of the writes to its log take up to 2 ms, and the slowest 1 % take 200 ms",
        ),
        (
            {"write_median_s": 0.05, "write_high_s": float("inf")},
            "disk-slow",
            "half of the writes to its log take up to 50 ms, and the slowest 1 % take more than 5 s",
        ),
        (
            {"loop_high_s": 0.5},
            "loop-busy",
            "its event loop is late by 500 ms at times; it uses 50% of a core",
        ),
        ({"cores": 0.95}, "loop-busy", "its event loop is late by 10 ms at times; it uses 95% of a core"),
        (
            {"disk_change_per_s": -2e6},
            "disk-full-soon",
            "16.0 GiB are free, and publishers wait in 2 hours if the disk goes on filling",
        ),
        (
            {"disk_free_bytes": 5 * 2**30 - 1, "disk_free_limit_bytes": 4 * 2**30, "disk_watched_s": 0},
            "disk-full-soon",
            "5.0 GiB are free, and publishers wait when there are less than 4.0 GiB",
        ),
        (
            {"memory_bytes": 2**30 - 1},
            "memory-short-soon",
            "1024.0 MiB of memory are in use; the limit is 1.0 GiB",
        ),
        ({"files": 801}, "descriptors-short", "801 of 1,000 file descriptors are in use"),
        ({"connections": 801}, "connections-short", "801 of 1,000 connections are open"),
        ({"logins_failed_per_s": 1.5}, "logins-fail", "1.5 logins fail each second"),
        (
            {"leader_changes": 6},
            "leader-changes",
            "the leader has changed 6 times in ten minutes, as this node has seen it",
        ),
    ],
)
def test_node_finding_gives_code_and_text(change: dict[str, object], code: str, text: str) -> None:
    assert found(HEALTHY._replace(**change)) == [Finding(code, "node n1", text)]


@pytest.mark.parametrize(
    "change",
    [
        {"writes": 19, "write_high_s": 3.0},  # too few to tell
        {"write_high_s": 0.1, "write_median_s": 0.02, "loop_high_s": 0.2, "cores": 0.9},
        {"disk_change_per_s": -2e6, "disk_watched_s": 299},
        {"disk_change_per_s": -1e5},
        {"disk_free_bytes": 5 * 2**30, "disk_free_limit_bytes": 4 * 2**30},
        {"memory_bytes": 2**30 * 9 // 10, "files": 800, "connections": 800, "leader_changes": 5},
    ],
)
def test_node_below_the_thresholds_has_no_findings(change: dict[str, object]) -> None:
    assert found(HEALTHY._replace(**change)) == []


def test_alarm_suppresses_the_prediction_of_an_alarm() -> None:
    short = HEALTHY._replace(
        why_publishers_wait="low on disk & memory", memory_bytes=2**31, disk_change_per_s=-1e9
    )
    assert [each.code for each in found(short)] == ["disk-alarm", "memory-alarm"]


@pytest.mark.parametrize(
    ("certificate", "code", "text"),
    [
        (Certificate("c.pem", NOW_S + 3 * DAY_S), "certificate-ends", "it ends in 3 days"),
        (Certificate("c.pem", NOW_S + 3600), "certificate-ends", "it ends in 60 minutes"),
        (Certificate("c.pem", NOW_S - 10 * DAY_S), "certificate-ended", "it ended 10 days ago"),
        (Certificate("c.pem", NOW_S), "certificate-ended", "it ended 0 minutes ago"),
        (Certificate("c.pem", None, "there is none in it"), "certificate-unreadable", "there is none in it"),
    ],
)
def test_certificates_that_end(certificate: Certificate, code: str, text: str) -> None:
    facts = HEALTHY._replace(certificates=[*HEALTHY.certificates, certificate])
    assert found(facts) == [Finding(code, "c.pem of node n1", text)]


def test_clients_that_wait_and_that_do_not_read() -> None:
    held = HeldLimit("vhost", "shop", "max-publishes-per-second", 1000, 5)
    reader = SlowReader("10.0.0.1:5 -> 10.0.0.2:5672", 2**20, 77)
    since_ms = round((NOW_S - 180) * 1000)
    throttled = ThrottledPublisher("link 'a'", reader.name, held.name, held.limit, since_ms)
    closed = SlowReader("c", 0, 78, sessions=2)
    facts = HEALTHY._replace(held=[held], throttled=[throttled], slow_readers=[reader, closed])
    assert found(facts) == [
        Finding(
            "publishers-held",
            "vhost 'shop'",
            "the limit max-publishes-per-second (1,000) holds 5 publishers up at node n1",
        ),
        Finding(
            "publisher-throttled",
            "link 'a' of connection 10.0.0.1:5 -> 10.0.0.2:5672",
            "the limit max-publishes-per-second (1,000) has held its messages up at node n1 for 3 minutes",
            since_ms,
        ),
        Finding(
            "client-reads-slowly",
            "connection 10.0.0.1:5 -> 10.0.0.2:5672",
            "it does not read 1.0 MiB that wait for it at node n1",
            77,
        ),
        Finding(
            "client-reads-slowly",
            "connection c",
            "deliveries wait at node n1, because it keeps the incoming window of 2 sessions closed",
            78,
        ),
    ]
    many = HEALTHY._replace(
        held=[held] * 1000,
        throttled=[throttled] * 1000,
        slow_readers=[reader] * 1000,
        certificates=[Certificate("c", None)] * 1000,
    )
    assert len(found(many)) == 4 * REPORTED_MAX
