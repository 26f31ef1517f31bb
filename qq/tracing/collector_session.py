"""Requests to the collector: what becomes of its answers.

Lives here: how much of an answer is read, for how long, and why a request has failed. Not here: what is sent, and how
often it is tried (exporting.py, and OpenTelemetry's exporter, which asks through this session).

Law: whatever answers at the collector's address, an answer takes bounded memory and time, and one that is no yes is a
failure.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from requests import RequestException, Session

if TYPE_CHECKING:
    from requests import Response

ANSWER_BYTES_MAX = 64 * 1024
"""A collector says which spans it has refused, if it says anything."""


class CollectorSession(Session):
    """Remembers why the last request has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        """Why the last request has failed; empty if it has not."""

    def request(self, method: str, url: str | bytes, *more: Any, **options: Any) -> Response:
        """Send a request and read its answer. Raises RequestException if there is none, or none of a collector."""
        ends_s = monotonic() + options["timeout"]
        options |= {"stream": True, "allow_redirects": False}
        try:
            response = super().request(method, url, *more, **options)
            flaw = _read(response, ends_s)
        except Exception as error:
            self.why = type(error).__name__
            raise
        self.why = flaw or ("" if response.ok else f"status {response.status_code}")
        if flaw:
            raise RequestException(flaw)
        return response


def _read(response: Response, ends_s: float) -> str:
    """Read an answer, of which nobody needs more than its head; why it is none of a collector, if so."""
    flaw = "what is there is elsewhere" if response.is_redirect else ""
    try:
        count = 0
        # Each part is taken as it comes, and waited for no longer than the request may take.
        while not flaw and (part := response.raw.read1(ANSWER_BYTES_MAX, decode_content=False)):
            count += len(part)
            if count > ANSWER_BYTES_MAX or monotonic() > ends_s:
                flaw = "its answer does not end"
    except BaseException:
        response.close()
        raise
    if flaw:
        response.close()
    return flaw
