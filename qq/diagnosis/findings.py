"""Findings: a fault or bottleneck of the cluster, with its severity and the advice to operators.

Invariant: a code keeps its meaning for ever, because scripts search for codes. docs/how-to/doctor.md lists all codes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.diagnosis.words import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FINDINGS_MAX = 100
"""Findings in a diagnosis at most; the gravest are kept."""
TIME_MIN_MS = 86_400_000
"""Smallest plausible cluster time, in milliseconds since 1970; an earlier time means that the clock is not yet known.
"""
KEPT_MS = 60_000
"""Milliseconds that a finding is remembered. If it is found again within this time, it keeps its first time."""


class Severity(StrEnum):
    """Severity of a finding, the gravest first."""

    CRITICAL = "critical"  # clients cannot work, or soon cannot
    WARNING = "warning"  # something should be done
    INFO = "info"  # good to know


GRAVEST_FIRST = list(Severity)


class KindOfFinding(NamedTuple):
    """Severity and advice that all findings with the same code share."""

    severity: Severity
    advice: str


def _critical(advice: str) -> KindOfFinding:
    return KindOfFinding(Severity.CRITICAL, advice)


def _warning(advice: str) -> KindOfFinding:
    return KindOfFinding(Severity.WARNING, advice)


def _info(advice: str) -> KindOfFinding:
    return KindOfFinding(Severity.INFO, advice)


KINDS: Mapping[str, KindOfFinding] = {
    # The cluster and its members
    "no-leader": _critical(
        "Start nodes, or mend their links, until a majority is up; nothing has been lost."
    ),
    "leader-unheard": _critical(
        "Check the network between this node and the leader, and have its clients connect to another node."
    ),
    "nobody-serves": _critical("`qq revive` a node under maintenance, or start one that is down."),
    "node-down": _warning("Start it, or check its network and the last lines of its log."),
    "node-tells-nothing": _info(
        "If it is not of an older release, check whether it is overloaded or stopped."
    ),
    "name-twice": _warning("Stop the second process; if its data directory is a copy, never start it again."),
    "node-behind": _warning("Check its disk, its processor and the network to it."),
    "node-under-repair": _warning(
        "Wait until it has received the log from the other nodes; do not stop another node."
    ),
    "link-missing": _warning("Check the network between them, and their secrets."),
    "members-few": _info("Add members (`qq member add`): three voters tolerate the failure of one."),
    "members-even": _info(
        "Use an odd number of members (3, 5 or 7): an even number tolerates no more failures."
    ),
    "member-awaited": _info("Start it with `qq serve --join`, or remove it (`qq member remove`)."),
    "member-learns": _info("Wait until it has the log; if it does not vote then, `qq member promote`."),
    "node-drained": _info("When the maintenance is over, `qq revive`."),
    "drain-forgotten": _warning(
        "If the maintenance is over, `qq revive`: until then one node less serves clients."
    ),
    "leader-changes": _warning("Check the network between the nodes, and their disks."),
    "releases-differ": _info("Upgrade the other nodes, one after the other."),
    "settings-differ": _info(
        "Unless that is intended, give all nodes the same settings; each uses its own file and environment."
    ),
    "upgrade-waits": _info(
        "Upgrade or start the nodes that cannot; if all can and the finding stays, `qq upgrade finish`."
    ),
    "clock-off": _warning("Check the time server of the node."),
    # Waiting of clients
    "disk-alarm": _critical(
        "Make room on the disk: publishers wait until more space is free than its limit."
    ),
    "memory-alarm": _critical(
        "Have consumers acknowledge, or close connections, or give the node more memory (`memory_high_watermark`)."
    ),
    "disk-slow": _warning(
        "Confirms wait for it unless a majority has faster disks: check what else uses it, and whether it fails."
    ),
    "loop-busy": _warning(
        "Check message rates, messages to very many queues, and other processes; spread clients over the nodes."
    ),
    "network-slow": _warning("Check the network between the nodes, and nodes that are busy."),
    "limited-by": _info("If commits are too slow, make the part faster that takes most of the time."),
    "publishers-held": _info("Raise the limit if publishers should publish more."),
    "client-reads-slowly": _warning("Check the client: it is stuck, overloaded, or behind a slow network."),
    "logins-fail": _warning(
        "An application has a wrong password, or passwords are being guessed: the node's log names the users."
    ),
    "shovel-idle": _warning(
        "Mend the reason, and restart the shovel if it does not try again by itself; or delete it."
    ),
    "tenant-heavy": _info("If other users suffer, set limits for this user (docs: limits)."),
    # Resources that are nearly used up
    "disk-full-soon": _warning("Make room, or have consumers take queued messages."),
    "memory-short-soon": _warning("Soon publishers wait: check unacknowledged messages and connections."),
    "descriptors-short": _warning("Raise the limit of open files of the service, or close connections."),
    "connections-short": _warning("Soon clients are refused: close connections, or raise the limit."),
    "certificate-ends": _warning("Renew it; the node reads the file again by itself."),
    "certificate-ended": _critical("Renew it now: clients or nodes that verify it refuse to connect."),
    "certificate-unreadable": _warning(
        "Mend the file; the node uses the certificate that it has read before."
    ),
    # Queues
    "no-consumers": _warning("Start its consumers, or delete the queue if it is not needed."),
    "queue-grows": _warning("Add consumers, or make them faster; set `max-length` if old messages may go."),
    "consumers-slow": _warning(
        "Add consumers, or make them faster: they hold as many messages as their prefetch allows."
    ),
    "prefetch-small": _info("Raise the prefetch: consumers mostly wait for the next message to travel."),
    "unacked-long": _warning("Check the consumer: it is stuck, or does not acknowledge."),
    "dead-letters": _warning("Check why consumers reject messages or fail, and check the dead-letter queue."),
    "dead-letters-stuck": _warning(
        "No queue takes them: bind a queue to the dead-letter exchange, or make room in the full queue."
    ),
    "publishes-refused": _warning("The queue is full (`reject-publish`): add consumers, or raise its limit."),
}
"""Severity and advice of each code."""


class Finding(NamedTuple):
    """A fault, a bottleneck or a notable fact of the cluster, for its operators."""

    code: str
    subject: str
    """The subject: "cluster", or the name of a node, queue or client after its kind, such as "node n1"."""
    text: str
    """The finding as a sentence without its full stop."""
    since_ms: int | None = None
    """When the finding began, in milliseconds since 1970; None if unknown."""

    @property
    def severity(self) -> Severity:
        return KINDS[self.code].severity

    @property
    def advice(self) -> str:
        """Return the advice to operators, as sentences."""
        return KINDS[self.code].advice


def queue_subject(vhost: str, name: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


class Since:
    """Remembers when each finding was first found, so that repeated findings show since when they last."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        """(code, subject) -> (first time, last time) of the finding, in milliseconds since 1970."""

    def date(self, findings: Iterable[Finding], now_ms: int) -> list[Finding]:
        """Return the findings, each with the time at which it was first found.

        A finding that is missing for `KEPT_MS` is forgotten. Before a node knows the cluster's time, its own starts at
        0; then the findings are returned unchanged.
        """
        if now_ms < TIME_MIN_MS:
            return list(findings)
        dated: list[Finding] = []
        for finding in findings:
            key = finding.code, finding.subject
            since_ms, last_ms = self._known.get(key, (now_ms, now_ms))
            if now_ms - last_ms > KEPT_MS:  # the cluster's time jumps after all nodes were down
                since_ms = now_ms
            self._known[key] = since_ms, now_ms
            dated.append(finding if finding.since_ms is not None else finding._replace(since_ms=since_ms))
        self._known = {key: times for key, times in self._known.items() if now_ms - times[1] <= KEPT_MS}
        return dated

    def first_ms(self, code: str, subject: str) -> int | None:
        """Return when a finding was first found, in milliseconds since 1970, or None if it is not remembered."""
        times = self._known.get((code, subject))
        return None if times is None else times[0]


class Diagnosis(NamedTuple):
    """All findings of a request, the gravest first, and the number of findings that were left out."""

    findings: Sequence[Finding]
    omitted: int = 0

    @property
    def verdict(self) -> str:
        """Return a summary in a line: the number of findings of each severity, and the gravest finding."""
        if not self.findings:
            return "nothing is wrong"
        counts = [
            (each, sum(finding.severity is each for finding in self.findings)) for each in GRAVEST_FIRST
        ]
        counted = ", ".join(_counted(count, severity) for severity, count in counts if count)
        more = f", {self.omitted} more" if self.omitted else ""
        first = self.findings[0]
        if first.severity is Severity.INFO:
            return f"nothing is wrong ({counted}{more})"
        return f"{counted}{more}; first of all: {first.subject}: {first.text}"


def _counted(count: int, severity: Severity) -> str:
    return number(count, "warning") if severity is Severity.WARNING else f"{count} {severity}"


def diagnosis_of(findings: Iterable[Finding]) -> Diagnosis:
    """Sort findings by severity, then by the order of their codes in `KINDS`, then by age, the oldest first.

    Equal findings of several nodes are merged. At most `FINDINGS_MAX` are kept; the rest is counted.
    """
    places = {code: place for place, code in enumerate(KINDS)}

    def place(each: Finding) -> tuple[int, int, float]:
        return GRAVEST_FIRST.index(each.severity), places[each.code], each.since_ms or inf

    known: set[tuple[str, ...]] = set()
    ordered: list[Finding] = []
    for each in sorted(findings, key=place):
        if each[:3] not in known:
            known.add(each[:3])
            ordered.append(each)
    return Diagnosis(ordered[:FINDINGS_MAX], max(0, len(ordered) - FINDINGS_MAX))


# --- their forms


def document_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the JSON document of a diagnosis, as the HTTP API sends it."""
    return {
        "verdict": diagnosis.verdict,
        "omitted": diagnosis.omitted,
        "findings": [
            {
                "severity": each.severity.value,
                "code": each.code,
                "subject": each.subject,
                "text": each.text,
                "advice": each.advice,
                "since": None if each.since_ms is None else _time(each.since_ms),
            }
            for each in diagnosis.findings
        ],
    }


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a terminal shows for the JSON document: the verdict, and three lines per finding.

    Unprintable characters are shown as escapes, because the names in findings may contain any character.
    """
    yield _printable(document["verdict"])
    for each in document["findings"]:
        since = f", since {each['since']}" if each["since"] else ""
        yield _printable(f"{each['severity'].upper()} {each['code']}: {each['subject']}{since}")
        yield _printable(f"    {each['text']}")
        yield _printable(f"    -> {each['advice']}")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _time(since_ms: int) -> str:
    """Return a time in RFC 3339 format, in UTC, to the second."""
    return f"{datetime.fromtimestamp(since_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def decode_finding(row: Any) -> Finding | None:
    """Decode a finding that a node sent; return None if it is malformed or its code is unknown here."""
    match row:
        case [str(code), str(subject), str(text), int() | None as since_ms, *_] if code in KINDS:
            return Finding(code, subject, text, since_ms)
        case _:
            return None
