"""Makes the pictures of the management page that the documentation shows: docs/how-to/page/*.png.

    python -m tests.page.screenshots

It takes some minutes, so that the charts have something to show. Not here: the cluster that is shown (demo.py).
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from qq.testing import LocalCluster
from tests.page.browsing import Page
from tests.page.chromium import opened
from tests.page.demo import fill, traffic

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "how-to" / "page"
WIDTH, HEIGHT = 1280, 760
TRAFFIC_S = 240.0
SETTLE_S = 1.5


class Picture(NamedTuple):
    name: str
    view: str
    is_dark: bool = False
    opened: str = ""
    """Element to click first, if any."""


PICTURES = (
    Picture("overview", "overview"),
    Picture("queues", "queues"),
    Picture("queue", "queues/%2F/orders.new", is_dark=True),
    Picture("dead-letters", "dead-letters/%2F/dead-letters", opened=".message summary"),
    Picture("exchanges", "exchanges?as=picture&vhost=%2F"),
    Picture("members", "members", is_dark=True),
)


def take(page: Page, picture: Picture) -> None:
    page.open(picture.view)
    time.sleep(SETTLE_S)
    if picture.is_dark:
        page.key("t")
    if picture.opened:
        page.click(picture.opened)
    time.sleep(SETTLE_S)
    page.browser.save_screenshot(str(PLACE / f"{picture.name}.png"))
    if picture.is_dark:
        page.key("t")
    print(f"{picture.name}: {(PLACE / f'{picture.name}.png').stat().st_size // 1024} KiB")


def main() -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(nodes=3))
        fill(cluster.nodes[0])
        stack.enter_context(traffic(cluster))
        time.sleep(TRAFFIC_S)
        address = f"http://127.0.0.1:{cluster.nodes[0].http_port}/"
        page = Page(stack.enter_context(opened(WIDTH, HEIGHT)), address)
        page.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        page.start()
        page.log_in("guest", "guest")
        page.until_reads("Messages a second")
        for picture in PICTURES:
            take(page, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
