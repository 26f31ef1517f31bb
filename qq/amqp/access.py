"""The methods of class access (AMQP 0-8), which pamqp lacks.

Invariant: they mean nothing. Old clients ask for a ticket before everything else, and go on when they have one.
"""

from __future__ import annotations

from typing import ClassVar

from pamqp import base

TICKET = 1
"""The ticket that everybody gets, as from RabbitMQ. Nobody looks at it."""


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
