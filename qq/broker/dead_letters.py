"""Dead letters on their way: what the leader does for messages that have died.

The machine knows that messages died and where; what they were published with is in the log, which it cannot read. So
the leader reads it, and submits `DeadLetter` commands that name it. Their apply moves the messages in one step, so
nothing is lost or doubled whoever submits what how often.

Lives here: finding out what dying messages were published with. Not here: why they die, where they go (qq/machine).

Law: one step is under way at a time; a step is bounded, however many messages die at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp.content import content_of
from qq.amqp.properties import kept_when_dead
from qq.amqp.stored import FLAGS_AT, frame_stop
from qq.broker.entries import MessagesGone
from qq.machine.commands import NO_PRIORITY, DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.broker.entries import Entries, Messages
    from qq.broker.submissions import Submissions
    from qq.machine.commands import Table
    from qq.machine.machine import DyingMessages, QueueMachine
    from qq.ranges import Range

log = logging.getLogger(__name__)

RANGES_MAX = 500
"""Of each queue, in one step."""
MESSAGES_MAX = 20_000
"""Of a range, in one step."""


class _Published(NamedTuple):
    """What consecutive messages were published with."""

    exchange: str
    routing_key: str
    cc: list[str]
    bcc: list[str]
    expiration: str
    priority: int
    has_content: bool
    """The next two are told."""
    headers: Table
    properties: Table


_UNKNOWN = _Published("", "", [], [], "", NO_PRIORITY, True, {}, {})


class DeadLetters:
    """Sees to it, on the leader, that what has died is moved on."""

    def __init__(self, machine: QueueMachine, submissions: Submissions, entries: Entries) -> None:
        self._machine = machine
        self._submissions = submissions
        self._entries = entries
        self._leads = False
        self._awaited = 0
        """The reads and the submission of the step that is under way."""

    def lead(self, leads: bool) -> None:
        """Begin, or leave it to another node."""
        self._leads = leads
        self.turn()

    def turn(self) -> None:
        """Submit the next step for every queue, unless one is under way."""
        if self._awaited or not self._leads:
            return
        submitted = False
        for dying in self._machine.dying(RANGES_MAX):
            for command in self._commands(dying):
                self._submissions.add(command)
                submitted = True
            if self._awaited:
                break  # what comes next must be read first
        if submitted:
            self._awaited += 1
            self._submissions.when_applied(self._go_on)

    def _go_on(self) -> None:
        self._awaited -= 1
        self.turn()

    def _commands(self, dying: DyingMessages) -> Iterator[DeadLetter]:
        first = dying.first
        for position, part in enumerate(dying.ranges):
            messages = part.part(0, min(part.count, MESSAGES_MAX))
            stored = self._stored(messages, dying.ranges, position)
            if stored is None:
                return
            known = _alike(stored, needs_content=dying.needs_content)
            for published, count in known if stored else [(_UNKNOWN, messages.count)]:
                yield DeadLetter(dying.vhost, dying.queue, dying.number, first, count, *published)
                first += count
            if messages.count < part.count:
                return

    def _stored(self, messages: Range, ranges: list[Range], position: int) -> list[Messages] | None:
        """The messages, of the range at `position`; None while their entry is read."""
        try:
            stored = self._entries.messages(messages)
        except MessagesGone:
            # Nothing that is referred to goes, so this is a fault of ours; those behind it need not suffer.
            log.exception("dying messages of entry %d cannot be read", messages.index)
            return []
        if stored is None:
            self._awaited += 1
            ahead = dict.fromkeys(part.index for part in ranges[position:])
            self._entries.load(list(ahead), self._go_on)
        return stored


def _alike(stored: list[Messages], *, needs_content: bool) -> Iterator[tuple[_Published, int]]:
    """What the messages were published with, and how many in a row were published with the same."""
    last: _Published | None = None
    last_header = header = b""
    count = 0
    for messages in stored:
        for message in messages.messages:
            cc, expiration, priority = kept_when_dead(message)
            bcc = [key for key in messages.more_keys if key not in cc]
            headers: Table = {}
            properties: Table = {}
            if needs_content:
                content = content_of(message, 0)
                headers, properties = dict(content.headers), dict(content.properties)
                # Python takes 1 and true for the same, exchanges do not.
                header = message[FLAGS_AT : frame_stop(message, 0)]
            place = messages.exchange, messages.routing_key
            published = _Published(*place, cc, bcc, expiration, priority, needs_content, headers, properties)
            if published == last and header == last_header:
                count += 1
                continue
            if last is not None:
                yield last, count
            last, last_header, count = published, header, 1
    if last is not None:
        yield last, count
