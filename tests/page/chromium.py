"""The browser of the tests of the management page: Chromium and its driver, found or installed.

    python -m tests.page.chromium             prints their paths
    python -m tests.page.chromium --install   installs them first if they are missing; as root, on Debian and Ubuntu

The search covers CHROMIUM and CHROMEDRIVER, then PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

if TYPE_CHECKING:
    from collections.abc import Generator

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REMEDY = (
    "run `make chromium` (it needs root and apt-get), install the packages chromium and chromium-driver, "
    "or set CHROMIUM and CHROMEDRIVER"
)
PACKAGES = ("chromium", "chromium-driver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PATIENCE_S = 20.0


class Programs(NamedTuple):
    browser: str
    driver: str


class NoBrowser(Exception):
    """There is no Chromium, or no driver for it."""


def find() -> Programs:
    """Raises NoBrowser, which names the remedy."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    if browser is None or driver is None:
        program = "Chromium" if browser is None else "chromedriver"
        raise NoBrowser(f"the tests of the management page need a browser and found no {program}: {REMEDY}")
    return Programs(browser, driver)


def install() -> Programs:
    """Raises NoBrowser."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return find()
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", *command], check=False, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise NoBrowser(f"apt-get {command[0]} failed: {done.stderr.strip()[-300:]}; {REMEDY}")
    return find()


@contextmanager
def opened(width: int = 1440, height: int = 900, *more: str) -> Generator[Chrome]:
    """A browser of its own, with an empty profile. Raises NoBrowser."""
    programs = find()
    with tempfile.TemporaryDirectory(prefix="qq-chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = programs.browser
        for flag in (*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}", *more):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = Chrome(options, Service(programs.driver))
        try:
            browser.set_script_timeout(PATIENCE_S)
            yield browser
        finally:
            browser.quit()


def main(arguments: list[str]) -> int:
    try:
        try:
            programs = find()
        except NoBrowser:
            if arguments != ["--install"]:
                raise
            programs = install()
    except NoBrowser as error:
        print(error, file=sys.stderr)
        return 1
    print(*programs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
