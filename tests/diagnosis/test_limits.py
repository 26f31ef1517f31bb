"""Findings about all nodes together."""

from __future__ import annotations

from qq.diagnosis.findings import Finding
from qq.diagnosis.limits import TenantUse, Vitals, findings_of_all

IDLE = Vitals("n1", "0.2")
BUSY = IDLE._replace(writes=100, write_s=0.004, loop_s=0.002, commits_per_s=100, commit_s=0.007, cores=0.3)


def found(*vitals: Vitals) -> list[Finding]:
    return list(findings_of_all({each.name: each for each in vitals}, "n1"))


def test_idle_cluster_of_equal_nodes_has_no_findings() -> None:
    assert found() == found(IDLE, IDLE._replace(name="n2")) == []


def test_releases_that_differ() -> None:
    assert found(IDLE, IDLE._replace(name="n3"), IDLE._replace(name="n2", release="0.1")) == [
        Finding("releases-differ", "cluster", "nodes run different releases: n2 0.1; n1, n3 0.2")
    ]


def test_settings_that_differ() -> None:
    common = {"[limits] frame_max": "131072", "[limits] channel_max": "2047"}
    first, third = (IDLE._replace(name=name, settings=common) for name in ("n1", "n3"))
    # A missing setting of a different program is no difference.
    assert found(first, third._replace(settings={"[limits] frame_max": "131072"})) == []
    second = IDLE._replace(name="n2", settings=common | {"[limits] frame_max": "4096"})
    assert found(first, second, third) == [
        Finding("settings-differ", "cluster", "nodes differ in [limits] frame_max: n1, n3; n2")
    ]
    many = {f"[limits] {number}": "1" for number in range(12)}
    [finding] = found(first._replace(settings=many), second._replace(settings=dict.fromkeys(many, "2")))
    assert finding.text.endswith("[limits] 7 and 2 more: n1; n2")


def test_limited_by_names_the_largest_part_of_a_commit() -> None:
    [finding] = found(
        BUSY, BUSY._replace(name="n2", commits_per_s=5, cores=0.7), BUSY._replace(name="n3", write_s=0.9)
    )
    assert finding == Finding(
        "limited-by",
        "cluster",
        "a commit of n1 takes 7 ms, mostly for disks (fsync) [disks (fsync) 4 ms, event loops 1 ms, network and "
        "turns 2 ms]; the busiest node is n2, with 70% of a core",
    )
    [finding] = found(BUSY._replace(loop_s=0.006))
    assert "mostly for event loops" in finding.text
    # Of the leader's loop and that of the node itself.
    [finding] = found(BUSY._replace(loop_s=0.021), BUSY._replace(name="n2", commits_per_s=500, commit_s=0.03))
    assert "a commit of n2 takes 30 ms, mostly for event loops" in finding.text
    assert "event loops 21 ms" in finding.text


def test_a_slow_network() -> None:
    slow = BUSY._replace(commit_s=0.2)
    assert [each.code for each in found(slow, slow._replace(name="n2"))] == ["network-slow", "limited-by"]
    assert found(slow, slow._replace(name="n2"))[0].text == (
        "a commit of n1 takes 200 ms, and disks and event loops only 5 ms of it"
    )
    assert [each.code for each in found(slow)] == ["limited-by"]  # a node alone has no network to wait for


def test_a_tenant_that_has_most_of_the_traffic() -> None:
    here = IDLE._replace(octets_per_s=3e6, tenants=[TenantUse("v", "a", 1e6, 3), TenantUse("v", "b", 2e6, 5)])
    there = IDLE._replace(name="n2", octets_per_s=3e6, tenants=[TenantUse("v", "a", 3e6, 1)])
    assert found(here, there) == [
        Finding(
            "tenant-heavy",
            "user 'a' in vhost 'v'",
            "it has 67% of all clients' traffic, 4.0 MB a second, over 4 connections",
            about=("user", "a"),
        )
    ]
    assert found(there) == []  # it is the only node
    assert (
        found(
            here._replace(
                octets_per_s=9e4, tenants=[TenantUse("v", "a", 8e4, 1), TenantUse("v", "b", 1e4, 1)]
            )
        )
        == []
    )
