"""Findings: their order, forms and durations; and the values of a window of samples."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import msgpack
import pytest

from cluster.runtime.histogram import Histogram
from cluster.runtime.ports import pack
from qq.diagnosis.findings import (
    FINDINGS_MAX,
    KEPT_MS,
    KINDS,
    Diagnosis,
    Finding,
    Severity,
    Since,
    decode_finding,
    diagnosis_of,
    document_of,
    lines_of,
)
from qq.diagnosis.window import SAMPLES_KEPT, TimesWindow, Trend
from qq.diagnosis.words import hours, ms

NOW_MS = 1_800_000_000_000
GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md"


def test_guide_lists_all_finding_codes_with_their_severities() -> None:
    rows = [line.split("|") for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    documented = {row[1].strip().strip("`"): row[2].strip() for row in rows}
    assert documented == {code: kind.severity.value for code, kind in KINDS.items()}
    assert all(row[3].strip() for row in rows)


def test_findings_are_sorted_by_severity_then_age() -> None:
    given = [
        Finding("limited-by", "cluster", "x"),
        Finding("node-down", "node n2", "x", 50),
        Finding("no-leader", "cluster", "x", 90),
        Finding("node-behind", "node n3", "x", 20),
        Finding("node-down", "node n4", "x", 40),
    ]
    diagnosis = diagnosis_of(given)
    assert [each.code for each in diagnosis.findings] == [
        "no-leader",
        "node-down",
        "node-down",
        "node-behind",
        "limited-by",
    ]
    assert [each.since_ms for each in diagnosis.findings[1:3]] == [40, 50]
    assert diagnosis.verdict == "1 critical, 3 warnings, 1 info; first of all: cluster: x"
    assert diagnosis_of(given[:1]).verdict == "nothing is wrong (1 info)"
    assert diagnosis_of([]).verdict == "nothing is wrong"


def test_equal_findings_of_several_nodes_are_merged() -> None:
    finding = Finding("name-twice", "node n3", "x")
    given = [
        finding,
        finding._replace(since_ms=50),
        finding._replace(since_ms=40),
        finding._replace(text="y"),
    ]
    assert [each.since_ms for each in diagnosis_of(given).findings if each.text == "x"] == [40]
    assert len(diagnosis_of(given).findings) == 2


def test_findings_are_limited_to_a_page() -> None:
    diagnosis = diagnosis_of(
        Finding("node-down", f"node n{number}", "x") for number in range(FINDINGS_MAX + 5)
    )
    assert (len(diagnosis.findings), diagnosis.omitted) == (FINDINGS_MAX, 5)
    assert diagnosis.verdict == f"{FINDINGS_MAX} warnings, 5 more; first of all: node n0: x"


def test_findings_have_a_json_and_a_text_form() -> None:
    finding = Finding("node-down", "node n2", "it does not answer", 1_800_000_000_999)
    document = json.loads(
        json.dumps(document_of(Diagnosis([finding, Finding("limited-by", "cluster", "y")], 3)))
    )
    assert document["findings"][0] == {
        "severity": "warning",
        "code": "node-down",
        "subject": "node n2",
        "text": "it does not answer",
        "advice": KINDS["node-down"].advice,
        "since": "2027-01-15T08:00:00Z",
        "object": {"kind": "node", "name": "n2"},
    }
    assert (document["findings"][1]["since"], document["omitted"]) == (None, 3)
    assert list(lines_of(document)) == [
        "1 warning, 1 info, 3 more; first of all: node n2: it does not answer",
        "WARNING node-down: node n2, since 2027-01-15T08:00:00Z",
        "    it does not answer",
        f"    -> {KINDS['node-down'].advice}",
        "INFO limited-by: cluster",
        "    y",
        f"    -> {KINDS['limited-by'].advice}",
    ]


def queue(code: str, name: str, since_ms: int | None = None, vhost: str = "/") -> Finding:
    return Finding(code, f"queue '{name}' in vhost '{vhost}'", "x", since_ms, ("queue", vhost, name))


def test_findings_of_a_kind_are_grouped_with_their_names() -> None:
    found = [
        queue("no-consumers", "a", 1_800_000_000_999),
        queue("no-consumers", "b' in vhost '/", 1_800_000_000_000, vhost="shop"),
        Finding("no-consumers", "other queues", "the same holds for 990 more", objects=990),
        queue("dead-letters", "c"),
        Finding("members-few", "cluster", "y"),
    ]
    document = json.loads(json.dumps(document_of(diagnosis_of(found))))
    assert [(each["title"], each["count"], each["findings"]) for each in document["groups"]] == [
        ("992 queues have no consumers", 992, [0, 1]),
        ("queue 'c' in vhost '/'", 1, [3]),
        ("cluster", 1, [4]),
    ]
    assert document["groups"][0]["since"] == "2027-01-15T08:00:00Z"
    assert document["findings"][0]["object"] == {"kind": "queue", "vhost": "shop", "name": "b' in vhost '/"}
    assert list(lines_of(document))[1:4] == [
        "WARNING no-consumers: 992 queues have no consumers, since 2027-01-15T08:00:00Z",
        "    b' in vhost '/ (vhost shop), a and 990 more",
        f"    -> {KINDS['no-consumers'].advice}",
    ]


def test_findings_of_an_earlier_release_are_shown_ungrouped() -> None:
    document = document_of(diagnosis_of([queue("no-consumers", "a"), queue("no-consumers", "b")]))
    del document["groups"]
    for finding in document["findings"]:
        del finding["object"]
    assert [line for line in lines_of(document) if line.startswith("WARNING")] == [
        "WARNING no-consumers: queue 'a' in vhost '/'",
        "WARNING no-consumers: queue 'b' in vhost '/'",
    ]


@pytest.mark.parametrize("since_ms", [None, 5])
def test_finding_is_read_as_it_was_packed(since_ms: int | None) -> None:
    finding = Finding("disk-slow", "node n2", "x", since_ms, ("node", "n2"))
    assert decode_finding(msgpack.unpackb(pack(finding))) == finding
    assert decode_finding(list(finding[:4])) == finding._replace(about=())  # of release 0.2
    assert decode_finding([*finding, "of a later program"]) == finding
    others = finding._replace(objects=480)
    assert decode_finding(msgpack.unpackb(pack(others))) == others
    for count in (0, -1, True, "2", None):
        assert decode_finding([*finding[:-1], count]) == finding
    for malformed in (None, [], ["disk-slow"], ["of-a-later-program", "s", "t", 5], ["disk-slow", 1, "t", 5]):
        assert decode_finding(malformed) is None


def test_finding_keeps_its_start_while_it_recurs() -> None:
    since = Since()
    one, other = Finding("disk-slow", "node n1", "a"), Finding("loop-busy", "node n1", "a")
    assert since.date([one], NOW_MS + 1000) == [one._replace(since_ms=NOW_MS + 1000)]
    later, first_ms, second_ms = one._replace(text="b"), NOW_MS + 1000, NOW_MS + 6000
    recorded = [later._replace(since_ms=first_ms), other._replace(since_ms=second_ms)]
    assert since.date([later, other], second_ms) == recorded
    assert since.date([], NOW_MS + 7000) == []
    assert since.date([one], NOW_MS + 6000 + KEPT_MS) == [one._replace(since_ms=NOW_MS + 1000)]
    since.date([], NOW_MS + 6000 + 2 * KEPT_MS + 1)
    assert since.date([one], NOW_MS + 200_000) == [one._replace(since_ms=NOW_MS + 200_000)]
    known = one._replace(since_ms=3)
    assert since.date([known], NOW_MS + 300_000) == [known]


def test_absence_of_a_node_begins_anew_after_its_return() -> None:
    since, found = Since(), Finding("node-down", "node n3", "it does not answer")
    since.date([found], NOW_MS)
    since.date([], NOW_MS + 5000)
    assert since.date([found], NOW_MS + 9000) == [found._replace(since_ms=NOW_MS + 9000)]
    assert since.date([found], NOW_MS + 14_000) == [found._replace(since_ms=NOW_MS + 9000)]


def test_finding_after_a_total_outage_starts_anew() -> None:
    """Until a starting node knows its peers' clocks, its time is that of the last entry of its log."""
    since, found = Since(), Finding("node-down", "node n3", "it does not answer")
    since.date([found], NOW_MS)
    assert since.date([found], NOW_MS + KEPT_MS) == [found._replace(since_ms=NOW_MS)]
    up_ms = NOW_MS + 2 * 86_400_000
    assert since.date([found], up_ms) == [found._replace(since_ms=up_ms)]


def test_finding_has_no_start_before_the_cluster_clock_is_known() -> None:
    since, found = Since(), Finding("certificate-ends", "c.pem of node n1", "a")
    assert since.date([found], 7) == [found]
    assert since.date([found], NOW_MS) == [found._replace(since_ms=NOW_MS)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0304, "30.4 ms"),
        (0.9994, "999 ms"),
        (1.0, "1 s"),
        (2.5, "2.5 s"),
        (5.0, "5 s"),
        (5.1, "more than 5 s"),
    ],
)
def test_durations_are_formatted_with_a_unit(seconds: float, text: str) -> None:
    assert ms(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (60, "1 minute"),
        (150, "2.5 minutes"),
        (599, "10 minutes"),
        (630, "10 minutes"),
        (7199, "120 minutes"),
        (7200, "2 hours"),
    ],
)
def test_minutes_are_formatted_with_a_tenth(seconds: float, text: str) -> None:
    assert hours(seconds) == text


def test_advice_is_sentences() -> None:
    assert all(kind.advice.endswith(".") and len(kind.advice) < 120 for kind in KINDS.values())
    assert {kind.severity for kind in KINDS.values()} == set(Severity)


# --- windows


def test_a_window_shows_the_last_minute_only() -> None:
    times = Histogram()
    window = TimesWindow(times)
    assert (window.count, window.quantile(0.5), window.mean_s, window.per_second, window.share) == (
        0,
        0,
        0,
        0,
        0,
    )
    times.add(9.0)
    window.sample(0)
    assert (window.count, window.per_second, window.is_whole) == (0, 0, False)
    for number in range(1, SAMPLES_KEPT + 1):
        times.add(0.001)
        times.add(0.004)
        window.sample(5.0 * number)
    assert (window.count, window.quantile(0.5), window.quantile(0.99)) == (24, 0.001, 0.005)
    assert (window.mean_s, window.per_second, window.share) == pytest.approx((0.0025, 0.4, 0.001))
    times.add(9.0)
    window.sample(65)
    assert window.quantile(1.0) == inf
    assert window.quantile(0.99, spared=1) == 0.005
    times.add(9.0)
    window.sample(66)
    assert window.quantile(0.99, spared=1) == inf
    assert window.is_whole


def test_a_change_is_of_its_samples() -> None:
    change = Trend(2)
    assert (change.amount, change.per_second) == (0, 0)
    for number in range(5):
        change.sample(100 - 10 * number, number)
    assert (change.amount, change.seconds, change.per_second) == (-20, 2, -10)
