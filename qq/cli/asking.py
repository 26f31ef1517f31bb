"""Asking a node of a local cluster over HTTP, with what Python itself brings.

Law: whatever a node that starts, hangs or dies makes of a question, the answer is a document or None.
"""

from __future__ import annotations

import base64
import http.client
import json
from http import HTTPStatus
from typing import Any

from qq.cli.layout import HOST, PASSWORD, USER

ANSWER_TIMEOUT_S = 1.0
_CREDENTIALS = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def ask(http_port: int, path: str) -> Any:
    """Return the document at `path`; None if there is no answer, or the node does not know its users yet."""
    connection = http.client.HTTPConnection(HOST, http_port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Authorization": _CREDENTIALS})
        response = connection.getresponse()
        if response.status == HTTPStatus.UNAUTHORIZED:
            return None
        return json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def why_not_ready(http_port: int) -> str | None:
    """Why the node does not serve yet; None: it does."""
    answer = ask(http_port, "/healthz")
    return "no answer over HTTP" if answer is None else answer.get("reason")
