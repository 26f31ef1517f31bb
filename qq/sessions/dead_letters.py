"""The leader's work of moving dead-lettered messages to their targets.

The machine knows which messages died, and their queues. Their exchange, routing key and headers are in the log, which
the machine cannot read. So the leader reads the log, and submits `DeadLetter` commands with these properties. Applying
a command moves its messages in a single step. A repeated command has no effect, so no message is lost or doubled
whichever node submits it, and however often.

Invariant: a single step is under way at a time. A step is bounded, however many messages die at once, in however many
queues. The properties in a command passed the reader's checks (qq/stored/fields.py) when the messages were published,
so the log can hold them. If a step has no effect nevertheless, it is repeated only after a delay.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from qq.machine.protocol.codec import check_command
from qq.machine.protocol.commands import DeadLetter
from qq.sessions.entries import MessagesGone
from qq.sessions.lanes import Lane
from qq.sessions.stuck_dead_letters import StuckDeadLetters
from qq.stored.content import content_of
from qq.stored.layout import FLAGS_AT, frame_stop
from qq.stored.properties import NO_PRIORITY, kept_when_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.runtime.ports import Runtime
    from qq.machine.machine import PendingDeadLetters, QueueMachine
    from qq.machine.protocol.commands import Table
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from qq.sessions.entries import Entries, Messages
    from qq.sessions.submissions import Submissions

log = logging.getLogger(__name__)

RANGES_MAX = 500
"""Ranges of each queue in a step."""
MESSAGES_MAX = 20_000
"""Messages of all queues in a step: some 20 ms of the leader's event loop if each message is parsed."""
CONTENT_MESSAGES_MAX = 1000
"""Messages of a queue in a step, if each message is routed by its own content."""
BYTES_MAX = 1024 * 1024
"""Octets of a queue's commands at which a step adds no more of them."""
STEPS_MAX = 10_000
"""Cost of a step's commands, in steps of machine/handlers/cost_estimate.py, at which no more commands are made."""
RETRY_S = 1.0
"""Seconds before a step without effect is repeated."""
STUCK_S = 0.1
"""Seconds between two looks at the dead letters that no queue took. The next look comes at once if some of them
went."""


_PLACE = 1 + DeadLetter._fields.index("count")
"""How many leading fields of a command identify its messages. A command with given values changes the state only once,
because afterwards other messages are first in the queue."""


class DeadLetters:
    """Moves dead-lettered messages to their targets while this node is the leader."""

    def __init__(
        self, machine: QueueMachine, submissions: Submissions, entries: Entries, runtime: Runtime
    ) -> None:
        self._machine = machine
        self._submissions = submissions
        self._entries = entries
        self._runtime = runtime
        self._lane = Lane()
        self._leads = False
        self._first = 0
        """Ordinal number of the queue that comes first in the next step."""
        self._outstanding = 0
        """Pending reads and submissions of the current step."""
        self._last_places: set[tuple[object, ...]] = set()
        """The messages of the last step: the first fields (_PLACE) of its commands."""
        self._stuck = StuckDeadLetters(machine)
        self._is_timer_set = False
        self._retries_stuck = False
        """Whether the next step has stuck dead letters, too."""
        self._tried: list[tuple[Queue, str, int]] = []
        """The stuck messages of the current step: queue, target, and number of the first of each command."""

    def set_leading(self, leads: bool) -> None:
        """Start moving dead-lettered messages if this node is the leader now; otherwise stop."""
        self._leads = leads
        self._last_places = set()
        self._stuck.forget()
        self.submit_step()

    def submit_step(self) -> None:
        """Submit the next step for all queues, unless a step is under way."""
        if self._outstanding or not self._leads:
            return
        self._set_timer()
        stuck = self._stuck_commands() if self._retries_stuck else []
        step, left, steps, start = list[DeadLetter](), MESSAGES_MAX, 0, self._first
        for pending in self._machine.pending_dead_letters(RANGES_MAX, self._first):
            for command in self._commands(pending, left):
                step.append(command)
                left -= command.count
                steps += self._submissions.cost_of(command)
                if steps >= STEPS_MAX:
                    break
            if self._outstanding:
                break  # the next messages must be read first
            self._first += 1
            if left <= 0:
                break
            if steps >= STEPS_MAX:
                self._first = start + 1  # the queues behind it have not had their turn
                break
        places: set[tuple[object, ...]] = {command[:_PLACE] for command in step}
        last, self._last_places = self._last_places, places
        step += stuck
        if not step:
            return
        self._outstanding += 1
        if last and last <= places:
            log.error(
                "%d commands for dead letters have changed nothing, the first is %s",
                len(step),
                step[0][:_PLACE],
            )
            self._last_places = set()
            self._runtime.call_later(RETRY_S, self._end_wait)
            return
        for command in step:
            self._submissions.add(command, self._lane)
        self._submissions.read_barrier(self._end_wait, self._lane)

    def _end_wait(self) -> None:
        self._outstanding -= 1
        if not self._outstanding and self._tried:
            tried, self._tried = self._tried, []
            # Those that did not move might fail again, and again at once.
            self._retries_stuck |= any(
                target not in queue.stuck or number not in queue.stuck[target]
                for queue, target, number in tried
            )
        self.submit_step()

    def _set_timer(self) -> None:
        if self._machine.queues_with_stuck and not self._is_timer_set:
            self._is_timer_set = True
            self._runtime.call_later(STUCK_S, self._retry_stuck)

    def _retry_stuck(self) -> None:
        self._is_timer_set, self._retries_stuck = False, True
        self.submit_step()

    def _stuck_commands(self) -> list[DeadLetter]:
        """Return commands for stuck dead letters that their targets may take now."""
        self._retries_stuck = False
        commands: list[DeadLetter] = []
        steps = 0
        for queue, target, pending, count_max, is_certain in self._stuck.candidates():
            for command in self._commands(pending, count_max):
                if not is_certain:
                    self._stuck.examined(queue, command)
                steps += self._submissions.cost_of(command)
                if is_certain or not self._machine.is_still_stuck(command, target):
                    commands.append(command)
                    self._tried.append((queue, target, command.first))
                if steps >= STEPS_MAX:
                    return commands
            if self._outstanding:  # the next messages must be read first
                self._retries_stuck = True
                return commands
        return commands

    def _commands(self, pending: PendingDeadLetters, messages_max: int) -> Iterator[DeadLetter]:
        if pending.needs_content:
            messages_max = min(messages_max, CONTENT_MESSAGES_MAX)
        place = pending.vhost, pending.queue, pending.number
        left, size = messages_max, 0
        ranges = [part for _, part in pending.parts]
        for position, (first, part) in enumerate(pending.parts):
            if not left:
                return
            messages = part.part(0, min(part.count, left))
            left -= messages.count
            stored = self._stored(messages, ranges, position)
            if stored is None:
                return
            unknown = DeadLetter(*place, 0, 0, "", "", [], [], "", NO_PRIORITY, True, {}, {})
            alike = _group_equal(stored, place, needs_content=pending.needs_content)
            for published, count in alike if stored else [(unknown, messages.count)]:
                command = published._replace(first=first, count=count)
                yield command
                first += count
                size += check_command(command, self._machine.version)
                if size >= BYTES_MAX:
                    return

    def _stored(self, messages: Range, ranges: list[Range], position: int) -> list[Messages] | None:
        """Return the stored `messages`, part of the range at `position`; None while their entry is being read."""
        try:
            stored = self._entries.messages(messages, frames_max=0)
        except MessagesGone:
            # The state still refers to these messages, so this is a bug of qq. The messages behind them continue.
            log.exception("dead messages of entry %d cannot be read", messages.index)
            return []
        if stored is None:
            self._outstanding += 1
            ahead = dict.fromkeys(part.index for part in ranges[position:])
            self._entries.load(list(ahead), self._end_wait)
        return stored


def _group_equal(
    stored: list[Messages], place: tuple[str, str, int], *, needs_content: bool
) -> Iterator[tuple[DeadLetter, int]]:
    """Yield a command with the properties of consecutive messages, and the number of messages that share them.

    `place` names the queue. `first` and `count` of the command are still to be set.
    """
    last: DeadLetter | None = None
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
                # Python treats 1 and True as equal, exchanges do not.
                header = message[FLAGS_AT : frame_stop(message, 0)]
            route = messages.exchange, messages.routing_key, cc, bcc
            published = DeadLetter(
                *place, 0, 0, *route, expiration, priority, needs_content, headers, properties
            )
            if published == last and header == last_header:
                count += 1
                continue
            if last is not None:
                yield last, count
            last, last_header, count = published, header, 1
    if last is not None:
        yield last, count
