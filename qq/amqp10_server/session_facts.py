"""The figures of a session and its links, for operators."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from qq.amqp10.addresses import source_queue
from qq.amqp10.conditions import InvalidFieldValue
from qq.amqp10.receiving_link import ReceivingLink
from qq.amqp10.sending_link import SendingLink
from qq.sessions.session_info import ClosedWindows, IncomingLink, LinkSessionFacts, OutgoingLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.amqp10.link import Link10
    from qq.amqp10.session import Session10


NAME_CHARS_MAX = 255
"""Characters of a link's name that operators see. A name may fill a frame."""
NO_CLOSED_WINDOWS = ClosedWindows()


def shown_link_name(link: Link10) -> str:
    """Return the name of a link, cut off if it is long."""
    return link.name if len(link.name) <= NAME_CHARS_MAX else link.name[:NAME_CHARS_MAX] + "..."


def session_facts(session: Session10, address: Callable[[Link10], str]) -> LinkSessionFacts:
    """Return the figures of a session. `address` returns the address of a link, or an empty text without one."""
    windows, links = session.windows, sorted(session.links, key=attrgetter("handle"))
    return LinkSessionFacts(
        session.channel,
        session.handle_max,
        windows.next_incoming_id,
        windows.incoming_window,
        windows.next_outgoing_id,
        windows.client_room,
        windows.client_outgoing_window,
        session.deliveries.unsettled_count,
        [_incoming(link, address(link)) for link in links if isinstance(link, ReceivingLink)],
        [_outgoing(link, address(link)) for link in links if isinstance(link, SendingLink)],
    )


def closed_windows(sessions: Sequence[Session10], has_waiting: Callable[[Link10], bool]) -> ClosedWindows:
    """Return the sessions with deliveries that wait for the client's window, in the session or at a link."""
    closed = [
        session.windows.next_outgoing_id
        for session in sessions
        if not session.windows.client_room
        and (session.deliveries.is_waiting or any(map(has_waiting, session.links)))
    ]
    return ClosedWindows(len(closed), sum(closed)) if closed else NO_CLOSED_WINDOWS


def _incoming(link: ReceivingLink, address: str) -> IncomingLink:
    return IncomingLink(
        link.handle,
        shown_link_name(link),
        address or None,
        link.attach.snd_settle_mode.name.lower(),
        link.message_bytes_max,
        link.delivery_count,
        link.credit,
        link.unsettled_count,
    )


def _outgoing(link: SendingLink, address: str) -> OutgoingLink:
    return OutgoingLink(
        link.handle,
        shown_link_name(link),
        address,
        _queue(address),
        link.outgoing.is_settled,
        link.attach.max_message_size or "unlimited",
        link.delivery_count,
        link.credit,
        link.unsettled_count,
    )


def _queue(address: str) -> str:
    """Return the queue of an address, or an empty text for the management node."""
    try:
        return source_queue(address)
    except InvalidFieldValue:
        return ""
