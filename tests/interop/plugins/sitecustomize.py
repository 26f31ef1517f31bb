"""Redirect clients whose tests know only the standard port to the broker under test.

Python loads this at its start, also in the processes that a test suite starts: QQ_INTEROP_PORT replaces 5672.
"""

from __future__ import annotations

import os
import socket
from typing import Any

AMQP_PORT = 5672


def _moved(address: Any, port: int) -> Any:
    if isinstance(address, tuple) and len(address) > 1 and address[1] == AMQP_PORT:
        return (address[0], port, *address[2:])
    return address


def _redirect(port: int) -> None:
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
    socket.socket.connect = lambda self, address: connect(self, _moved(address, port))
    socket.socket.connect_ex = lambda self, address: connect_ex(self, _moved(address, port))


if "QQ_INTEROP_PORT" in os.environ:
    _redirect(int(os.environ["QQ_INTEROP_PORT"]))
