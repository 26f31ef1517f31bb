"""Sends HTTP requests to a node of a local cluster, with the standard library only.

Invariant: if the node starts, hangs or dies, `ask` returns `None` and `change` returns a reason.
"""

from __future__ import annotations

import base64
import http.client
import json
from http import HTTPStatus
from typing import Any

from qq.cli.layout import HOST, PASSWORD, USER

ANSWER_TIMEOUT_S = 1.0
CHANGE_TIMEOUT_S = 15.0
"""Seconds that a change may take: longer than a node waits for a majority."""
_CREDENTIALS = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def ask(http_port: int, path: str) -> Any:
    """Return the document at `path`; `None` without an answer, or if the node does not know its users yet."""
    try:
        status, body = _request(http_port, "GET", path, ANSWER_TIMEOUT_S)
        return None if status == HTTPStatus.UNAUTHORIZED else json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None


def change(http_port: int, method: str, path: str) -> str | None:
    """Request a change; return `None` if it was made, or the reason why not.

    A change without an answer may still be made later. Deleting a missing object counts as made.
    """
    try:
        status, body = _request(http_port, method, path, CHANGE_TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer over HTTP: {error}"
    is_done = status < HTTPStatus.BAD_REQUEST or (method == "DELETE" and status == HTTPStatus.NOT_FOUND)
    return None if is_done else f"{status} {body.decode(errors='replace')}"


def _request(http_port: int, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, http_port, timeout=timeout_s)
    try:
        connection.request(method, path, headers={"Authorization": _CREDENTIALS})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def why_not_ready(http_port: int) -> str | None:
    """Return why the node does not serve clients yet; `None` if it does."""
    answer = ask(http_port, "/healthz")
    return "no answer over HTTP" if answer is None else answer.get("reason")
