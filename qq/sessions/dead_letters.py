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
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.protocol.codec import check_command
from qq.machine.protocol.commands import DeadLetter
from qq.machine.queue.stuck_lines import Target
from qq.sessions.entries import MessagesGone
from qq.sessions.lanes import Lane
from qq.sessions.stuck_dead_letters import StuckDeadLetters
from qq.stored.content import annotation_headers, content_of, with_headers
from qq.stored.kept import kept_when_dead
from qq.stored.kinds import head_of
from qq.stored.properties import NO_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class _Tried(NamedTuple):
    """Stuck messages that are tried again."""

    queue: Queue
    target: str
    command: DeadLetter


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
        self._is_reading_stuck = False
        """Whether an entry with stuck dead letters is being read. Steps of other dead letters go on meanwhile."""
        self._ready: list[_Tried] = []
        """The stuck messages of the next step."""
        self._tried: list[_Tried] = []
        """The stuck messages of the current step."""

    def set_leading(self, leads: bool) -> None:
        """Start moving dead-lettered messages if this node is the leader now; otherwise stop."""
        self._leads = leads
        self._last_places = set()
        self._ready = []
        self._stuck.forget()
        self.submit_step()

    def submit_step(self) -> None:
        """Submit the next step for all queues, unless a step is under way."""
        if self._outstanding or not self._leads:
            return
        self._set_timer()
        if self._retries_stuck and not self._is_reading_stuck and not self._ready:
            self._ready = self._try_stuck()
        step, left, steps, start = list[DeadLetter](), MESSAGES_MAX, 0, self._first
        for pending in self._machine.pending_dead_letters(RANGES_MAX, self._first):
            place = len(step)
            for command in self._commands(pending, left, self._load):
                step.append(command)
                left -= command.count
                steps += self._submissions.cost_of(command)
                if steps >= STEPS_MAX:
                    break
            if self._outstanding:  # the next messages must be read first
                self._first += len(step) > place
                break
            self._first += 1
            if left <= 0:
                break
            if steps >= STEPS_MAX:
                self._first = start + 1  # the queues behind it have not had their turn
                break
        places: set[tuple[object, ...]] = {command[:_PLACE] for command in step}
        last, self._last_places = self._last_places, places
        if not step and not self._ready:
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
        self._tried, self._ready = self._ready, []
        for command in (*step, *(tried.command for tried in self._tried)):
            self._submissions.add(command, self._lane)
        self._submissions.read_barrier(self._end_wait, self._lane)

    def _end_wait(self) -> None:
        self._outstanding -= 1
        if not self._outstanding and self._tried:
            moved: dict[Target, bool] = {}
            for queue, name, command in self._tried:
                target = Target(queue.vhost, name)
                is_there = name in queue.stuck and command.first in queue.stuck[name]
                moved[target] = moved.get(target, False) or not is_there
            for target, has_moved in moved.items():
                self._stuck.tried(target, moved=has_moved)
            # Those that did not move might fail again, and again at once.
            self._retries_stuck |= any(moved.values())
            self._tried = []
        self.submit_step()

    def _set_timer(self) -> None:
        if self._machine.stuck_lines.queues and not self._is_timer_set:
            self._is_timer_set = True
            self._runtime.call_later(STUCK_S, self._retry_stuck)

    def _retry_stuck(self) -> None:
        self._is_timer_set, self._retries_stuck = False, True
        self._stuck.round += 1
        self.submit_step()

    def _try_stuck(self) -> list[_Tried]:
        """Return commands for stuck dead letters that their targets may take now."""
        self._retries_stuck = False
        commands: list[_Tried] = []
        steps = 0
        for candidates in self._stuck.candidates():
            queue, target, pending, count_max, is_certain = candidates
            unread: list[int] = []
            for command in self._commands(pending, count_max, unread.extend):
                if not is_certain:
                    self._stuck.examined(queue, command)
                steps += self._submissions.cost_of(command)
                if is_certain or not self._machine.is_still_stuck(command, target):
                    commands.append(_Tried(queue, target, command))
                if steps >= STEPS_MAX:
                    return commands
            if not unread:
                continue
            self._stuck.wait_for(candidates)
            if commands:  # else the read would be in vain if they took the place of its entry in memory
                self._retries_stuck = True
            else:
                self._is_reading_stuck = True
                self._entries.load(unread, self._end_read_of_stuck)
            return commands
        return commands

    def _end_read_of_stuck(self) -> None:
        self._is_reading_stuck = False
        if self._leads:
            # At once, because the next reads may push the entry out of memory.
            self._ready += self._try_stuck()
        self.submit_step()

    def _load(self, indexes: list[int]) -> None:
        self._outstanding += 1
        self._entries.load(indexes, self._end_wait)

    def _commands(
        self, pending: PendingDeadLetters, messages_max: int, load: Callable[[list[int]], None]
    ) -> Iterator[DeadLetter]:
        """Yield commands for the first messages until an entry must be read first: then call `load`."""
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
            stored = self._stored(messages)
            if stored is None:
                load(list(dict.fromkeys(part.index for part in ranges[position:])))
                return
            unknown = DeadLetter(*place, 0, 0, "", "", [], [], "", NO_PRIORITY, True, {}, {})
            added = self._added_headers(pending, messages.history) if pending.needs_content else {}
            alike = _group_equal(stored, place, added, needs_content=pending.needs_content)
            for published, count in alike if stored else [(unknown, messages.count)]:
                command = published._replace(first=first, count=count)
                yield command
                first += count
                size += check_command(command, self._machine.version)
                if size >= BYTES_MAX:
                    return

    def _added_headers(self, pending: PendingDeadLetters, history_id: int) -> Table:
        """Return the headers for the annotations that consumers gave to messages with this history."""
        if not history_id:
            return {}
        queue = self._machine.vhosts[pending.vhost].queues[pending.queue]
        history = queue.histories.get(history_id)
        return {} if history is None else annotation_headers(history.annotations)

    def _stored(self, messages: Range) -> list[Messages] | None:
        """Return the stored messages; None if their entry must be read first."""
        try:
            return self._entries.messages(messages, frames_max=0)
        except MessagesGone:
            # The state still refers to these messages, so this is a bug of qq. The messages behind them continue.
            log.exception("dead messages of entry %d cannot be read", messages.index)
            return []


def _group_equal(
    stored: list[Messages],
    place: tuple[str, str, int],
    added: Table,
    *,
    needs_content: bool,
) -> Iterator[tuple[DeadLetter, int]]:
    """Yield a command with the properties of consecutive messages, and the number of messages that share them.

    `place` names the queue, and `added` are headers that consumers gave to the messages. `first` and `count` of the
    command are still to be set.
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
                headers = with_headers(content.headers, added) if added else dict(content.headers)
                properties = dict(content.properties)
                # Python treats 1 and True as equal, exchanges do not.
                header = head_of(message)
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
