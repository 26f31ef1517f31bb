"""The verdict on the cluster in a real browser, while nodes are killed and stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from qq.testing import LocalCluster
from tests.page.browsing import Page
from tests.page.chromium import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qq.testing import ClusterNode

pytestmark = pytest.mark.xdist_group("page")

DEAD_LEADER_S = 3.0
FROZEN_S = 10.0
"""Seconds within which the page must show a dead leader, and a node that does not answer."""


@pytest.fixture
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(nodes=3) as started:
        yield started


@pytest.fixture
def page(cluster: LocalCluster) -> Generator[Page]:
    """A page of a follower."""
    with opened() as browser:
        shown = Page(browser, f"http://127.0.0.1:{cluster.followers()[0].http_port}/")
        shown.start()
        shown.log_in("guest", "guest")
        shown.until_reads("all well: 3 of 3 members", ".verdict.info")
        yield shown


def seconds_until(page: Page, is_so: Callable[[], object]) -> float:
    began_s = time.monotonic()
    page.until(is_so)
    return time.monotonic() - began_s


def chip(page: Page, node: ClusterNode) -> str:
    """Return the text of the node in the strip if it looks broken."""
    return next((each.text for each in page.all(".strip .node.bad") if node.name in each.text), "")


@pytest.mark.parametrize("view", ["overview", "users"])
def test_dead_leader_is_red_in_every_view_within_seconds(
    page: Page, cluster: LocalCluster, view: str
) -> None:
    page.open(view)
    page.until_reads("all well", "main .verdict.info:first-child")
    leader = cluster.leader()
    leader.kill()
    took_s = seconds_until(
        page, lambda: chip(page, leader) and page.all("main .verdict.critical:first-child")
    )
    print(f"{view}: the killed leader is red after {took_s:.2f} s")
    assert took_s < DEAD_LEADER_S
    assert page.text(".verdict .word").upper() == "CRITICAL"
    page.until_reads(f"not well: {leader.name} does not answer", ".verdict")
    leader.start()
    page.until_reads("all well: 3 of 3 members", ".verdict.info")


def test_frozen_node_is_named_with_the_time_of_its_data(page: Page, cluster: LocalCluster) -> None:
    node = next(each for each in cluster.nodes if f":{each.http_port}/" in page.address)
    node.pause()
    try:
        took_s = seconds_until(page, lambda: page.all(".verdict.critical"))
        print(f"the frozen node is named after {took_s:.2f} s")
        assert took_s < FROZEN_S
        page.until_reads(f"{node.name} has not answered since ", ".verdict")
        assert "Waiting for the node" in page.text(".top")
        page.open("queues")  # also in a view that has no data yet
        page.until_reads(f"{node.name} has not answered since ", "main .verdict")
    finally:
        node.resume()
    page.until_reads("all well: 3 of 3 members", ".verdict.info")


def test_findings_of_a_kind_are_a_line_with_links(page: Page, cluster: LocalCluster) -> None:
    here = next(each for each in cluster.nodes if f":{each.http_port}/" in page.address)
    others = [node.name for node in cluster.nodes if node is not here]
    for node in cluster.nodes:
        if node is not here:
            node.kill()
    page.until_reads("no majority", ".verdict.critical")
    page.until_reads("2 nodes do not answer", ".findings .warning")
    assert [each.text for each in page.all(".findings .warning a")] == others
    assert "CRITICAL" in page.text(".findings .critical .severity").upper()
    assert page.text(".findings .warning .severity") == "Warning"
    page.click(".findings .warning a")
    page.until(lambda: page.place == "members")
    page.until(lambda: page.all(f'[name="drain-{here.name}"]'))
    offered = {each.get_attribute("name") for each in page.all(".member button")}
    for name in others:
        assert offered & {f"lead-{name}", f"drain-{name}", f"remove-{name}"} == {f"remove-{name}"}
    page.press(f"remove-{others[0]}")
    page.until_reads("Then 2 voters are left, and none may fail.", "dialog")
