"""Finds the bottleneck of the cluster, and the tenant that causes most load, from the vitals of all nodes.

A confirm waits for the event loops on its way, for the disks of a majority, and for the network between the nodes. Its
total time is measured, and so are event loops and disks. The remainder is the network, and nodes that did not answer.

Invariant: pure. Facts that a node did not report are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.diagnosis.findings import Finding
from qq.diagnosis.member_rules import CLUSTER
from qq.diagnosis.words import ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPORTED_MAX = 10
"""Settings named in a finding at most."""
LOAD_PER_S = 10.0
"""Batches per second of a node below which it is not judged, because it has too little load."""
SLOW_COMMIT_S = 0.05
TIMER_S = 0.001
"""Seconds by which a timer of an idle event loop is late, because the loop's clock counts milliseconds."""
NETWORK_FACTOR = 4
"""The network is slow if a commit takes this many times as long as disks and event loops together."""
HEAVY_SHARE = 0.5
"""Share of all clients' traffic from which a tenant is heavy."""
HEAVY_OCTETS_PER_S = 100_000
"""Octets per second of all clients' traffic below which no tenant counts as heavy."""


class TenantUse(NamedTuple):
    """Usage of a node by the clients of a user in a virtual host."""

    vhost: str
    user: str
    octets_per_s: float
    """Octets per second that these clients send and receive."""
    connections: int


class Vitals(NamedTuple):
    """Load and delays of a node in the last minute. Plain data, so that nodes can send it to each other."""

    name: str
    release: str = ""
    writes: int = 0
    """Number of writes to the log, each with its sync."""
    write_s: float = 0.0
    """Mean seconds of such a write. `loop_s` is the mean lateness of the event loop, `commit_s` the mean time of a
    commit.
    """
    loop_s: float = 0.0
    commits_per_s: float = 0.0
    commit_s: float = 0.0
    apply_share: float = 0.0
    """Share of the time that applying entries took."""
    cores: float = 0.0
    octets_per_s: float = 0.0
    """Octets per second that all clients of the node send and receive."""
    tenants: Sequence[TenantUse] = ()
    """The tenants with the most traffic."""
    settings: Mapping[str, str] = {}
    """Settings that should be equal on all nodes, by name."""


def findings_of_all(vitals: Mapping[str, Vitals], leader: str | None) -> Iterator[Finding]:
    """Yield the findings that need a comparison of nodes: releases, settings, the bottleneck, heavy tenants."""
    known = [each for _, each in sorted(vitals.items())]
    yield from _releases(known)
    yield from _settings(known)
    yield from _limit(known, leader)
    yield from _tenants(known)


def _releases(vitals: Sequence[Vitals]) -> Iterator[Finding]:
    releases: dict[str, list[str]] = {}
    for each in vitals:
        releases.setdefault(each.release, []).append(each.name)
    if len(releases) > 1:
        listed = "; ".join(f"{', '.join(names)} {release}" for release, names in sorted(releases.items()))
        yield Finding("releases-differ", CLUSTER, f"nodes run different releases: {listed}")


def _settings(vitals: Sequence[Vitals]) -> Iterator[Finding]:
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for each in vitals:
        alike.setdefault(tuple(sorted(each.settings.items())), []).append(each.name)
    values: dict[str, set[str]] = {}
    for name, value in (setting for settings in alike for setting in settings):
        values.setdefault(name, set()).add(value)
    # A release without a setting is not in conflict about it.
    differing = [name for name in values if len(values[name]) > 1]
    if differing:
        more = f" and {len(differing) - REPORTED_MAX} more" if len(differing) > REPORTED_MAX else ""
        nodes = "; ".join(", ".join(names) for names in alike.values())
        text = f"nodes differ in {', '.join(differing[:REPORTED_MAX])}{more}: {nodes}"
        yield Finding("settings-differ", CLUSTER, text)


def _limit(vitals: Sequence[Vitals], leader: str | None) -> Iterator[Finding]:
    """Yield the part of a confirm that takes longest at the busiest node, and a finding if the network is slow."""
    busy = [each for each in vitals if each.commits_per_s >= LOAD_PER_S]
    if not busy:
        return
    most = max(busy, key=lambda each: each.commits_per_s)
    writes_s = sorted(each.write_s for each in vitals if each.writes)
    # A commit needs a majority of the disks, with or without the leader's: that is their median time.
    disk_s = writes_s[(len(writes_s) - 1) // 2] if writes_s else 0.0
    ways = {most.name, leader or most.name}
    loop_s = sum(max(0.0, each.loop_s - TIMER_S) for each in vitals if each.name in ways)
    whole_s = most.commit_s
    known_s = disk_s + loop_s
    if whole_s > SLOW_COMMIT_S and whole_s > NETWORK_FACTOR * known_s and len(vitals) > 1:
        text = (
            f"a commit of {most.name} takes {ms(whole_s)}, and disks and event loops only {ms(known_s)} of it"
        )
        yield Finding("network-slow", CLUSTER, text)
    parts = {
        "disks (fsync)": disk_s,
        "event loops": loop_s,
        "network and turns": max(0.0, whole_s - known_s),
    }
    first = max(parts, key=lambda part: parts[part])
    shares = ", ".join(f"{part} {ms(seconds)}" for part, seconds in parts.items())
    busiest = max(vitals, key=lambda each: each.cores)
    core = f"the busiest node is {busiest.name}, with {busiest.cores:.0%} of a core"
    text = f"a commit of {most.name} takes {ms(whole_s)}, mostly for {first} [{shares}]; {core}"
    yield Finding("limited-by", CLUSTER, text)


def _tenants(vitals: Sequence[Vitals]) -> Iterator[Finding]:
    whole = sum(each.octets_per_s for each in vitals)
    used: dict[tuple[str, str], tuple[float, int]] = {}
    for tenant in (tenant for each in vitals for tenant in each.tenants):
        octets, connections = used.get((tenant.vhost, tenant.user), (0.0, 0))
        used[tenant.vhost, tenant.user] = octets + tenant.octets_per_s, connections + tenant.connections
    if whole < HEAVY_OCTETS_PER_S or len(used) < 2:
        return
    for (vhost, user), (octets, connections) in used.items():
        if octets >= HEAVY_SHARE * whole:
            traffic = f"{octets / whole:.0%} of all clients' traffic, {octets / 1e6:.1f} MB a second"
            text = f"it has {traffic}, over {connections:,} connections"
            yield Finding("tenant-heavy", f"user '{user}' in vhost '{vhost}'", text, about=("user", user))
