"""Sends requests to a node of a local cluster.

Invariant: if the node starts, hangs or dies, `get_document` returns `None` and `request_change` returns a reason.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from qq.cli.client.http_client import ClientLogin, ConnectError, send
from qq.cli.local_files import HOST, PASSWORD, USER

ANSWER_TIMEOUT_S = 1.0
CHANGE_TIMEOUT_S = 15.0
"""Seconds that a change may take: longer than a node waits for a majority."""
_LOGIN = ClientLogin(USER, PASSWORD)


def get_document(http_port: int, path: str) -> Any:
    """Return the document at `path`; `None` without an answer, or if the node does not know its users yet."""
    try:
        status, body = _request(http_port, "GET", path, ANSWER_TIMEOUT_S)
        return None if status == HTTPStatus.UNAUTHORIZED else json.loads(body)
    except (ConnectError, OSError, HTTPException, ValueError):
        return None


def request_change(http_port: int, method: str, path: str) -> str | None:
    """Request a change; return `None` if it was made, or the reason why not.

    A change without an answer may still be made later. Deleting a missing object counts as made.
    """
    try:
        status, body = _request(http_port, method, path, CHANGE_TIMEOUT_S)
    except (ConnectError, OSError, HTTPException) as error:
        return f"no answer over HTTP: {error}"
    is_done = status < HTTPStatus.BAD_REQUEST or (method == "DELETE" and status == HTTPStatus.NOT_FOUND)
    return None if is_done else f"{status} {body.decode(errors='replace')}"


def reason_not_ready(http_port: int) -> str | None:
    """Return why the node does not serve clients yet; `None` if it does."""
    answer = get_document(http_port, "/healthz")
    return "no answer over HTTP" if answer is None else answer.get("reason")


def _request(http_port: int, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    with send(method, f"http://{HOST}:{http_port}", path, _LOGIN, timeout_s) as response:
        return response.status, response.read()
