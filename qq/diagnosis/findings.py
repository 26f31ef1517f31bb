"""Findings: a fault or bottleneck of the cluster, with its severity and the advice to operators.

Invariant: a code keeps its meaning for ever, because scripts search for codes. docs/how-to/doctor.md lists all codes.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.diagnosis.words import number, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FINDINGS_MAX = 100
"""Findings in a diagnosis at most; the gravest are kept."""
TIME_MIN_MS = 86_400_000
"""Smallest plausible cluster time, in milliseconds since 1970; an earlier time means that the clock is not yet known.
"""
KEPT_MS = 60_000
"""Milliseconds that a finding is remembered. If it is found again within this time, it keeps its first time."""


ABSENCES = frozenset({"no-leader", "majority-lost", "leader-unheard", "nobody-serves", "node-down"})
"""Codes of findings that begin anew when a node or a leader is missing again, however soon."""


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
    plural: str = ""
    """Title of several findings of this kind, with `{}` for their number. Findings without a title stay separate."""


def _critical(advice: str, plural: str = "") -> KindOfFinding:
    return KindOfFinding(Severity.CRITICAL, advice, plural)


def _warning(advice: str, plural: str = "") -> KindOfFinding:
    return KindOfFinding(Severity.WARNING, advice, plural)


def _info(advice: str, plural: str = "") -> KindOfFinding:
    return KindOfFinding(Severity.INFO, advice, plural)


KINDS: Mapping[str, KindOfFinding] = {
    # The cluster and its members
    "no-leader": _critical(
        "Start nodes, or mend their links, until a majority is up. If their data is gone for good: `qq recover`."
    ),
    "majority-lost": _critical(
        "Put the data directories back. `qq recover` is the last way out, and may lose confirmed messages."
    ),
    "leader-unheard": _critical(
        "Check the network between this node and the leader, and have its clients connect to another node."
    ),
    "nobody-serves": _critical("`qq revive` a node under maintenance, or start one that is down."),
    "node-down": _warning(
        "Start it, or check its network and the last lines of its log.", "{} nodes do not answer"
    ),
    "directory-differs": _warning(
        "If the member's directory is lost, `qq member replace`; else stop that process, and start the member.",
        "{} nodes are up with other data directories",
    ),
    "node-tells-nothing": _info(
        "If it is not of an older release, check whether it is overloaded or stopped.",
        "{} nodes sent no findings",
    ),
    "name-twice": _warning("Stop the second process; if its data directory is a copy, never start it again."),
    "node-behind": _warning(
        "Check its disk, its processor and the network to it.", "{} nodes lack entries of the log"
    ),
    "node-under-repair": _warning(
        "The leader sends it the log: wait, and stop no other node. Without a leader, mend that first.",
        "{} nodes are under repair",
    ),
    "rolled-back": _warning(
        "It votes again when it has everything. Never put an old directory or snapshot of one node back.",
        "{} nodes had older data directories",
    ),
    "link-missing": _warning(
        "Check the network between them, and their secrets.", "{} pairs of nodes have no link"
    ),
    "data-lost": _warning(
        "Check why its data directory was empty: its disk may not be mounted, or may not be kept.",
        "{} nodes lost their data",
    ),
    "members-few": _info("Add members (`qq member add`): three voters tolerate the failure of one."),
    "members-even": _info(
        "Use an odd number of members (3, 5 or 7): an even number tolerates no more failures."
    ),
    "member-awaited": _info(
        "Start it with `qq serve --join`, or remove it (`qq member remove`).",
        "{} members have not connected yet",
    ),
    "member-learns": _info(
        "Wait until it has the log; if it does not vote then, `qq member promote`.",
        "{} members do not vote yet",
    ),
    "node-drained": _info("When the maintenance is over, `qq revive`.", "{} nodes are under maintenance"),
    "drain-forgotten": _warning(
        "If the maintenance is over, `qq revive`: until then one node less serves clients.",
        "{} nodes have been under maintenance for long",
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
        "Make room on the disk: publishers wait until more space is free than its limit.",
        "{} nodes are low on disk",
    ),
    "memory-alarm": _critical(
        "Have consumers acknowledge, or close connections, or give the node more memory (`memory_high_watermark`).",
        "{} nodes are short of memory",
    ),
    "disk-slow": _warning(
        "Confirms wait for it unless a majority has faster disks: check what else uses it, and whether it fails.",
        "{} nodes have slow disks",
    ),
    "loop-busy": _warning(
        "Check message rates, messages to very many queues, and other processes; spread clients over the nodes.",
        "{} nodes are busy",
    ),
    "network-slow": _warning("Check the network between the nodes, and nodes that are busy."),
    "limited-by": _info("If commits are too slow, make the part faster that takes most of the time."),
    "publishers-held": _info(
        "Raise the limit if publishers should publish more.", "{} limits hold publishers up"
    ),
    "publisher-throttled": _info(
        "Raise the limit if the client should publish more.", "{} publishers are held up for long"
    ),
    "client-reads-slowly": _warning(
        "Check the client: it is stuck, overloaded, or behind a slow network.", "{} clients read slowly"
    ),
    "logins-fail": _warning(
        "An application has a wrong password, or passwords are being guessed: the node's log names the users.",
        "logins fail at {} nodes",
    ),
    "shovel-idle": _warning(
        "Mend the reason, and restart the shovel if it does not try again by itself; or delete it.",
        "{} shovels move no messages",
    ),
    "tenant-heavy": _info("If other users suffer, set limits for this user (docs: limits)."),
    # Resources that are nearly used up
    "disk-full-soon": _warning(
        "Make room, or have consumers take queued messages.", "{} disks are nearly full"
    ),
    "memory-short-soon": _warning(
        "Soon publishers wait: check unacknowledged messages and connections.",
        "{} nodes are nearly short of memory",
    ),
    "descriptors-short": _warning("Raise the limit of open files of the service, or close connections."),
    "connections-short": _warning("Soon clients are refused: close connections, or raise the limit."),
    "certificate-ends": _warning(
        "Renew it; the node reads the file again by itself.", "{} certificates end soon"
    ),
    "certificate-ended": _critical(
        "Renew it now: clients or nodes that verify it refuse to connect.", "{} certificates have ended"
    ),
    "certificate-unreadable": _warning(
        "Mend the file; the node uses the certificate that it has read before.",
        "{} certificates cannot be read",
    ),
    # Queues
    "no-consumers": _warning(
        "Start its consumers, or delete the queue if it is not needed.", "{} queues have no consumers"
    ),
    "dead-letters-wait": _info(
        "Read them (`qq peek messages`); then send them back (`qq move messages --to-origin`), or purge the queue.",
        "dead letters wait in {} queues",
    ),
    "queue-grows": _warning(
        "Add consumers, or make them faster; set a max-length if old messages may go.", "{} queues grow"
    ),
    "consumers-slow": _warning(
        "Add consumers, or make them faster: they hold as many messages as their prefetch allows.",
        "{} queues have slow consumers",
    ),
    "prefetch-small": _info(
        "Raise the prefetch: consumers mostly wait for the next message to travel.",
        "{} queues have consumers with a small prefetch",
    ),
    "no-credit": _warning(
        "Check the client: it is stuck, or paused, or has forgotten to give credit.",
        "{} consumers have no credit",
    ),
    "unacked-long": _warning(
        "Check the consumer: it is stuck, or does not acknowledge.",
        "{} consumers have held a message for long",
    ),
    "group-silent": _warning(
        "If its job is gone, start it again, or return its messages: `qq close group --release`.",
        "{} groups hold leases, and are silent",
    ),
    "sink-silent": _warning(
        "If its writer is gone, start it again, or drop the messages: `qq close sink`.",
        "{} sinks hold uncommitted messages, and are silent",
    ),
    "sink-grows": _warning(
        "Check why its writer does not commit. A batch that takes long is no fault.",
        "{} sinks grow without a commit",
    ),
    "dead-letters": _warning(
        "Check why consumers reject messages or fail, and check the dead-letter queue.",
        "{} queues reject messages or deliver them too often",
    ),
    "dead-letters-stuck": _warning(
        "No queue takes them: bind a queue to the dead-letter exchange, or make room in the full queue.",
        "dead letters of {} queues fit in no queue",
    ),
    "publishes-refused": _warning(
        "The queue is full (`reject-publish`): add consumers, or raise its limit.",
        "{} full queues refuse messages",
    ),
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
    about: Sequence[str] = ()
    """The object that the subject names: its kind and its name, with the virtual host between them for a queue."""
    objects: int = 1
    """Number of objects; more than 1 if this finding counts the objects that are not listed."""

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
        self._dated_ms = 0
        """Time of the last call of `date`, in milliseconds since 1970."""

    def date(self, findings: Iterable[Finding], now_ms: int) -> list[Finding]:
        """Return the findings, each with the time at which it was first found.

        A finding that is missing for `KEPT_MS` is forgotten, and one of `ABSENCES` at once. Before a node knows the
        cluster's time, its own starts at 0; then the findings are returned unchanged.
        """
        if now_ms < TIME_MIN_MS:
            return list(findings)
        dated: list[Finding] = []
        for finding in findings:
            key = finding.code, finding.subject
            since_ms, last_ms = self._known.get(key, (now_ms, now_ms))
            missing_ms = now_ms - last_ms  # the cluster's time jumps after all nodes were down
            if missing_ms > KEPT_MS or (finding.code in ABSENCES and last_ms < self._dated_ms):
                since_ms = now_ms
            self._known[key] = since_ms, now_ms
            dated.append(finding if finding.since_ms is not None else finding._replace(since_ms=since_ms))
        self._known = {key: times for key, times in self._known.items() if now_ms - times[1] <= KEPT_MS}
        self._dated_ms = now_ms
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
                "since": None if each.since_ms is None else utc(each.since_ms),
                "object": _object(each),
            }
            for each in diagnosis.findings
        ],
        "groups": [_group(diagnosis.findings, places) for places in _places_by_kind(diagnosis.findings)],
    }


def _object(finding: Finding) -> dict[str, str] | None:
    """Return kind, name and virtual host of a finding's object, or None if the finding has no single object."""
    match finding.about or finding.subject.partition(" ")[::2]:
        case [kind, vhost, name]:
            return {"kind": kind, "vhost": vhost, "name": name}
        case [("node" | "connection" | "user") as kind, name]:
            return {"kind": kind, "name": name}
        case _:
            return None


def _places_by_kind(findings: Sequence[Finding]) -> list[list[int]]:
    """Return the places of the findings of each group: of the same code, if its kind has a plural."""
    groups: dict[str, list[int]] = {}
    for place, each in enumerate(findings):
        groups.setdefault(each.code if KINDS[each.code].plural else str(place), []).append(place)
    return list(groups.values())


def _group(findings: Sequence[Finding], places: Sequence[int]) -> dict[str, Any]:
    first, count = findings[places[0]], sum(findings[place].objects for place in places)
    since = [since_ms for place in places if (since_ms := findings[place].since_ms) is not None]
    is_single = len(places) == 1
    return {
        "severity": first.severity.value,
        "code": first.code,
        "title": first.subject if is_single else KINDS[first.code].plural.format(f"{count:,}"),
        "advice": first.advice,
        "since": utc(min(since)) if since else None,
        "count": count,
        "findings": [place for place in places if is_single or findings[place].objects == 1],
    }


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a terminal shows for the JSON document: the verdict, and three lines per group.

    The names in findings may contain any character, so the caller must escape each line for the terminal.
    """
    yield document["verdict"]
    findings = document["findings"]
    # A node of an earlier release sends no groups.
    alone = [{**each, "title": each["subject"], "findings": [at]} for at, each in enumerate(findings)]
    for group in document.get("groups", alone):
        since = f", since {group['since']}" if group["since"] else ""
        members = [findings[place] for place in group["findings"]]
        yield f"{group['severity'].upper()} {group['code']}: {group['title']}{since}"
        yield f"    {members[0]['text'] if len(members) == 1 else _names(group, members)}"
        yield f"    -> {group['advice']}"


def _names(group: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    more = group["count"] - len(members)
    return ", ".join(map(_name, members)) + (f" and {more:,} more" if more else "")


def _name(finding: Mapping[str, Any]) -> str:
    """Return the name of the object that a finding is about, or its subject if that says more."""
    about, subject = finding["object"], finding["subject"]
    if about is None or not subject.startswith(about["kind"]):
        return subject
    vhost = about.get("vhost", "/")
    return about["name"] if vhost == "/" else f"{about['name']} (vhost {vhost})"


def decode_finding(row: Any) -> Finding | None:
    """Decode a finding that a node sent; return None if it is malformed or its code is unknown here."""
    match row:
        case [str(code), str(subject), str(text), int() | None as since_ms, *more] if code in KINDS:
            match more:
                case [[*about], *counts] if all(isinstance(each, str) for each in about):
                    objects = counts[0] if counts and type(counts[0]) is int and counts[0] > 0 else 1
                    return Finding(code, subject, text, since_ms, tuple(about), objects)
                case _:
                    return Finding(code, subject, text, since_ms)
        case _:
            return None
