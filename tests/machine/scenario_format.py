"""The language of the golden scenarios.

A file is a story: a comment, then steps separated by empty lines. A step is one log entry: commands, `----`, and what
the machine answers. Before `----`, one command per line: `NODE/SESSION[@CONNECTION] VERB ARGUMENT... KEY=VALUE...`.
Messages are named by their bodies; `a*` is redelivered, `a*3` for the third time.
"""

from __future__ import annotations

import ast
import shlex
from typing import TYPE_CHECKING, Any

from machine_driver import batch, held_messages, messages_of, ready_messages, reloaded

from qq.machine import commands as c
from qq.machine import effects as e
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from machine_driver import Message

    from qq.ranges import Range

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
}


class Scenario:
    """Runs the steps of one story."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.index = 0
        self.bodies: dict[tuple[int, int], str] = {}
        self.shown: list[str] = []

    def step(self, lines: Sequence[str]) -> list[str]:
        """Carry out the lines as one entry, one batch each."""
        self.index += 1
        self.shown = []
        for ordinal, line in enumerate(lines):
            self._line(ordinal, line)
        self._show(self.machine.end_entry())
        self.machine = reloaded(self.machine)
        return self.shown

    def _line(self, ordinal: int, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "state":
            self._state()
        elif words[1] in ("node-down", "node-expelled"):
            self._show(self.machine.origin_down(words[0], expelled=words[1] == "node-expelled"))
        else:
            actor, verb, *rest = words
            node, _, channel = actor.partition("/")
            session, _, connection = channel.partition("@")
            command, messages = _command(int(session), int(connection or 1), verb, rest)
            for number, body in enumerate(messages):
                self.bodies[self.index, ordinal << 24 | number] = body
            payload = batch([command], [body.encode() for body in messages])
            self._show(self.machine.apply_batch(node, self.index, ordinal, 0, payload))

    def _state(self) -> None:
        for queue in self.machine.queues.values():
            ready = " ".join(self._name(message) for message in ready_messages(queue))
            self.shown.append(f"queue {queue.name or '-'}: consumers={queue.consumers} ready=[{ready}]")
        for (node, _), consumer in self.machine.consumers.items():
            held = " ".join(
                f"{key}:{self._name(message)}" for key, message in held_messages(consumer).items()
            )
            live = f"credit={consumer.credit}" if consumer.live else "stopped"
            self.shown.append(
                f"consumer {node} c{consumer.id} on {consumer.queue.name}: {live} holds=[{held}]"
            )
        declared = [name for name in self.machine.exchanges if name and not name.startswith("amq.")]
        if declared:
            self.shown.append(f"exchanges {' '.join(declared)}")
        for binding in self.machine.bindings:
            self.shown.append(
                f"binding {binding.source} -> {binding.destination.name} '{binding.routing_key}'"
            )

    def _name(self, message: Message) -> str:
        index, slot, deliveries = message
        again = "" if not deliveries else "*" if deliveries == 1 else f"*{deliveries}"
        return self.bodies[index, slot] + again

    def _names(self, ranges: Sequence[Range]) -> list[str]:
        return [self._name(message) for message in messages_of(ranges)]

    def _show(self, effects: Sequence[e.Effect]) -> None:
        self.shown.extend(self._shown(effect) for effect in effects)

    def _shown(self, effect: e.Effect) -> str:
        if isinstance(effect, e.OriginExpelled):
            return f"{effect.node} expelled"
        return f"{effect.node}/{effect.session} {self._told(effect)}"

    def _told(self, effect: e.Effect) -> str:
        match effect:
            case e.Deliver(_, _, consumer, first, ranges):
                names = " ".join(f"{first + step}:{name}" for step, name in enumerate(self._names(ranges)))
                return f"deliver c{consumer} {names}"
            case e.Reply(_, _, result):
                return self._answered(result)
            case e.Failed(_, _, code, text, class_id, method_id):
                return f"failed {code} ({class_id},{method_id}) {text}"
            case e.Returned(_, _, index, slot, count, exchange, key, channel, code, text):
                names = " ".join(self.bodies[index, slot + step] for step in range(count))
                return f"returned {code} {text} from '{exchange}' '{key}' on channel {channel}: {names}"
            case e.ConsumerGone(_, _, consumer):
                return f"consumer-gone c{consumer}"
            case e.Known(_, _, answers, consumers):
                return f"known answers={answers} consumers={consumers}"
            case e.OriginExpelled(_):
                return "expelled"

    def _answered(self, result: e.Result) -> str:
        match result:
            case e.GetOk(consumer, message, remaining):
                return f"get-ok c{consumer} {self._names([message])[0]} remaining={remaining}"
            case e.QueueDeclared(name, messages, consumers):
                return f"declared {name} messages={messages} consumers={consumers}"
            case _:
                fields = " ".join(f"{field}={value}" for field, value in result._asdict().items())
                return f"{type(result).__name__} {fields}".rstrip()


def _command(session: int, connection: int, verb: str, words: list[str]) -> tuple[c.Command, list[str]]:
    flags = {word: True for word in words if word in FLAGS}
    options = {key: _value(value) for key, _, value in (w.partition("=") for w in words if _is_option(w))}
    plain = [word for word in words if word not in FLAGS and not _is_option(word)]
    credit = options.pop("credit", 0)

    def on(*names: str) -> list[bool]:
        return [name in flags for name in names]

    def number(position: int) -> int:
        return int(plain[position].removeprefix("c"))

    def span() -> tuple[int, int, int]:
        return number(0), number(1), number(2 if len(plain) > 2 else 1)

    match verb:
        case "publish":
            exchange, key, *bodies = plain
            return c.Enqueue(session, 1, len(bodies), exchange, key, "mandatory" in flags, 1), bodies
        case "consume":
            tag = str(options.pop("tag", plain[1]))
            no_ack, exclusive, manual, failover = on("no_ack", "exclusive", "manual", "failover")
            ids = (session, connection, number(1))
            return c.Checkout(
                *ids, plain[0], tag, credit, no_ack, exclusive, not manual, failover, options
            ), []
        case "get":
            return c.Get(session, connection, number(1), plain[0], *on("no_ack")), []
        case "declare":
            properties = on("passive", "durable", "exclusive", "auto_delete")
            return c.DeclareQueue(session, connection, plain[0], *properties, options), []
        case "delete":
            return c.DeleteQueue(session, connection, plain[0], *on("if_unused", "if_empty")), []
        case "declare-exchange":
            properties = on("passive", "durable", "auto_delete", "internal")
            return c.DeclareExchange(session, plain[0], plain[1], *properties, options), []
        case "delete-exchange":
            return c.DeleteExchange(session, plain[0], *on("if_unused")), []
        case "bind":
            return c.BindQueue(session, connection, *plain, options), []
        case "unbind":
            return c.UnbindQueue(session, connection, *plain, options), []
        case "bind-exchange":
            return c.BindExchange(session, *plain, options), []
        case "unbind-exchange":
            return c.UnbindExchange(session, *plain, options), []
        case "settle":
            return c.Settle(*span()), []
        case "return":
            return c.Return(*span()), []
        case "discard":
            return c.Discard(*span()), []
        case "credit":
            return c.Credit(number(0), number(1)), []
        case "cancel":
            return c.Cancel(session, number(0)), []
        case "purge":
            return c.PurgeQueue(session, connection, plain[0]), []
        case "recover":
            return c.Recover(session), []
        case "session-down":
            return c.SessionDown(session), []
        case "connection-down":
            return c.ConnectionDown(connection), []
    raise AssertionError(f"unknown verb {verb}")


def _is_option(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace("-", "").replace("_", "").isalnum()


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def rerun(text: str) -> str:
    """The story with the answers that the machine gives now."""
    scenario = Scenario()
    told: list[str] = []
    for step in text.rstrip("\n").split("\n\n"):
        lines = step.split("\n")
        comment = [line for line in lines if line.startswith("#")]
        stop = lines.index("----") if "----" in lines else None
        asked = [line for line in lines[:stop] if line[:1] not in ("#", "")]
        if asked:
            comment += [*asked, "----", *(scenario.step(asked) or ["nothing"])]
        told.append("\n".join(comment))
    return "\n\n".join(told) + "\n"
