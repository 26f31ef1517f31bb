"""Shovels: RabbitMQ's dynamic shovels, as far as both of their ends are queues of one virtual host of this cluster.

Lives here: which values of the parameter are valid, and the paths that show and restart shovels. Not here: the
parameters (parameters.py), how a shovel is carried out (sessions/shovels.py).

Law: what a shovel of RabbitMQ has that this one cannot do is refused with what can be done instead. It never works in
another way in silence. (rabbit_shovel_parameters.erl)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from aiohttp import web

from qq.http import bodies
from qq.http.errors import Refusal, bad_request
from qq.http.lists import Listing, write_listing
from qq.http.login import POLICYMAKERS, require
from qq.http.requests import check_permitted, done, existing, named_vhost, sees, vhost_if_named
from qq.machine.commands import BeginMove, DeleteParameter, PutParameter
from qq.machine.moves import SHOVEL
from qq.machine.policies import erlang_term

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.http.view import ManagementView, ShovelStatus

ACK_MODES = ("on-confirm", "on-publish", "no-ack")
PROTOCOLS = ("amqp091", "local")
_OLD_NAMES = {
    "delete-after": "src-delete-after",
    "prefetch-count": "src-prefetch-count",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
"""RabbitMQ's older names of some keys."""
_ONE = "/api/shovels/vhost/{vhost}/{name}"


class OtherBroker(Refusal):
    """A shovel that is valid in RabbitMQ, and that this cluster does not carry out."""

    def __init__(self, text: str) -> None:
        refused = bad_request(f"Validation failed\n\n{text}\n")
        super().__init__(refused.status, refused.reason, error=refused.error)


# --- what is understood


def check_shovel(vhost: str, _name: str, value: Any) -> None:
    """Check the value of a shovel. Raises Refusal; OtherBroker if only RabbitMQ could do it."""
    if not isinstance(value, dict):
        raise _invalid("the value of a shovel should be a map")
    known = {_OLD_NAMES.get(key, key): each for key, each in value.items()}
    unknown = [key for key in known if key not in _CHECKS]
    if unknown:
        raise _invalid(f"Unrecognised terms [{erlang_term(unknown[0])}] in shovel")
    for key, check in _CHECKS.items():
        if key in known:
            check(key, known[key])
    for end, exchange in (("src-queue", "src-exchange"), ("dest-queue", "dest-exchange")):
        if exchange in known:
            raise OtherBroker(
                f"{exchange} is not supported: bind a queue to the exchange, or name a queue as {end}"
            )
        if not known.get(end):
            raise _invalid(f'Key "{end}" not found in shovel')
    for end in ("src", "dest"):
        if known.get(f"{end}-protocol") != "local":
            _check_uris(vhost, f"{end}-uri", known.get(f"{end}-uri"))


def move_of(vhost: str, user: str, value: Any) -> BeginMove:
    """What a user needs to be permitted to set a shovel: to move messages as it does."""
    return BeginMove(vhost, "", user, value["src-queue"], value["dest-queue"], 0, 0, "", "", {}, "", False)


def _invalid(text: str) -> Refusal:
    return bad_request(f"Validation failed\n\n{text}\n")


def _check_uris(vhost: str, key: str, value: Any) -> None:
    uris = value if isinstance(value, list) else [value]
    if not uris or not all(isinstance(uri, str) and uri for uri in uris):
        raise _invalid(f"{key} should be a URI, or a list of URIs")
    for uri in uris:
        _check_uri(vhost, key, uri)


def _check_uri(vhost: str, key: str, uri: str) -> None:
    """Check that a URI is that of the virtual host. It is not repeated in any text: it may have a password."""
    try:
        parts = urlsplit(uri)
        host = parts.hostname
    except ValueError:
        raise _invalid(f"{key} is not a valid URI") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise _invalid(f"{key} should begin with amqp:// or amqps://")
    if host or parts.username or parts.scheme == "amqps":
        raise OtherBroker(
            f"{key} names a broker or a user, and only queues of this cluster are supported: "
            "amqp:// or amqp:///VHOST. A shovel of RabbitMQ can take messages from here and bring them here"
        )
    named = unquote(parts.path.removeprefix("/")) or "/"
    if named != vhost:
        raise OtherBroker(
            f"{key} leads to vhost '{named}', and the shovel is in vhost '{vhost}': they have to be one"
        )


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _invalid(f"{key} should be a string, actually was {erlang_term(value)}")
    bodies.name_of(value, key)


def _number(key: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise _invalid(f"{key} should be a number of 0 or more, actually was {erlang_term(value)}")


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _invalid(f"{key} should be a boolean, actually was {erlang_term(value)}")


def _delete_after(key: str, value: Any) -> None:
    if value in ("never", "queue-length"):
        return
    if type(value) is not int or not 0 < value < bodies.INTEGERS.stop:
        raise _invalid(f'{key} should be a number greater than 0, "never" or "queue-length"')


def _one_of(*values: str) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if value not in values:
            raise _invalid(f"{key} should be one of {', '.join(values)}, actually was {erlang_term(value)}")

    return check


def _protocol(key: str, value: Any) -> None:
    if value == "amqp10":
        raise OtherBroker(f"{key} amqp10 is not supported: {' or '.join(PROTOCOLS)}")
    _one_of(*PROTOCOLS)(key, value)


def _nothing(key: str, value: Any) -> None:
    """Check that something is not asked for that would have messages changed, or a queue declared."""
    if value not in (False, {}, []):
        raise OtherBroker(
            f"{key} is not supported: messages are moved as they are, between queues that are there"
        )


def _anything(_key: str, _value: Any) -> None:
    """Accept what has to do with the way over a network only, or is checked elsewhere."""


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "src-protocol": _protocol,
    "dest-protocol": _protocol,
    "src-uri": _anything,
    "dest-uri": _anything,
    "src-queue": _text,
    "dest-queue": _text,
    "src-exchange": _text,
    "src-exchange-key": _text,
    "dest-exchange": _text,
    "dest-exchange-key": _text,
    "src-prefetch-count": _number,
    "src-delete-after": _delete_after,
    "src-consumer-args": _nothing,
    "src-queue-args": _nothing,
    "dest-queue-args": _nothing,
    "src-predeclared": _flag,
    "dest-predeclared": _flag,
    "dest-add-forward-headers": _nothing,
    "dest-add-timestamp-header": _nothing,
    "dest-publish-properties": _nothing,
    "ack-mode": _one_of(*ACK_MODES),
    "reconnect-delay": _number,
}


# --- what is shown


def shovel_document(shovel: ShovelStatus) -> dict[str, Any]:
    value = shovel.value
    return {
        "name": shovel.name,
        "vhost": shovel.vhost,
        "type": "dynamic",
        "node": shovel.node,
        "state": "starting" if shovel.move is None else "running",
        "reason": shovel.reason,
        "src_uri": value.get("src-uri", "amqp://"),
        "src_protocol": value.get("src-protocol", "amqp091"),
        "src_queue": value.get("src-queue"),
        "dest_uri": value.get("dest-uri", "amqp://"),
        "dest_protocol": value.get("dest-protocol", "amqp091"),
        "dest_queue": value.get("dest-queue"),
        "move": None if shovel.move is None else shovel.move.id,
        "forwarded": 0 if shovel.move is None else shovel.move.moved,
    }


class ShovelEndpoints:
    """The handlers for shovels; they are made and changed as parameters."""

    def __init__(self, management: ManagementView) -> None:
        self._management = management

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/shovels", self.shovels),
            web.get("/api/shovels/{vhost}", self.shovels),
            web.get(_ONE, self.shovel),
            web.delete(_ONE, self.delete),
            web.delete(f"{_ONE}/restart", self.restart),
        ]

    async def shovels(self, request: web.Request) -> web.StreamResponse:
        vhost, is_seen = await vhost_if_named(request, self._management), sees(request, self._management)
        seen = (shovel_document(each) for each in self._management.shovels(vhost) if is_seen(each.vhost))
        return await write_listing(request, Listing(seen))

    async def shovel(self, request: web.Request) -> web.Response:
        return web.json_response(shovel_document(await self._existing(request)))

    async def delete(self, request: web.Request) -> web.Response:
        require(request, POLICYMAKERS)
        shovel = await self._existing(request)
        await self._management.change(DeleteParameter(shovel.vhost, SHOVEL, shovel.name))
        return done()

    async def restart(self, request: web.Request) -> web.Response:
        """Have the move stopped and begun again: to set the same value is to set it anew."""
        require(request, POLICYMAKERS)
        shovel = await self._existing(request)
        await self._management.change(PutParameter(shovel.vhost, SHOVEL, shovel.name, shovel.text))
        return done()

    async def _existing(self, request: web.Request) -> ShovelStatus:
        vhost, name = await named_vhost(request, self._management), request.match_info["name"]
        found = self._management.shovels

        def look() -> ShovelStatus | None:
            return next((each for each in found(vhost) if each.name == name), None)

        return await existing(self._management, look)


async def check_may_set(
    request: web.Request, management: ManagementView, vhost: str, user: str, value: Any
) -> None:
    """Raise RequestRefused unless the user may read the source and write to the destination."""
    await check_permitted(request, management, vhost, move_of(vhost, user, value))
