"""The language of the golden scenarios.

A file is a story: a comment, then steps separated by empty lines. A step is a log entry: commands, `----`, and the
answers of the machine. Before `----`, each line is a command: `NODE/SESSION[@CONNECTION] VERB ARGUMENT...
KEY=VALUE...`, or only `NODE VERB ...` for commands of operators; indented lines are in the transaction above them.
Messages are named by their bodies; `a*` is redelivered, `a*3` for the third time. A body `a?colour=red&size=1` has
headers.

`time T` advances the clock to T ms after the beginning; whenever the machine wants an entry meanwhile it gets one
(`tick`). `repeat N` carries the step out N times and shows the last. After each entry follow the leader's entries for
dead messages (`dead-letter`).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol import effects as e
from qq.machine.protocol.versions import VERSIONS
from qq.routing.content import Content
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.likeness import differences
from tests.machine.machine_driver import (
    TICKS_MAX,
    Log,
    batch,
    delayed_ranges,
    held_messages,
    messages_of,
    ready_messages,
    reloaded,
    stuck_dead,
)

_COMMANDS = {opcode: kind.__name__ for kind, opcode in c.OPCODES.items()}

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qq.machine.protocol.death_history import Death, History
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range
    from tests.machine.machine_driver import Message

START_MS = 1_000_000_000
"""The clock when a story begins; it is told in milliseconds since then."""

FLAGS = {
    "passive",
    "durable",
    "exclusive",
    "auto_delete",
    "internal",
    "mandatory",
    "no_ack",
    "manual",
    "if_unused",
    "if_empty",
    "failover",
    "notified",
    "drain",
    "echo",
    "delivery_failed",
    "undeliverable",
    "operator",
    "server_named",
}


class Scenario:
    """Runs the steps of a story."""

    def __init__(self) -> None:
        self.machine = QueueMachine(content_of)
        """Loaded from its dump after every entry."""
        self.twin = QueueMachine(content_of)
        for machine in (self.machine, self.twin):
            machine.raise_to(VERSIONS[1])
        """Never loaded."""
        self.index = 0
        self.now_ms = START_MS
        self.log = Log()
        self.bodies: dict[tuple[int, int], str] = {}
        self.sequences: dict[tuple[str, int], list[str]] = {}
        """The messages that each session has published."""
        self.shown: list[str] = []

    def step(self, lines: Sequence[str]) -> list[str]:
        """Apply the lines as an entry with a batch for each line, then the entries of a leader."""
        if lines[0].startswith("repeat "):
            for _ in range(int(lines[0].split()[1]) - 1):
                self.step(lines[1:])
            lines = lines[1:]
        self.shown = []
        if lines[0].startswith("time "):
            self._wait_until(START_MS + int(lines[0].split()[1]))
            lines = lines[1:]
        if lines:
            self.index += 1
            for ordinal, group in enumerate(_groups(lines)):
                self._line(ordinal, group)
            self._end_entry()
            self._lead()
        return self.shown

    # Entries of the group and its leader

    def _both(self, act: Callable[[QueueMachine], list[e.Effect]]) -> None:
        effects = act(self.machine)
        assert act(self.twin) == effects
        for effect in effects:
            self.shown.extend(self._lines(effect))

    def _apply(
        self, node: str, ordinal: int, commands: Sequence[c.Command], bodies: Sequence[str] = ()
    ) -> None:
        payload = batch(commands, [body.encode() for body in bodies])
        self._both(lambda machine: machine.apply_batch(node, self.index, ordinal, self.now_ms, payload))

    def _end_entry(self) -> None:
        self._both(lambda machine: machine.end_entry(self.now_ms))
        self.machine = reloaded(self.machine)
        assert self.machine.digest() == self.twin.digest()
        assert differences(self.twin, self.machine) == []

    def _lead(self) -> None:
        for _ in range(TICKS_MAX):
            dead = self.log.dead_letters(self.machine)
            due_ms = self.machine.due_ms()
            if not dead and (due_ms is None or due_ms > self.now_ms):
                return
            self.index += 1
            for command in dead:
                self.shown.append(f"dead-letter {command.queue}: {self._dead(command)}")
            if not dead:
                self.shown.append(f"tick {self.now_ms - START_MS}")
            self._apply("n1", 0, dead)
            self._end_entry()
        raise AssertionError(f"the machine is not done at {self.now_ms - START_MS}")

    def _wait_until(self, time_ms: int) -> None:
        while (due_ms := self.machine.due_ms()) is not None and due_ms <= time_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self._lead()
        self.now_ms = time_ms

    # Commands of the lines

    def _line(self, ordinal: int, group: Sequence[str]) -> None:
        words = shlex.split(group[0])
        if words[0] == "state":
            self._state()
        elif words[1] in ("node-down", "node-expelled"):
            evicted = words[1] == "node-expelled"
            self._both(lambda machine: machine.origin_down(words[0], self.now_ms, evicted=evicted))
        else:
            actor, verb, *rest = words
            node, _, channel = actor.partition("/")
            session, _, connection = channel.partition("@")
            ids = int(session or 0), int(connection or 1)
            given = [(verb, rest), *((verb_word, more) for verb_word, *more in map(shlex.split, group[1:]))]
            if verb == "commit":
                rest.append(str(len(group) - 1))
            sequence = self.sequences.setdefault((node, ids[0]), [""])
            commands: list[c.Command] = []
            bodies: list[str] = []
            bcc: list[str] = []
            for verb_word, more in given:
                command, messages, hidden = _command(*ids, verb_word, more, len(sequence))
                sequence += messages
                commands.append(command)
                bodies += messages
                bcc += hidden
            for place, body in zip(self.log.record(self.index, ordinal, commands, bcc), bodies, strict=True):
                self.bodies[place] = body.rstrip(".")
                published = self.log.published[place]
                self.log.published[place] = published._replace(headers=tuple(_headers(body).items()))
            self._apply(node, ordinal, commands, bodies)

    # Output

    def _state(self) -> None:
        for queue in self.machine.queues():
            self.shown.append(self._queue(queue))
            for group in queue.groups.values():
                leases = " ".join(
                    f"{number}:{','.join(self._names(list(lease.ranges())))}"
                    for number, lease in group.leases.items()
                )
                self.shown.append(
                    f"group {group.name} on {queue.name}: fence={group.fence} leases=[{leases}]"
                )
        for vhost in self.machine.vhosts.values():
            for sink in vhost.sinks.values():
                attempts = " ".join(
                    f"{attempt.name}@{attempt.epoch}:{','.join(self._names([r.messages for r in attempt.runs]))}"
                    for attempt in sink.attempts.values()
                )
                self.shown.append(f"sink {sink.name}: next={sink.first_free} attempts=[{attempts}]")
        for (node, _), consumer in self.machine.consumers.items():
            held = " ".join(
                f"{key}:{self._name(message)}" for key, message in held_messages(consumer).items()
            )
            live = f"credit={consumer.credit}" if consumer.live else "stopped"
            queue = consumer.queue.name + _there(consumer.queue.vhost)
            self.shown.append(f"consumer {node} c{consumer.id} on {queue}: {live} holds=[{held}]")
        for vhost in self.machine.vhosts.values():
            there = _there(vhost.name)
            declared = [name for name in vhost.exchanges if name and not name.startswith("amq.")]
            if declared:
                self.shown.append(f"exchanges{there} {' '.join(declared)}")
            for binding in vhost.bindings:
                self.shown.append(
                    f"binding{there} {binding.source} -> {binding.destination.name} '{binding.routing_key}'"
                )
            for node, session, consumer, name in vhost.requesters.values():
                self.shown.append(f"requester{there} {node}/{session} c{consumer} under {name}")
        for connection in self.machine.catalog.connections.values():
            closing = f", closing: {connection.closing}" if connection.closing else ""
            self.shown.append(
                f"connection {connection.node}/{connection.id} of {connection.user} "
                f"to {connection.vhost.name}{closing}"
            )

    def _queue(self, queue: Queue) -> str:
        ready = " ".join(self._name(message) for message in ready_messages(queue))
        rendered = f"queue {queue.name}{_there(queue.vhost)}: consumers={queue.consumers} ready=[{ready}]"
        if queue.backlog.delayed:
            rendered += f" delayed=[{' '.join(self._names(delayed_ranges(queue)))}]"
        if queue.dead or queue.stuck:
            dying_text = [
                f"{name}:{dead.reason}" for dead in queue.dead for name in self._names([dead.range])
            ]
            dying_text += [
                f"{name}:{dead.reason} waits for '{target}'"
                for _, dead, target in stuck_dead(queue)
                for name in self._names([dead.range])
            ]
            rendered += f" dying=[{' '.join(dying_text)}]"
        if queue.active is not None:
            rendered += f" active=c{queue.active.id}"
        return rendered

    def _dead(self, command: c.DeadLetter) -> str:
        queue = self.machine.vhosts[command.vhost].queues[command.queue]
        numbered = {
            number + place: name
            for number, dead, _ in stuck_dead(queue)
            for place, name in enumerate(self._names([dead.range]))
        }
        names = self._names([dead.range for dead in queue.dead])
        numbered |= dict(enumerate(names, queue.first_dead))
        return " ".join(numbered[command.first + place] for place in range(command.count))

    def _name(self, message: Message) -> str:
        index, slot, deliveries = message
        again = "" if not deliveries else "*" if deliveries == 1 else f"*{deliveries}"
        return self.bodies[index, slot] + again

    def _names(self, ranges: Sequence[Range]) -> list[str]:
        return [self._name(message) for message in messages_of(ranges)]

    def _lines(self, effect: e.Effect) -> list[str]:
        if isinstance(effect, e.OriginEvicted):
            return [f"{effect.node} expelled"]
        if isinstance(effect, e.DeadLettered):
            return []  # the oracle of messages checks that
        lines = [f"{effect.node}/{effect.session} {self._effect_text(effect)}"]
        match effect:
            case e.Deliver(_, _, _, _, ranges, histories):
                lines += self._histories(ranges, histories)
            case e.Reply(_, _, e.GetOk(_, message, _, history)) if history is not None:
                lines += self._histories([message], {message.history: history})
            case e.Reply(_, _, e.Got(_, ranges, _, histories)):
                lines += self._histories(ranges, histories)
            case _:
                pass
        return lines

    def _histories(self, ranges: Sequence[Range], histories: Mapping[int, History]) -> list[str]:
        assert {messages.history for messages in ranges} - {0} == set(histories)
        lines: list[str] = []
        for number, history in histories.items():
            names = " ".join(self._names([messages for messages in ranges if messages.history == number]))
            if history.annotations:
                notes = " ".join(f"{key}={value.decode()}" for key, value in history.annotations)
                lines.append(f"    {names} with {notes}")
            if not history.deaths:
                continue
            lines.append(f"    {names} now from '{history.exchange}' '{history.routing_key}'")
            lines += [f"        {_death(death)}" for death in history.deaths]
            first, last = ("{} in {} from '{}'".format(*cause) for cause in (history.first, history.last))
            lines.append(f"        first {first}, last {last}")
        return lines

    def _effect_text(self, effect: e.SessionEffect) -> str:
        match effect:
            case e.Deliver(_, _, consumer, first, ranges):
                names = " ".join(f"{first + step}:{name}" for step, name in enumerate(self._names(ranges)))
                return f"deliver c{consumer} {names}"
            case e.Reply(_, _, result):
                return self._answered(result)
            case e.Failed(_, _, code, text, opcode):
                return f"failed {code} {_COMMANDS.get(opcode, 'nothing')} {text}"
            case e.Returned(_, _, index, slot, count, exchange, key, channel):
                names = " ".join(self.bodies[index, slot + step] for step in range(count))
                return f"returned from '{exchange}' '{key}' on channel {channel}: {names}"
            case e.DirectReply(_, _, consumer, index, slot, count, _, _):
                names = " ".join(self.bodies[index, slot + step] for step in range(count))
                return f"direct-reply c{consumer} {names}"
            case e.Rejected(node, session, first, count, queue):
                names = self.sequences[node, session][first : first + count]
                return f"rejected by {queue}: {' '.join(name.rstrip('.') for name in names)}"
            case e.DeliveryTimeout(_, _, consumer, tag, vhost, queue, message_id, timeout_ms):
                where = f"on {queue}{_there(vhost)}"
                return f"timed-out c{consumer} '{tag}' {where}: message {message_id} after {timeout_ms} ms"
            case e.ConnectionForced(_, _, code, text):
                return f"close {code} {text}"
            case e.ConsumerGone(_, _, consumer):
                return f"consumer-gone c{consumer}"
            case e.ConsumerState(_, _, consumer, number, next_id, credit, available, is_draining, is_active):
                flags = f"{' draining' * is_draining}{' inactive' * (not is_active)}"
                return (
                    f"state c{consumer} #{number} next={next_id} credit={credit} available={available}{flags}"
                )
            case e.DeliveriesReleased(_, _, consumer, first, last):
                return f"released c{consumer} {first} to {last}"
            case e.Known(_, _, answers, consumers):
                return f"known answers={answers} consumers={consumers}"

    def _answered(self, result: e.Result) -> str:
        match result:
            case e.GetOk(consumer, message, remaining):
                return f"get-ok c{consumer} {self._names([message])[0]} remaining={remaining}"
            case e.Got(consumer, ranges, remaining):
                return f"got c{consumer} {' '.join(self._names(ranges))} remaining={remaining}"
            case e.QueueDeclared(name, messages, consumers):
                return f"declared {name} messages={messages} consumers={consumers}"
            case _:
                fields = " ".join(f"{field}={value}" for field, value in result._asdict().items())
                return f"{type(result).__name__} {fields}".rstrip()


def content_of(message: Any, number: int) -> Content:
    """Return the content of a message as machines of a story see it."""
    return Content(_headers(bytes(message).decode()), {}, number)


def _headers(body: str) -> dict[str, object]:
    pairs = body.partition("?")[2].rstrip(".")
    return (
        {key: _value(value) for key, _, value in (pair.partition("=") for pair in pairs.split("&"))}
        if pairs
        else {}
    )


def _groups(lines: Sequence[str]) -> list[list[str]]:
    """Return each line together with its indented lines."""
    groups: list[list[str]] = []
    for line in lines:
        if line.startswith(" "):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _there(vhost: str) -> str:
    return "" if vhost == c.DEFAULT_VHOST else f" in {vhost}"


def _death(death: Death) -> str:
    keys = " ".join(death.routing_keys)
    seconds = (death.time_ms - START_MS) // 1000
    rendered = (
        f"{death.count} x {death.reason} in {death.queue} from '{death.exchange}' [{keys}] at {seconds} s"
    )
    return (
        rendered
        if death.original_expiration is None
        else f"{rendered} expiration={death.original_expiration}"
    )


def _command(
    session: int, connection: int, verb: str, words: list[str], sequence: int
) -> tuple[c.Command, list[str], list[str]]:
    """A command, the bodies of its messages, and those of their keys that are hidden (BCC)."""
    flags = {verb_word: True for verb_word in words if verb_word in FLAGS}
    options = {key: _value(value) for key, _, value in (w.partition("=") for w in words if _is_option(w))}
    plain = [verb_word for verb_word in words if verb_word not in FLAGS and not _is_option(verb_word)]

    def on(*names: str) -> list[bool]:
        return [name in flags for name in names]

    def number(position: int) -> int:
        return int(plain[position].removeprefix("c"))

    def span() -> tuple[int, int, int]:
        return number(0), number(1), number(2 if len(plain) > 2 else 1)

    def keys(name: str) -> list[str]:
        return str(options.pop(name)).split(",") if name in options else []

    match verb:
        case "publish":
            exchange, key, *bodies = plain
            # `size=9` fills bodies up with dots.
            bodies = [body.ljust(options.get("size", 0), ".") for body in bodies]
            options.pop("size", None)
            enqueue = c.Enqueue(session, sequence, len(bodies), exchange, key, "mandatory" in flags, 1)
            if not options:
                return enqueue, bodies, []
            cc, bcc = keys("cc"), keys("bcc")
            properties = (
                options.pop("priority", NO_PRIORITY),
                options.pop("expiration", NO_TTL),
                options.pop("x-delay", 0),
                str(options.pop("x-publisher-id", "")),
                options.pop("x-publish-seq", 0),
            )
            assert not options
            return c.Publish(*enqueue, [*cc, *bcc], *properties), bodies, bcc
        case "consume":
            tag = str(options.pop("tag", plain[1]))
            channel, credit, timeout_ms = (options.pop(key, 0) for key in ("channel", "credit", "timeout"))
            no_ack, exclusive, manual, failover, notified = on(
                "no_ack", "exclusive", "manual", "failover", "notified"
            )
            ids = (session, connection, channel or session, number(1))
            flagged = (no_ack, exclusive, not manual, failover, notified)
            return c.Checkout(*ids, plain[0], tag, credit, *flagged, timeout_ms, options), [], []
        case "attach":
            timeout_ms = options.pop("timeout", 0)
            ids = (session, connection, session, number(1), plain[0], plain[1])
            return c.AttachConsumer(*ids, *on("no_ack", "notified"), timeout_ms, options), [], []
        case "set-credit":
            return c.SetCredit(number(0), number(1), number(2), *on("drain", "echo")), [], []
        case "modify":
            ready_ms = options.pop("ready", 0)
            ready_ms += START_MS if ready_ms else 0
            values = [str(value).encode() for value in options.values()]
            return (
                c.Modify(*span(), *on("delivery_failed", "undeliverable"), list(options), values, ready_ms),
                [],
                [],
            )
        case "reply-to":
            return c.ReplyTo(session, number(0), plain[1]), [], []
        case "get":
            timeout_ms = options.get("timeout", 0)
            ids = (session, connection, session, number(1))
            return c.Get(*ids, plain[0], *on("no_ack"), timeout_ms), [], []
        case "get-messages":
            ids = (session, connection, session, number(1))
            return c.GetMessages(*ids, plain[0], *on("no_ack"), options.get("timeout", 0), number(2)), [], []
        case "declare":
            properties = on("passive", "durable", "exclusive", "auto_delete", "server_named")
            return c.DeclareQueue(session, connection, plain[0], *properties, options), [], []
        case "delete":
            return c.DeleteQueue(session, connection, plain[0], *on("if_unused", "if_empty")), [], []
        case "declare-exchange":
            properties = on("passive", "durable", "auto_delete", "internal")
            return c.DeclareExchange(session, plain[0], plain[1], *properties, options), [], []
        case "delete-exchange":
            return c.DeleteExchange(session, plain[0], *on("if_unused")), [], []
        case "bind":
            return c.BindQueue(session, connection, *plain, options), [], []
        case "unbind":
            return c.UnbindQueue(session, connection, *plain, options), [], []
        case "bind-exchange":
            return c.BindExchange(session, *plain, options), [], []
        case "unbind-exchange":
            return c.UnbindExchange(session, *plain, options), [], []
        case "settle":
            return c.Settle(*span()), [], []
        case "return":
            return c.Return(*span()), [], []
        case "reject":
            return c.Reject(*span()), [], []
        case "discard":
            return c.Discard(*span()), [], []
        case "open-group":
            order, owner = str(options.get("order", "ready")), str(options.get("owner", ""))
            settings = (order, "exclusive" in flags, int(options.get("expires", 0)))
            return c.OpenGroup(c.DEFAULT_VHOST, *plain[:2], number(2), owner, "ann", *settings), [], []
        case "lease":
            most, octets = int(options.get("messages", 100)), int(options.get("bytes", 10**9))
            place = (c.DEFAULT_VHOST, *plain[:2], number(2), number(3))
            return c.LeaseMessages(*place, most, octets), [], []
        case "commit-leases":
            return c.CommitLeases(c.DEFAULT_VHOST, *plain[:2], number(2), number(3)), [], []
        case "release":
            return c.ReleaseLease(c.DEFAULT_VHOST, *plain[:2], number(2), number(3)), [], []
        case "close-group":
            releases = options.get("releases") is True
            return c.CloseGroup(c.DEFAULT_VHOST, *plain[:2], number(2), releases), [], []
        case "open-sink":
            return c.OpenSink(c.DEFAULT_VHOST, plain[0], "ann", int(options.get("expires", 0))), [], []
        case "stage":
            sink, epoch, attempt, step, exchange, key, *bodies = plain
            place = (c.DEFAULT_VHOST, sink, "ann", int(epoch), attempt, int(step), len(bodies))
            properties = (int(options.get("priority", NO_PRIORITY)), NO_TTL, int(options.get("x-delay", 0)))
            return c.StageMessages(*place, exchange, key, 1, [], *properties), bodies, []
        case "commit-epoch":
            attempts = [attempt.partition(":") for attempt in plain[2:]]
            names, steps = [name for name, _, _ in attempts], [int(count) for _, _, count in attempts]
            return c.CommitEpoch(c.DEFAULT_VHOST, plain[0], "ann", number(1), names, steps), [], []
        case "close-sink":
            return c.CloseSink(c.DEFAULT_VHOST, plain[0], "ann"), [], []
        case "commit":
            return c.Commit(session, number(0)), [], []
        case "credit":
            return c.Credit(number(0), number(1)), [], []
        case "set-prefetch":
            return c.SetPrefetch(number(0), number(1)), [], []
        case "limit":
            return c.Limit(session, number(0)), [], []
        case "cancel":
            return c.Cancel(session, number(0)), [], []
        case "purge":
            return c.PurgeQueue(session, connection, plain[0]), [], []
        case "recover":
            return c.Recover(session), [], []
        case "session-down":
            return c.SessionDown(session), [], []
        case "connect":
            return c.Connect(session, *plain), [], []
        case "open":
            return c.OpenChannel(session, connection), [], []
        case "close-connection":
            node, _, connection_text = plain[0].partition("/")
            return c.CloseConnection(node, int(connection_text), plain[1]), [], []
        case "vhost":
            kind = str(options.pop("default_queue_type", ""))
            return c.PutVhost(plain[0], " ".join(plain[1:]), [], kind), [], []
        case "delete-vhost":
            return c.DeleteVhost(plain[0]), [], []
        case "limit-vhost":
            return c.SetVhostLimits(plain[0], options), [], []
        case "user":
            return c.PutUser(plain[0], b"salt", b"hash", plain[1:]), [], []
        case "delete-user":
            return c.DeleteUser(plain[0]), [], []
        case "limit-user":
            return c.SetUserLimits(plain[0], options), [], []
        case "permit":
            return c.SetPermissions(*plain, ".*", ".*", ".*"), [], []
        case "forbid":
            return c.ClearPermissions(*plain), [], []
        case "connection-down":
            return c.ConnectionDown(connection), [], []
        case "policy":
            name, pattern = plain
            apply_to, priority = str(options.pop("apply_to", "all")), options.pop("priority", 0)
            vhost = str(options.pop("vhost", c.DEFAULT_VHOST))
            return c.PutPolicy(vhost, name, *on("operator"), pattern, apply_to, priority, options), [], []
        case "delete-policy":
            vhost = str(options.pop("vhost", c.DEFAULT_VHOST))
            return c.DeletePolicy(vhost, plain[0], *on("operator")), [], []
        case "limit-publishers":
            return c.LimitPublishers(number(0), number(1)), [], []
    raise AssertionError(f"unknown verb {verb}")


def _is_option(verb_word: str) -> bool:
    key, equals, _ = verb_word.partition("=")
    return bool(equals) and key.replace("-", "").replace("_", "").isalnum()


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


def rerun(text: str) -> str:
    """The story with the answers that the machine gives now."""
    scenario = Scenario()
    rendered: list[str] = []
    for step in text.rstrip("\n").split("\n\n"):
        lines = step.split("\n")
        comment = [line for line in lines if line.startswith("#")]
        stop = lines.index("----") if "----" in lines else None
        given = [line for line in lines[:stop] if line[:1] not in ("#", "")]
        if given:
            comment += [*given, "----", *(scenario.step(given) or ["nothing"])]
        rendered.append("\n".join(comment))
    return "\n\n".join(rendered) + "\n"
