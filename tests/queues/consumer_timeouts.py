"""Texts and waits of tests of consumer timeouts."""

from __future__ import annotations

import time
from typing import Any

from tests.queues.clients import barrier, refused

LATE_S = 5.0
SHORT_MS = 200
GUIDE = "This timeout value can be configured, see consumers doc guide to learn more"


def closed_text(timeout_ms: int = SHORT_MS, channel: int = 1) -> str:
    return (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel} timed out. "
        f"Timeout value used: {timeout_ms} ms. {GUIDE}"
    )


def wait_closed(channel: Any, text: str) -> None:
    began_s = time.monotonic()
    with refused(406, text):
        while True:
            assert time.monotonic() - began_s < LATE_S
            time.sleep(0.02)
            barrier(channel)
