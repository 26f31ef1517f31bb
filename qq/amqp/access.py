"""The methods of class access (AMQP 0-8), which pamqp lacks.

Invariant: the methods have no effect. Old clients request a ticket first, and continue when they have it.
"""

from __future__ import annotations

from typing import ClassVar

from pamqp import base

TICKET = 1
"""The ticket that every client gets, as from RabbitMQ. It is never checked."""


class AccessRequest(base.Frame):
    """The method access.request."""

    __slots__: ClassVar[list[str]] = [  # noqa: RUF023  # in the order of the wire
        "realm",
        "exclusive",
        "passive",
        "active",
        "write",
        "read",
    ]

    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = 0x001E000A
    name: ClassVar[str] = "Access.Request"
    synchronous: ClassVar[bool] = True
    valid_responses: ClassVar[list[str]] = ["Access.RequestOk"]

    _realm = "shortstr"
    _exclusive = _passive = _active = _write = _read = "bit"

    def __init__(self) -> None:
        self.realm = ""
        self.exclusive = self.passive = self.active = self.write = self.read = False


class AccessRequestOk(base.Frame):
    """The method access.request-ok."""

    __slots__: ClassVar[list[str]] = ["ticket"]

    frame_id: ClassVar[int] = 11
    index: ClassVar[int] = 0x001E000B
    name: ClassVar[str] = "Access.RequestOk"

    _ticket = "short"

    def __init__(self, ticket: int = TICKET) -> None:
        self.ticket = ticket
