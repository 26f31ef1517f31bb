"""Mutual authentication of two peers by a shared cluster secret, and the terms that both must agree on.

    dialler                                                   acceptor
    HELLO      cluster, own name, expected peer, nonce   -->
                                                         <--  CHALLENGE  cluster, own name, nonce
    PROOF      terms and HMAC of the dialler             -->
                                                         <--  WELCOME    terms and HMAC of the acceptor

A dialler that knows only an address leaves the expected name empty, and takes the name in the CHALLENGE. The proofs
cover that name as they cover an expected name.

Instead of its next message either side may send REJECT with a reason, so that both logs name the mistake.

A proof is HMAC-SHA256 over the sender's role, its terms and every byte that was sent before: both nonces, both names,
the cluster and the version. So it fits no other connection (fresh nonces), no other pair, not the other role. The
dialler proves itself first: a client that merely reaches the port gets no proof to try passwords against, and no terms.
REJECT is not authenticated: it can only end the attempt and put a text in the log.

While the secret is changed a node accepts two. A dialler proves that it knows the first of its own. An acceptor takes
either, and proves itself with the secret that the dialler has shown. Two nodes with a secret in common find it, because
a dialler whose secret is rejected tries its next secret on a new connection (peer_links.py).

Disagreeing terms do not spoil the authentication: each side then knows the other's terms, reports the difference and
ends the attempt. The acceptor sends its WELCOME before it does.

Two versions of these messages are spoken, because the nodes of a cluster are upgraded one at a time. All messages of a
conversation have the version of its HELLO. A dialler whose version is rejected begins again with the earlier version
(peer_links.py).

Invariant: before the proof, only these messages are parsed, and at most a single message is buffered. The caller
supplies every nonce, and uses it once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from cluster.configuration.configuration import ID_BYTES, Versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.runtime.ports import Buffer

MAGIC = b"qqPL"
VERSIONS = (3, 4)
"""The spoken versions of these messages; a dialler begins with the last version.

The terms of version 3 have no ids and no range of versions: the program of release 0.1 knows a single state version,
and is told the agreed version. In version 3 a dialler must expect a name. A node of a cluster with an id never speaks
version 3. No program of release 0.1 can belong to such a cluster. A node of it that an injected REJECT has talked into
version 3 would not be recognized as a member.
"""
NAME_BYTES_MAX = 64
NONCE_BYTES = 32
PROCESS_BYTES = 16
NO_ID = bytes(ID_BYTES)
"""Stands in place of an id if there is none."""
UNNAMED = b"\xff" * ID_BYTES
"""Stands in place of the cluster's id if the node has a log without a configuration."""

_DIALLER = b"qq peer link: proof of the dialler"
_ACCEPTOR = b"qq peer link: proof of the acceptor"

# Magic, version and kind open every message of every version, and REJECT keeps its layout for ever. So a peer of any
# version can read the rejection.
_HEADER = Struct("<4sHB")
_HELLO = Struct("<4sHB64s64s64s32s")
_CHALLENGE = Struct("<4sHB64s64s32s")
_TERMS = {
    3: Struct(f"<32sHI{PROCESS_BYTES}s"),
    4: Struct(f"<32sHI{PROCESS_BYTES}sHH{ID_BYTES}s{ID_BYTES}s"),
}
_PROOF = {version: Struct(f"<4sHB{terms.size}s32s") for version, terms in _TERMS.items()}
_REJECT = Struct("<4sHBB")

MESSAGE_BYTES_MAX = _HELLO.size
_ANYBODY = bytes(NAME_BYTES_MAX)
"""Stands in place of the expected name if the dialler does not know it."""


class _MessageKind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REJECT = 5


_LAYOUTS = {
    version: {
        _MessageKind.HELLO: _HELLO,
        _MessageKind.CHALLENGE: _CHALLENGE,
        _MessageKind.PROOF: proof,
        _MessageKind.WELCOME: proof,
        _MessageKind.REJECT: _REJECT,
    }
    for version, proof in _PROOF.items()
}


class HandshakeError(Exception):
    """Raised when the handshake must end; `reply` is the message to send before closing, and may be empty."""

    reason: ClassVar[int] = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.reply = (
            _REJECT.pack(MAGIC, VERSIONS[-1], _MessageKind.REJECT, self.reason) if self.reason else b""
        )


class WrongClusterError(HandshakeError):
    reason: ClassVar[int] = 1


class WrongSecretError(HandshakeError):
    reason: ClassVar[int] = 2


class UnknownNodeError(HandshakeError):
    reason: ClassVar[int] = 3


class VersionMismatchError(HandshakeError):
    reason: ClassVar[int] = 4


class OwnNameError(HandshakeError):
    """The dialler has reached itself, or another node with its name; the acceptor is not at fault."""


class GarbageError(HandshakeError):
    """The received bytes are not this protocol; they get no answer."""


class RejectedError(HandshakeError):
    """The peer sent REJECT; `cause` is the type of the error that the peer met."""

    def __init__(self, text: str, cause: type[HandshakeError]) -> None:
        super().__init__(text)
        self.cause = cause


class DisagreementError(HandshakeError):
    """The peer has proved its identity, but the two nodes must not work together."""


class OtherMembersError(DisagreementError):
    """The peer has a different list of members, so it would count a different majority."""

    reason: ClassVar[int] = 5


class OtherStateVersionError(DisagreementError):
    """The peer has a different version of the state, so it would apply the log differently."""

    reason: ClassVar[int] = 6


class SecondProcessError(DisagreementError):
    """A different process with the peer's name is connected already."""

    reason: ClassVar[int] = 7


class OtherDirectoryError(SecondProcessError):
    """A process with the member's data directory is connected, and the peer has a different directory."""

    reason: ClassVar[int] = 13


class OtherClusterError(DisagreementError):
    """The peer is a member of a different cluster, which has the same name and secret."""

    reason: ClassVar[int] = 8


# Reasons 9 and 10 rejected directories of non-members, before such nodes were accepted.


class AlreadyLinkedError(HandshakeError):
    """A working connection with this process exists already; neither side is at fault."""

    reason: ClassVar[int] = 11


class TooManyNonMembersError(DisagreementError):
    """All slots of connected non-members are taken."""

    reason: ClassVar[int] = 12


_REJECTIONS: dict[int, tuple[type[HandshakeError], str]] = {
    WrongClusterError.reason: (WrongClusterError, "it belongs to another cluster"),
    WrongSecretError.reason: (WrongSecretError, "its cluster secret differs"),
    UnknownNodeError.reason: (UnknownNodeError, "the node names do not fit its configuration"),
    VersionMismatchError.reason: (VersionMismatchError, "it speaks another version of the peer protocol"),
    OtherMembersError.reason: (OtherMembersError, "it has another list of members"),
    OtherStateVersionError.reason: (OtherStateVersionError, "it runs another version of the state"),
    SecondProcessError.reason: (
        SecondProcessError,
        "another process with this node's name is connected to it; stop one of the two",
    ),
    OtherDirectoryError.reason: (
        OtherDirectoryError,
        "the member with this name is connected to it, and has another data directory; stop this process or rename it",
    ),
    OtherClusterError.reason: (OtherClusterError, "it belongs to another cluster of the same name"),
    AlreadyLinkedError.reason: (AlreadyLinkedError, "it has a connection with this node already"),
    TooManyNonMembersError.reason: (
        TooManyNonMembersError,
        "too many nodes are connected to it that are no members of the cluster",
    ),
}


class Terms(NamedTuple):
    """The facts about a node that its proof covers: cluster, data directory, process and versions."""

    members_digest: bytes
    members_count: int
    state_version: int
    """The version of the state that this node's log has agreed on."""
    process: bytes
    """A random name of this process: two processes must not be counted under the same node name."""
    versions: Versions
    """The versions of the state that the node's program can run."""
    cluster: bytes = NO_ID
    """The id of the log's cluster: `UNNAMED` if it has no id yet, `NO_ID` if the node belongs to no cluster."""
    member: bytes = NO_ID
    """The id of the node's data directory; `NO_ID` from a node of release 0.1."""

    @property
    def is_named(self) -> bool:
        """Whether the node belongs to a cluster that has an id."""
        return self.cluster not in (NO_ID, UNNAMED)

    def is_foreign_to(self, other: Terms) -> bool:
        """Return whether these two nodes belong to different clusters, by their logs."""
        return self.is_named and other.is_named and self.cluster != other.cluster

    @classmethod
    def of(
        cls,
        members: Iterable[str],
        state_version: int,
        process: bytes,
        versions: Versions | None = None,
        cluster: bytes = NO_ID,
        member: bytes = NO_ID,
    ) -> Self:
        """Make the terms of a node; `members` are the names of all nodes of the cluster, in any order."""
        names = sorted(members)
        digest = sha256(b"".join(map(_name_field, names))).digest()
        versions = versions or Versions(state_version, state_version)
        return cls(digest, len(names), state_version, process, versions, cluster, member)

    def packed(self, version: int) -> bytes:
        """Return these terms encoded for a message of this version."""
        common = (self.members_digest, self.members_count, self.state_version, self.process)
        if version == VERSIONS[0]:
            return _TERMS[version].pack(*common)
        return _TERMS[version].pack(*common, *self.versions, self.cluster, self.member)

    @classmethod
    def unpacked(cls, data: bytes, version: int) -> Self:
        """Decode the terms in a message of this version."""
        digest, count, state_version, process, *more = _TERMS[version].unpack(data)
        if not more:
            return cls(digest, count, state_version, process, Versions(state_version, state_version))
        low, high, cluster, member = more
        return cls(digest, count, state_version, process, Versions(low, high), cluster, member)


def disagreement(own: Terms, peer: str, theirs: Terms) -> DisagreementError | None:
    """Return why two nodes must not work together, or None.

    A node whose program cannot run the agreed version of the other's log would acknowledge entries that it applies
    differently. As long as neither log has a configuration, votes and acknowledgements count by the list in each node's
    file. So a node with a different list would make a second majority.
    """
    if own.is_foreign_to(theirs):
        return OtherClusterError(
            f"node {peer!r} belongs to another cluster, which has the same name and secret: "
            "its data directory is not of this cluster"
        )
    if not (own.is_named or theirs.is_named) and theirs[:2] != own[:2]:
        return OtherMembersError(
            f"node {peer!r} has another list of members ({theirs.members_count} names) than this node "
            f"({own.members_count}): put the same list into the configuration of all nodes"
        )
    if not (theirs.versions.include(own.state_version) and own.versions.include(theirs.state_version)):
        return OtherStateVersionError(
            f"node {peer!r} is at version {theirs.state_version} of the state and can run {theirs.versions}, this node "
            f"is at {own.state_version} and can run {own.versions}: start a program on both that can run both"
        )
    return None


WhyRejected = Callable[[str, Terms], HandshakeError | None]


class Credentials(NamedTuple):
    """The identity of this node: its own name, and the cluster name and secrets that all nodes share."""

    cluster: str
    node: str
    secrets: tuple[bytes, ...]
    """The secrets that the node accepts now: one, or two while the secret is changed."""
    terms: Terms


class Handshake:
    """The common part of both roles: collects a message at a time, and detects bytes that are no message."""

    def __init__(self, identity: Credentials, nonce: bytes, awaited: _MessageKind) -> None:
        if not identity.secrets or not all(identity.secrets):
            raise ValueError("the cluster secret is empty")
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        self.authenticated = False
        self.peer = ""
        """The name of the peer; to be believed once `authenticated`."""
        self.rest = b""
        """Bytes that have arrived after the last message: they begin the first frames."""
        self.version = VERSIONS[-1]
        """The version of the messages of this conversation; an acceptor takes the version of the HELLO."""
        self.terms: Terms | None = None
        """The terms of the peer; None until the peer has proved its identity."""
        self._versions = VERSIONS[1:] if identity.terms.is_named else VERSIONS
        """The versions of the handshake that this node speaks."""
        self._secrets = identity.secrets
        """The secrets that a proof may use; after the first proof only the secret of that proof."""
        self._terms = identity.terms
        self._cluster = _name_field(identity.cluster)
        self._node = _name_field(identity.node)
        self._nonce = nonce
        self._awaited = awaited
        self._inbox = bytearray()
        self._transcript = b""

    def opening(self) -> bytes:
        """Return the bytes to send as soon as the connection stands."""
        return b""

    def receive(self, data: Buffer) -> bytes:
        """Take in received bytes and return the bytes to send. Must not be called again after a `HandshakeError`."""
        if self.authenticated:
            raise RuntimeError("the handshake is over")
        self._inbox += data
        message = self._next_message()
        return b"" if message is None else self._answer(message)

    def _answer(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _next_message(self) -> bytes | None:
        """Return the next message when it is complete, None before; raises at the first byte that does not fit."""
        inbox = self._inbox
        if not MAGIC.startswith(inbox[: len(MAGIC)]):
            raise GarbageError("this is not a qq peer")
        if len(inbox) < _HEADER.size:
            return None
        _, version, kind = _HEADER.unpack_from(inbox)
        if kind != _MessageKind.REJECT:
            self._check_header(version, kind)
        size = _LAYOUTS[self.version][_MessageKind(kind)].size
        if len(inbox) < size:
            return None
        message, self.rest = bytes(inbox[:size]), bytes(inbox[size:])
        inbox.clear()
        if kind == _MessageKind.REJECT:
            raise self._rejection(message)
        if self.rest and kind != _MessageKind.WELCOME:
            raise GarbageError("the peer talks on without waiting for an answer")
        return message

    def _check_header(self, version: int, kind: int) -> None:
        if self._awaited is _MessageKind.HELLO and version in self._versions:
            self.version = version
        if version != self.version:
            raise VersionMismatchError(
                f"the peer speaks version {version} of the protocol, {self._spoken_here(version)}"
            )
        if kind != self._awaited:
            raise GarbageError(f"peer message {kind} where {self._awaited.name} is due")

    def _rejection(self, message: bytes) -> HandshakeError:
        _, version, _, reason = _REJECT.unpack(message)
        if reason not in _REJECTIONS:
            return GarbageError(f"the peer rejects this node for the unknown reason {reason}")
        cause, text = _REJECTIONS[reason]
        if cause is VersionMismatchError:
            text = f"{text}: {version}, {self._spoken_here(version)}"
        return RejectedError(f"the peer rejects this node: {text}", cause)

    def _spoken_here(self, version: int) -> str:
        """Return the versions that this node speaks, for a peer of an unsupported version."""
        text = f"this node {' and '.join(map(str, self._versions))}"
        if version in VERSIONS and version not in self._versions:
            text += " since the cluster has an id: start this release there"
        return text

    def _check_cluster(self, cluster: bytes) -> None:
        if cluster != self._cluster:
            raise WrongClusterError(
                f"the peer belongs to cluster {_shown(cluster)}, this node to {_shown(self._cluster)}"
            )

    def _prove_self(self, kind: _MessageKind, role: bytes) -> bytes:
        """Return the message with this node's terms and their proof."""
        self._secrets = self._secrets[:1]
        terms = self._terms.packed(self.version)
        message = _PROOF[self.version].pack(
            MAGIC, self.version, kind, terms, self._hmac(self._secrets[0], role, terms)
        )
        self._transcript += message
        return message

    def _hmac(self, secret: bytes, role: bytes, terms: bytes) -> bytes:
        return hmac.digest(secret, role + self._transcript + terms, "sha256")

    def _check_proof(self, message: bytes, role: bytes) -> Terms:
        """Return the terms of the peer. Raises WrongSecretError if the proof does not fit them."""
        _, _, _, terms, proof = _PROOF[self.version].unpack(message)
        proved = [
            secret for secret in self._secrets if hmac.compare_digest(proof, self._hmac(secret, role, terms))
        ]
        if not proved:
            raise WrongSecretError(f"node {self.peer!r} has proved no secret that this node accepts")
        self._secrets = tuple(proved)
        self._transcript += message
        theirs = self.terms = Terms.unpacked(terms, self.version)
        return theirs


class DiallerHandshake(Handshake):
    """The side that opened the connection, to an expected peer or to any node.

    `why_rejected(name, terms)` is called after the peer has proved the secret. It returns the reason to reject the
    peer, or None.
    """

    def __init__(
        self,
        identity: Credentials,
        expected_peer: str | None,
        nonce: bytes,
        why_rejected: WhyRejected,
        version: int = VERSIONS[-1],
    ) -> None:
        """Without an `expected_peer` any node may answer, which only the last version of the messages allows."""
        super().__init__(identity, nonce, _MessageKind.CHALLENGE)
        if expected_peer is None and version == VERSIONS[0]:
            raise ValueError(f"version {version} of the handshake wants the name of a peer")
        self.peer = expected_peer or ""
        self.version = version
        self._expected = _ANYBODY if expected_peer is None else _name_field(expected_peer)
        self._why_rejected = why_rejected

    def opening(self) -> bytes:
        hello = _HELLO.pack(
            MAGIC, self.version, _MessageKind.HELLO, self._cluster, self._node, self._expected, self._nonce
        )
        self._transcript = hello
        return hello

    def _answer(self, message: bytes) -> bytes:
        if self._awaited is _MessageKind.CHALLENGE:
            return self._prove(message)
        theirs = self._check_proof(message, _ACCEPTOR)
        error = disagreement(self._terms, self.peer, theirs) or self._why_rejected(self.peer, theirs)
        if error is not None:
            error.reply = b""  # the acceptor has found the same error, or takes further bytes for a frame
            raise error
        self.authenticated = True
        return b""

    def _prove(self, challenge: bytes) -> bytes:
        _, _, _, cluster, node, _ = _CHALLENGE.unpack(challenge)
        self._check_cluster(cluster)
        if self._expected == _ANYBODY:
            self.peer = _named(node)
            if node == self._node:
                raise OwnNameError(f"node {self.peer!r} answers there, which is the name of this node")
        elif node != self._expected:
            raise UnknownNodeError(f"node {_shown(node)} answers where {self.peer!r} is expected")
        self._transcript += challenge
        self._awaited = _MessageKind.WELCOME
        return self._prove_self(_MessageKind.PROOF, _DIALLER)


class AcceptorHandshake(Handshake):
    """The side that listens.

    `why_rejected(name, terms)` is called after the peer has proved the secret. It returns the reason to reject the
    peer, or None.
    """

    def __init__(self, identity: Credentials, nonce: bytes, why_rejected: WhyRejected) -> None:
        super().__init__(identity, nonce, _MessageKind.HELLO)
        self._why_rejected = why_rejected

    def _answer(self, message: bytes) -> bytes:
        if self._awaited is _MessageKind.HELLO:
            return self._challenge(message)
        theirs = self._check_proof(message, _DIALLER)
        welcome = self._prove_self(_MessageKind.WELCOME, _ACCEPTOR)
        error = disagreement(self._terms, self.peer, theirs)
        if error is not None:
            error.reply = welcome
            raise error
        refusal = self._why_rejected(self.peer, theirs)
        if refusal is not None:
            raise refusal
        self.authenticated = True
        return welcome

    def _challenge(self, hello: bytes) -> bytes:
        _, _, _, cluster, node, expected, _ = _HELLO.unpack(hello)
        self._check_cluster(cluster)
        if expected != self._node and (expected != _ANYBODY or self.version == VERSIONS[0]):
            raise UnknownNodeError(
                f"node {_shown(node)} looks for {_shown(expected)} at {_shown(self._node)}"
            )
        self.peer = _named(node)
        challenge = _CHALLENGE.pack(
            MAGIC, self.version, _MessageKind.CHALLENGE, self._cluster, self._node, self._nonce
        )
        self._transcript = hello + challenge
        self._awaited = _MessageKind.PROOF
        return challenge


def _name_field(name: str) -> bytes:
    """Encode a name for a message: UTF-8 padded with zero bytes, exactly one form per name."""
    encoded = name.encode()
    if not 1 <= len(encoded) <= NAME_BYTES_MAX or b"\0" in encoded:
        raise ValueError(f"a node or cluster name has 1 to {NAME_BYTES_MAX} bytes and no zero byte: {name!r}")
    return encoded.ljust(NAME_BYTES_MAX, b"\0")


def _named(field: bytes) -> str:
    """Decode the name in a field. Raises UnknownNodeError if it is not a valid name."""
    try:
        name = field.rstrip(b"\0").decode()
        if _name_field(name) == field:
            return name
    except ValueError:
        pass
    raise UnknownNodeError(f"{_shown(field)} is not the name of a node")


def _shown(field: bytes) -> str:
    """Make an unauthenticated peer's name fit for the log: harmless and short."""
    return repr(field.rstrip(b"\0").decode(errors="replace"))
