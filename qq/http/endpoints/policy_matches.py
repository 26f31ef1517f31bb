"""Preview of the queues and exchanges that a planned policy would match.

Invariant: the search runs in slices, and its cost is bounded.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from qq.http.base.error_responses import bad_request
from qq.http.documents.lists import PATTERN_CHARS_MAX, NameSearch
from qq.http.documents.requests import named_vhost
from qq.machine.policy.patterns import InvalidPattern, Pattern
from qq.machine.policy.policies import APPLIES_TO
from qq.management.time_slices import Slices
from qq.routing.exchanges import DEFAULT_EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.management.management import Management

SHOWN_MAX = 100
"""Matches shown at most; further matches are only counted."""
_EXCHANGE = "exchange"


class PolicyMatchEndpoint:
    """Handler for the preview."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/policy-matches/{vhost}", self.matches)]

    async def matches(self, request: web.Request) -> web.Response:
        vhost = await named_vhost(request, self._management)
        pattern, kinds = _pattern(request), _kinds(request)
        counts: Counter[str] = Counter()
        shown: list[dict[str, Any]] = []
        slices = Slices()
        search = NameSearch(
            pattern, bad_request("the search for the pattern takes too long: make it simpler")
        )
        for kind, name, policy in self._things(vhost):
            await slices.give_way()
            if kind not in kinds:
                continue
            if search.finds_in(name):
                what = _EXCHANGE if kind == _EXCHANGE else "queue"
                counts[what] += 1
                if len(shown) < SHOWN_MAX:
                    shown.append({"kind": what, "name": name, "policy": policy})
        return web.json_response(
            {"queue_count": counts["queue"], "exchange_count": counts[_EXCHANGE], "items": shown}
        )

    def _things(self, vhost: str) -> Iterator[tuple[str, str, str | None]]:
        """Yield kind, name and policy of each object that policies apply to."""
        rows = self._management.queues.rows(vhost)
        kind, name, policy = (rows.fields[each] for each in ("type", "name", "policy"))
        for queue in rows.things:
            yield kind(queue), name(queue), policy(queue)
        for exchange in self._management.catalog.exchanges(vhost):
            if exchange.name != DEFAULT_EXCHANGE:
                yield _EXCHANGE, exchange.name, exchange.policy


def _pattern(request: web.Request) -> Pattern:
    text = request.query.get("pattern", "")
    if len(text) > PATTERN_CHARS_MAX:
        raise bad_request(f"pattern: {PATTERN_CHARS_MAX} characters at most")
    try:
        return Pattern(text)
    except InvalidPattern as error:
        raise bad_request(f"pattern: {error}") from None


def _kinds(request: web.Request) -> tuple[str, ...]:
    apply_to = request.query.get("apply-to", "all")
    if apply_to not in APPLIES_TO:
        raise bad_request(f"apply-to must be one of {', '.join(APPLIES_TO)}")
    return APPLIES_TO[apply_to]
