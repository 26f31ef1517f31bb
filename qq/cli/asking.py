"""Speaking to a node of a local cluster over HTTP, with what Python itself brings.

Invariant: whatever a node that starts, hangs or dies makes of a question, the answer is a document or None.
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
"""How long a change may take: longer than a node waits for a majority."""
_CREDENTIALS = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def ask(http_port: int, path: str) -> Any:
    """Return the document at `path`; None if there is no answer, or the node does not know its users yet."""
    try:
        status, body = _request(http_port, "GET", path, ANSWER_TIMEOUT_S)
        return None if status == HTTPStatus.UNAUTHORIZED else json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None


def change(http_port: int, method: str, path: str) -> str | None:
    """Have the cluster change something; say why it was not done, if so. It may be done later all the same.

    What is not there need not be deleted.
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
    """Say why the node does not serve yet; None if it does."""
    answer = ask(http_port, "/healthz")
    return "no answer over HTTP" if answer is None else answer.get("reason")
