"""The configuration of a cluster: members, addresses, voters, and the agreed version of the state.

A configuration is an entry of the log and a part of every checkpoint, so all nodes see the same sequence of
configurations. It changes by single steps (Raft thesis, 4.1). Two configurations in sequence differ by a single voter
at most, so a majority of the first and a majority of the second always share a voter.

A member is identified by its *id*, which is created with its data directory and never used again. Promises of a data
directory do not bind a new directory, even under the same name. Names and addresses may change. A member without a
known id is *pending* (error texts: awaited): the first directory that arrives under its name becomes the member.

    entry = type u8 0xC1 | format u8 | time_ms u64 | msgpack of (cluster, version, members, removed)

Invariant: a configuration is immutable. A step that was taken already has no effect, so a client that does not know the
outcome of a command may repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgpack

from cluster.configuration.quorum import Membership
from cluster.log.segment import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIGURATION = 0xC1
"""The first byte of an entry that holds a configuration."""
FORMAT_VERSION = 1
ID_BYTES = 16
COUNT_MAX = 2**63 - 1
"""The highest number that a peer may send. It leaves room for additions in fields of 64 bits."""
PORT_MAX = 65_535
HOST_MAX = 255
"""Characters of a host name or address at most (RFC 1035, section 2.3.4)."""
MEMBERS_MAX = 7
"""Members of a cluster at most. Every entry goes to every member, so more members would cost speed and add no
safety."""
NOBODY = b""
"""Stands for the id of a member that was removed before its directory arrived."""
REMOVED_MAX = 100
"""Removed members that a configuration remembers, so that the cluster can tell them of their removal."""

_HEAD = Struct("<BBQ")
_FIRST_BYTE = bytes([CONFIGURATION])


class OtherVersion(JournalError):
    """The log has agreed on a version of the state that this program cannot run."""

    def __init__(self, directory: str, found: int | None, versions: Versions) -> None:
        log_at = "an earlier version than any known here" if found is None else f"version {found}"
        self.what = (
            f"the log is at {log_at} of the state, and this program can run {versions}: start one that can"
        )
        super().__init__(f"{directory}: {self.what}")


class MembershipRefused(Exception):
    """The change of the members is refused, and the configuration is unchanged.

    The text has the reason and a remedy.
    """


class MalformedConfiguration(ValueError):
    """The bytes are not an entry with a configuration of this format."""


class Versions(NamedTuple):
    """The versions of the state that a program can run, both included."""

    low: int
    high: int

    def include(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


class PeerAddress(NamedTuple):
    """The address at which the other nodes reach a member."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        return f"{host}:{self.port}"


def host_problem(host: str) -> str | None:
    """Return the problem with a host name or address, or None if it can be looked up.

    Members dial every address in the log. So a file, a request or a peer with an invalid host must be refused before
    that.
    """
    if not (0 < len(host) <= HOST_MAX and host.isprintable()) or " " in host:
        return f"must have 1 to {HOST_MAX} characters, without blanks"
    try:
        host.encode("idna")
    except UnicodeError:
        return "is no host name: between its dots there are 1 to 63 characters"
    return None


class Removed(NamedTuple):
    """A former member of the cluster, which was removed or replaced."""

    id: bytes
    name: str


class MemberId(NamedTuple):
    """A member, as it counts for votes: its name together with the id of its data directory."""

    name: str
    directory: bytes


@dataclass(frozen=True)
class Member:
    """A member of a cluster."""

    name: str
    address: PeerAddress
    id: bytes | None = None
    """`ID_BYTES` that identify its data directory; None while the member is pending."""
    is_voter: bool = True
    """Whether the member votes and counts for majorities. A learner only receives the log."""
    versions: Versions | None = None
    """The versions that the member's program can run, as last reported; None before the first report."""
    is_drained: bool = False
    """Whether the member is under maintenance. It gets no new clients, and leads only if no other member can."""
    lost_ms: int | None = None
    """The cluster's time in ms when its last data directory was lost or replaced; None if that is not known."""


@dataclass(frozen=True)
class Configuration:
    """The members of a cluster with their addresses and votes, and the agreed version of the state."""

    cluster: bytes
    """`ID_BYTES` that identify the cluster; empty before the first configuration is in the log."""
    version: int
    """Version of the state, which defines the effect of the entries after this configuration."""
    members: tuple[Member, ...]
    """Members, ordered by name. Names, ids and addresses are each unique."""
    removed: tuple[Removed, ...] = ()
    """Members that were removed or replaced last, oldest first."""

    @classmethod
    def of(cls, version: int, members: Iterable[Member], cluster: bytes = b"") -> Configuration:
        return cls(cluster, version, _sorted(members))

    @cached_property
    def membership(self) -> Membership:
        """The names of the voters and the learners."""
        voters = frozenset(member.name for member in self.members if member.is_voter)
        return Membership(voters, frozenset(member.name for member in self.members) - voters)

    def member(self, name: str) -> Member | None:
        """Return the member with this name, or `None`."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def has(self, name: str, member_id: bytes) -> bool:
        """Return whether this data directory is the member with this name.

        Before the first configuration in the log, directory ids are unknown, and the names in the nodes' files count.
        """
        member = self.member(name)
        return member is not None and (member.id == member_id or not self.cluster)

    def has_voter(self, name: str, member_id: bytes) -> bool:
        """Return whether this data directory is the member with this name, and votes."""
        return name in self.membership.voters and self.has(name, member_id)

    def clocks(self, name: str, member_id: bytes) -> int:
        """Return the number of voters whose clocks set this directory's time; 0 if the directory is no voter.

        A node that is no voter takes the time from the entries.
        """
        return len(self.membership.voters) if self.has_voter(name, member_id) else 0

    def is_removed(self, member_id: bytes) -> bool:
        """Return whether this data directory belonged to a member and was removed."""
        return any(removed.id == member_id for removed in self.removed)

    def was_removed(self, name: str) -> bool:
        """Return whether a member with this name was removed, and the name is free now."""
        return self.member(name) is None and any(removed.name == name for removed in self.removed)

    def is_gone(self, name: str, member_id: bytes) -> bool:
        """Return whether this directory was removed. With id `NOBODY`, the pending member of this name is meant."""
        if member_id != NOBODY:
            return self.is_removed(member_id)
        return self.member(name) is None and Removed(NOBODY, name) in self.removed

    # Steps. Each returns the configuration after the step, or this configuration if the step was taken before. A step
    # that is not allowed raises MembershipRefused.

    def joined(self, name: str, member_id: bytes, address: PeerAddress, versions: Versions) -> Configuration:
        """Admit a directory: a new name becomes a learner, and the directory of a pending member becomes that member.

        For an existing member, record the versions that its program can run.
        """
        self._check_directory(name, member_id, versions)
        known = self.member(name)
        if known is None:
            return self._with(Member(name, address, member_id, is_voter=False, versions=versions))
        if known.id not in (None, member_id):
            raise MembershipRefused(
                f"there is a member {name!r} with another data directory: if that is lost, replace it "
                f"(`qq member replace {name}`), else choose another name"
            )
        return self._with(
            replace(known, id=member_id, address=known.address if known.id else address, versions=versions)
        )

    def readdressed(self, addresses: Mapping[str, PeerAddress]) -> Configuration:
        """Set new addresses of members in a single step, because a member may move to a second member's old address."""
        return self._with(*(replace(self._known(name), address=each) for name, each in addresses.items()))

    def added(self, name: str, address: PeerAddress, member_id: bytes) -> Configuration:
        """Admit the directory that answered at this address as a learner. It reports its versions later.

        A removed directory is refused, because the request is older than the removal.
        """
        known = self.member(name)
        if known is None:
            self._check_id(name, member_id)
            return self._with(Member(name, address, member_id, is_voter=False))
        if known.address == address:
            return self
        raise MembershipRefused(
            f"there is a member {name!r} at {known.address}; to move it to {address}, start it there"
        )

    def promoted(self, name: str) -> Configuration:
        """Make a learner a voter."""
        known = self._known(name)
        if known.id is None:
            raise MembershipRefused(
                f"member {name!r} is still awaited: it votes when it has come and has the log"
            )
        return self._with(replace(known, is_voter=True))

    def without(self, name: str, member_id: bytes) -> Configuration:
        """Remove the member with this name and directory, alive or dead. `NOBODY` is the id of a pending member.

        A repeated request has no effect, even after the name has returned with a new directory.
        """
        if self.is_gone(name, member_id):
            return self
        known = self._known(name, member_id)
        voters = self.membership.voters - {name}
        if known.is_voter and len(voters) < 2:
            raise MembershipRefused(
                f"without {name!r} the cluster would have {len(voters)} voting member: add another one first"
            )
        members = [member for member in self.members if member is not known]
        return replace(self, members=tuple(members), removed=self._removed_with(known))

    def vacated(self, name: str, member_id: bytes) -> Configuration:
        """Replace the lost directory of a member: the member becomes pending, and a learner."""
        if self.is_gone(name, member_id):
            return self
        known = self._known(name, member_id)
        if known.id is None:
            return self
        if self.membership.voters == frozenset([name]):
            raise MembershipRefused(f"{name!r} is the only voting member: nobody else has what it had")
        awaited = replace(known, id=None, is_voter=False, versions=None)
        return replace(self._with(awaited), removed=self._removed_with(known))

    def drained(self, name: str, *, is_drained: bool) -> Configuration:
        """Begin or end the maintenance of a member."""
        return self._with(replace(self._known(name), is_drained=is_drained))

    def dated(self, before: Configuration, time_ms: int) -> Configuration:
        """Return this configuration, with `time_ms` as the time of each loss of a directory since `before`."""
        lost = [
            replace(member, lost_ms=time_ms)
            for member in self.members
            if member.id is None and (was := before.member(member.name)) is not None and was.id is not None
        ]
        return self._with(*lost)

    def raised(self, version: int, cluster: bytes) -> Configuration:
        """Raise the version of the state by 1, which every member can run.

        The first raise sets the cluster's id.
        """
        if version == self.version:
            return self
        if version != self.version + 1:
            raise MembershipRefused(
                f"the state goes from version {self.version} to {self.version + 1}, not to {version}"
            )
        for member in self.members:
            if member.versions is None:
                raise MembershipRefused(
                    f"it is not known which versions of the state node {member.name!r} can run"
                )
            if member.versions.high < version:
                raise MembershipRefused(
                    f"node {member.name!r} runs a program for versions {member.versions} of the state: "
                    "start a newer one there first"
                )
        return replace(self, version=version, cluster=self.cluster or cluster)

    def _known(self, name: str, member_id: bytes | None = None) -> Member:
        """Return the member with this name. Raises MembershipRefused if it is missing, or has a different directory."""
        known = self.member(name)
        if known is None:
            names = ", ".join(member.name for member in self.members)
            raise MembershipRefused(f"there is no member {name!r}; the members are {names}")
        if member_id is not None and member_id != (known.id or NOBODY):
            raise MembershipRefused(
                f"member {name!r} has another data directory by now: look at the members (`qq member list`)"
            )
        return known

    def _check_directory(self, name: str, member_id: bytes, versions: Versions) -> None:
        """Refuse a directory as `_check_id` does, or because its program is too old or too new."""
        if not versions.include(self.version):
            raise MembershipRefused(
                f"the cluster runs version {self.version} of the state, and the program of node {name!r} can run "
                f"{versions}"
            )
        self._check_id(name, member_id)

    def _check_id(self, name: str, member_id: bytes) -> None:
        """Refuse a directory without an id, and a directory that belongs to a second member or was removed."""
        if not _is_id(member_id):
            raise MembershipRefused(f"the request to add node {name!r} does not name its data directory")
        if self.is_removed(member_id):
            raise MembershipRefused(
                f"the data directory of node {name!r} was a member and has been removed: start with an empty one"
            )
        same = next((member for member in self.members if member.id == member_id), None)
        if same is not None and same.name != name:
            raise MembershipRefused(
                f"this data directory is member {same.name!r}: its name cannot change to {name!r}"
            )

    def _with(self, *new: Member) -> Configuration:
        """Return the configuration with these members.

        A member replaces the previous member of the same name, if any.
        """
        names = {member.name for member in new}
        members = [member for member in self.members if member.name not in names]
        for member in new:
            name, address = member.name, member.address
            problem = host_problem(address.host)
            if problem is not None:
                raise MembershipRefused(f"the host {address.host!r} of node {name!r} {problem}")
            holder = next((other.name for other in members if other.address == address), None)
            if holder is not None:
                raise MembershipRefused(
                    f"{address} is the address of member {holder!r}, so {name!r} cannot be there"
                )
            members.append(member)
        if len(members) > MEMBERS_MAX:
            raise MembershipRefused(f"a cluster has {MEMBERS_MAX} members at most: remove one first")
        after = _sorted(members)
        return self if after == self.members else replace(self, members=after)

    def _removed_with(self, member: Member) -> tuple[Removed, ...]:
        """Return the removed members including this member.

        Beyond `REMOVED_MAX`, the oldest removal of the most frequent name is forgotten. So a node that loses its
        directory at each start cannot displace removals of other names.
        """
        removed = [*self.removed, Removed(member.id or NOBODY, member.name)]
        if len(removed) > REMOVED_MAX:
            names = [each.name for each in removed]
            del removed[names.index(max(names, key=names.count))]
        return tuple(removed)


def fields_of(configuration: Configuration) -> Any:
    """Return the configuration as a list of fields that msgpack can pack.

    A member without a time of loss has no such field, because programs before version 11 of the state cannot read it.
    """
    members = [
        (
            member.name,
            member.id,
            member.address.host,
            member.address.port,
            member.is_voter,
            member.versions,
            member.is_drained,
            *([] if member.lost_ms is None else [member.lost_ms]),
        )
        for member in configuration.members
    ]
    return configuration.cluster, configuration.version, members, configuration.removed


def configuration_from(fields: Any) -> Configuration:
    """Return the configuration from the unpacked result of `fields_of`. Raises MalformedConfiguration."""
    try:
        cluster, version, members, removed = fields
        rows = tuple(map(_read_member, members)), tuple(map(_read_removed, removed))
        _check(_is_id(cluster) or cluster == b"", is_count(version))
        return Configuration(cluster, version, *rows)
    except (ValueError, TypeError) as error:
        raise MalformedConfiguration(f"a configuration that cannot be read: {error}") from error


def make_configuration(time_ms: int, configuration: Configuration) -> bytes:
    """Return the log entry for a configuration."""
    return _HEAD.pack(CONFIGURATION, FORMAT_VERSION, time_ms) + cast(
        "bytes", msgpack.packb(fields_of(configuration))
    )


def is_configuration(entry: bytes) -> bool:
    return entry[:1] == _FIRST_BYTE


def configuration_time_ms(entry: bytes) -> int:
    """Return the cluster's time in ms when the entry was made."""
    return _HEAD.unpack_from(entry)[2]


def read_configuration(entry: bytes) -> Configuration:
    """Return the configuration in an entry. Raises MalformedConfiguration."""
    if len(entry) < _HEAD.size or _HEAD.unpack_from(entry)[:2] != (CONFIGURATION, FORMAT_VERSION):
        raise MalformedConfiguration(
            f"no configuration of format {FORMAT_VERSION} begins with {entry[:2].hex()}"
        )
    try:
        fields = msgpack.unpackb(entry[_HEAD.size :])
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedConfiguration(f"a configuration that cannot be read: {error}") from error
    return configuration_from(fields)


def _read_member(row: Any) -> Member:
    name, member_id, host, port, is_voter, versions, is_drained, *times = row
    lost_ms = None
    if times:
        (lost_ms,) = times
    _check(
        isinstance(name, str),
        member_id is None or _is_id(member_id),
        isinstance(host, str),
        is_count(port) and port <= PORT_MAX,
        isinstance(is_voter, bool),
        versions is None or all(map(is_count, versions)),
        isinstance(is_drained, bool),
        lost_ms is None or is_count(lost_ms),
    )
    return Member(
        name,
        PeerAddress(host, port),
        member_id,
        is_voter=is_voter,
        versions=None if versions is None else Versions(*versions),
        is_drained=is_drained,
        lost_ms=lost_ms,
    )


def _read_removed(row: Any) -> Removed:
    member_id, name = row
    _check(_is_id(member_id) or member_id == NOBODY, isinstance(name, str))
    return Removed(member_id, name)


def _check(*fields: bool) -> None:
    """Raise MalformedConfiguration unless all fields are valid."""
    if not all(fields):
        raise MalformedConfiguration(
            f"a configuration with a field {fields.index(False)} that it cannot have"
        )


def _is_id(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == ID_BYTES


def is_count(value: Any) -> bool:
    """Return whether `value` is a number from 0 to `COUNT_MAX`."""
    return isinstance(value, int) and 0 <= value <= COUNT_MAX


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=_name_of))


def _name_of(member: Member) -> str:
    return member.name
