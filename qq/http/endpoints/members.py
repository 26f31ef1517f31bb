"""The members of the cluster, and changes of them by operators.

Invariant: a change names the data directory where there is a choice, so a client that is unsure whether the change was
made may repeat it. The answer is 200 if the change is made, 503 if it is not yet made, and 409 if it is refused.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import ID_BYTES, PeerAddress, host_problem
from qq.config import NAME, NAME_RULE, PORT_MAX
from qq.errors import ReplyCode
from qq.http.base.error_responses import Refusal, bad_request
from qq.http.base.login import ADMINISTRATORS, require
from qq.http.documents.parsing import field
from qq.http.documents.requests import read_body
from qq.management.errors import RequestRefused

if TYPE_CHECKING:
    from qq.management.management import Management
    from qq.management.reports.members import ClusterMembers

WAIT_MAX_S = 10.0
"""Seconds that a request may wait for its change."""
_MEMBERS = "/api/cluster/members"
_MEMBER = f"{_MEMBERS}/{{name}}"


class MemberEndpoints:
    """Handlers for members and upgrades."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(_MEMBERS, self.show),
            web.put(_MEMBER, self.add),
            web.delete(_MEMBER, self.remove),
            web.post(f"{_MEMBER}/promote", self.promote),
            web.post(f"{_MEMBER}/replace", self.replace),
            web.put(f"{_MEMBER}/drain", self.drain),
            web.delete(f"{_MEMBER}/drain", self.revive),
            web.post("/api/cluster/upgrade/finish", self.finish_upgrade),
        ]

    async def show(self, _: web.Request) -> web.Response:
        return self._answer()

    async def add(self, request: web.Request) -> web.Response:
        body = await _body(request, "host", "port")
        name, host, port = request.match_info["name"], field(body, "host", str), field(body, "port", int)
        if NAME.fullmatch(name) is None:
            raise bad_request(f"name: {name!r} {NAME_RULE}")
        problem = host_problem(host)
        if problem is not None:
            raise bad_request(f"host: {host!r} {problem}")
        if not 0 < port <= PORT_MAX:
            raise bad_request(f"port: must be 1 to {PORT_MAX}")
        known = next((each for each in self._report().members if each.name == name), None)
        if known is not None and (known.host, known.port) != (host, port):
            raise Refusal(
                HTTPStatus.CONFLICT,
                f"there is a member {name!r} at {PeerAddress(known.host, known.port)}; to move it to "
                f"{PeerAddress(host, port)}, start it there",
            )
        return await self._change(request, MemberChange(Verb.ADD, name, host=host, port=port))

    async def remove(self, request: web.Request) -> web.Response:
        member_id = _id_in(request.query.get("id"))
        return await self._change_member(request, Verb.REMOVE, member_id)

    async def replace(self, request: web.Request) -> web.Response:
        body = await _body(request, "id")
        member_id = _id_in(body["id"])
        if not member_id and self._report().cluster_id is not None:
            raise bad_request("id: a member that is awaited needs no replacement: start it")
        return await self._change_member(request, Verb.REPLACE, member_id)

    async def promote(self, request: web.Request) -> web.Response:
        return await self._change_member(request, Verb.PROMOTE)

    async def drain(self, request: web.Request) -> web.Response:
        return await self._change_member(request, Verb.DRAIN)

    async def revive(self, request: web.Request) -> web.Response:
        return await self._change_member(request, Verb.REVIVE)

    async def finish_upgrade(self, request: web.Request) -> web.Response:
        return await self._change(request, MemberChange(Verb.FINISH_UPGRADE))

    async def _change_member(self, request: web.Request, verb: Verb, member_id: bytes = b"") -> web.Response:
        return await self._change(request, MemberChange(verb, request.match_info["name"], member_id))

    async def _change(self, request: web.Request, change: MemberChange) -> web.Response:
        require(request, ADMINISTRATORS)
        try:
            await self._management.members.change(change, _wait_in(request.query.get("wait")))
        except RequestRefused as refused:
            if refused.code != ReplyCode.PRECONDITION_FAILED:
                raise
            raise Refusal(HTTPStatus.CONFLICT, refused.explanation) from None
        return self._answer()

    def _report(self) -> ClusterMembers:
        return self._management.members.report()

    def _answer(self) -> web.Response:
        report = self._report()
        members = [member._asdict() for member in report.members]
        removed = [removed._asdict() for removed in report.removed]
        return web.json_response(report._asdict() | {"members": members, "removed": removed})


async def _body(request: web.Request, *keys: str) -> dict[str, Any]:
    """Return a JSON object that has exactly these keys. Raises Refusal."""
    require(request, ADMINISTRATORS)
    body = await read_body(request)
    if body.keys() != set(keys):
        raise bad_request(f"the body must have {' and '.join(keys)}, and nothing else")
    return body


def _wait_in(text: str | None) -> float | None:
    """Return the seconds that a request waits for its change; None for the default. Raises Refusal."""
    if text is None:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise bad_request(f"wait: must be a number of seconds, {WAIT_MAX_S:g} at most")
    return wait_s


def _id_in(text: Any) -> bytes:
    """Return the id of a data directory; empty for a member that is awaited. Raises Refusal."""
    try:
        member_id = bytes.fromhex(text)
    except (TypeError, ValueError):
        member_id = None
    if member_id is None or len(member_id) not in (0, ID_BYTES):
        raise bad_request(
            f"id: must be that of the member's data directory, as {_MEMBERS} shows it; empty for one that is awaited"
        )
    return member_id
