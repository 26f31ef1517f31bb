"""Measure the page with very many queues: its waiting times, and its cost for the node.

    python -m tests.page.many_queues --queues 20000

Prints the figures, and fails if an aim is missed. It takes a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from aiohttp import encode_basic_auth

from qq.testing import ClusterNode, LocalCluster
from tests.page.browsing import Page
from tests.page.chromium import opened
from tests.page.demo import QUORUM, api

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = 2000
WAIT_MAX_S = 2.0
"""The longest wait for a page, a search or a new order."""
COST_MAX = 0.3
"""The largest share of a processor that viewers cost the node, regardless of their number: a tenth is for them, and
the rest is the usual work for queues."""
WATCHED_S = 20.0
VIEWERS = 30


def make_queues(node: ClusterNode, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        queues = [
            {
                "vhost": "/",
                "name": f"queue-{number:06}",
                "durable": True,
                "auto_delete": False,
                "arguments": QUORUM,
            }
            for number in range(first, min(first + AT_ONCE, count))
        ]
        api(node, "definitions", "POST", {"queues": queues})


def processor_s(node: ClusterNode) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_processor(node: ClusterNode) -> float:
    before = processor_s(node)
    time.sleep(WATCHED_S)
    return (processor_s(node) - before) / WATCHED_S


def resident_mib(node: ClusterNode) -> int:
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def waited_s(page: Page, act: Callable[[], object], is_there: Callable[[], object]) -> float:
    began_s = time.monotonic()
    act()
    page.until(is_there)
    return time.monotonic() - began_s


def first_row(page: Page) -> str:
    rows = page.rows("Queues")
    return rows[0][0] if rows else ""


def measure_views(page: Page, count: int) -> dict[str, float]:
    """Return the waiting times of actions on the page."""
    last = f"queue-{count - 1:06}"
    page.open("overview")
    page.until_reads("Messages a second")
    return {
        "the first page of the list": waited_s(
            page, lambda: page.open("queues"), lambda: first_row(page) == "queue-000000"
        ),
        "another order": waited_s(
            page,
            lambda: page.open("queues?sort=messages_ready&sort_reverse=true"),
            lambda: first_row(page) == last,
        ),
        "the order of a rate": waited_s(
            page,
            lambda: page.open("queues?sort=message_stats.publish_details.rate"),
            lambda: first_row(page) == "queue-000000",
        ),
        "the last page": waited_s(
            page,
            lambda: page.open(f"queues?page={count // 50}"),
            lambda: first_row(page) == f"queue-{count - 50:06}",
        ),
        "a search": waited_s(
            page, lambda: page.open("queues?name=777&page_size=25"), lambda: "777" in first_row(page)
        ),
        "one queue": waited_s(
            page, lambda: page.open(f"queues/%2F/{last}"), lambda: page.text("main h1") == last
        ),
    }


def view(node: ClusterNode, number: int, until_s: float) -> int:
    """Look at a page of the list as a browser does; returns how much came."""
    query = f"view=queues&page={1 + number % 10}&page_size=50&sort=messages_ready"
    request = Request(f"http://127.0.0.1:{node.http_port}/api/stream?{query}")
    request.add_header("Authorization", encode_basic_auth("guest", "guest"))
    count = 0
    with urlopen(request, timeout=30) as answer:
        while time.monotonic() < until_s:
            count += len(answer.readline())
    return count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The management page with very many queues.")
    parser.add_argument("--queues", type=int, default=20_000)
    count = parser.parse_args(arguments).queues
    missed = False
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(nodes=1))
        node = cluster.nodes[0]
        make_queues(node, count)
        print(f"{count:,} queues, {resident_mib(node)} MiB")
        alone = share_of_processor(node)
        print(f"nobody looks: {alone:.0%} of a processor")
        page = Page(stack.enter_context(opened()), f"http://127.0.0.1:{node.http_port}/")
        page.start()
        page.log_in("guest", "guest")
        for part, seconds in measure_views(page, count).items():
            missed |= seconds > WAIT_MAX_S
            print(f"{part}: {seconds:.2f} s")
        page.open("queues")
        page.until(lambda: first_row(page))
        one = share_of_processor(node)
        print(f"one looks at the list: {one:.0%} of a processor")
        until_s = time.monotonic() + WATCHED_S + 2
        with ThreadPoolExecutor(VIEWERS) as viewers:
            came = [viewers.submit(view, node, number, until_s) for number in range(VIEWERS)]
            time.sleep(1)
            many = share_of_processor(node)
            counted = sum(each.result() for each in came)
        missed |= many > alone + COST_MAX
        print(
            f"{VIEWERS} look at 10 pages of it: {many:.0%} of a processor, {counted / 2**20 / WATCHED_S:.2f} MiB/s"
        )
        print(f"memory at the end: {resident_mib(node)} MiB")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
