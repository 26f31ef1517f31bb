"""Mutual authentication of two peers from a shared cluster secret.

Lives here: the five fixed-layout messages, who sends which when, and what is wrong with those of a stranger.
Sans-IO: bytes in, bytes out. Not here: sockets, time limits, the frames that follow (links.py), encryption.

    dialler                                                   acceptor
    HELLO      cluster, own name, expected peer, nonce   -->
                                                         <--  CHALLENGE  cluster, own name, nonce
    PROOF      HMAC of the dialler                       -->
                                                         <--  WELCOME    HMAC of the acceptor

Instead of its next message either side may send REJECT with a reason, so that both logs name the mistake.

A proof is HMAC-SHA256 over the sender's role and every byte of HELLO and CHALLENGE: both nonces, both names,
the cluster and the version. So it fits no other connection (fresh nonces), no other pair, not the other role.
The dialler proves itself first: whoever merely reaches the port gets nothing to try passwords against.
REJECT is not authenticated: it may end the attempt and put a text in the log, nothing else.

Law: nothing but these messages is parsed before the proof, no more than one message is ever kept, and every
nonce is given by the caller, used once.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from cluster.ports import Buffer

MAGIC = b"qqPL"
VERSION = 2
NAME_BYTES_MAX = 64
NONCE_BYTES = 32

_DIALLER = b"qq peer link: proof of the dialler"
_ACCEPTOR = b"qq peer link: proof of the acceptor"

# Magic, version and kind open every message of every version, and REJECT keeps its layout for ever: a peer of
# another version can be told so.
_HEADER = Struct("<4sHB")
_HELLO = Struct("<4sHB64s64s64s32s")
_CHALLENGE = Struct("<4sHB64s64s32s")
_PROOF = Struct("<4sHB32s")
_REJECT = Struct("<4sHBB")

MESSAGE_BYTES_MAX = _HELLO.size


class _Kind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REJECT = 5


_LAYOUTS = {
    _Kind.HELLO: _HELLO,
    _Kind.CHALLENGE: _CHALLENGE,
    _Kind.PROOF: _PROOF,
    _Kind.WELCOME: _PROOF,
    _Kind.REJECT: _REJECT,
}


class HandshakeError(Exception):
    """The other side is not the peer it should be. `reply` is what to send before closing; may be empty."""

    reason: ClassVar[int] = 0

    @property
    def reply(self) -> bytes:
        return _REJECT.pack(MAGIC, VERSION, _Kind.REJECT, self.reason)


class WrongClusterError(HandshakeError):
    reason: ClassVar[int] = 1


class WrongSecretError(HandshakeError):
    reason: ClassVar[int] = 2


class UnknownNodeError(HandshakeError):
    reason: ClassVar[int] = 3


class VersionMismatchError(HandshakeError):
    reason: ClassVar[int] = 4


class GarbageError(HandshakeError):
    """Not our protocol at all."""

    @property
    def reply(self) -> bytes:
        return b""


class RejectedError(HandshakeError):
    """The other side sent REJECT; `cause` is the type of error that it met."""

    def __init__(self, text: str, cause: type[HandshakeError]) -> None:
        super().__init__(text)
        self.cause = cause

    @property
    def reply(self) -> bytes:
        return b""


_REJECTIONS: dict[int, tuple[type[HandshakeError], str]] = {
    WrongClusterError.reason: (WrongClusterError, "it belongs to another cluster"),
    WrongSecretError.reason: (WrongSecretError, "its cluster secret differs"),
    UnknownNodeError.reason: (UnknownNodeError, "the node names do not fit its configuration"),
    VersionMismatchError.reason: (VersionMismatchError, "it speaks another version of the peer protocol"),
}


class Identity(NamedTuple):
    """Who this node is: the same cluster name and secret on every node, its own node name."""

    cluster: str
    node: str
    secret: bytes


class Handshake:
    """What both roles share: collecting one message at a time, and recognising what is none."""

    def __init__(self, identity: Identity, nonce: bytes, awaited: _Kind) -> None:
        if not identity.secret:
            raise ValueError("the cluster secret is empty")
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        self.authenticated = False
        self.peer = ""
        """The name of the other side; to be believed once `authenticated`."""
        self.rest = b""
        """What followed the last message: the first frames."""
        self._secret = identity.secret
        self._cluster = _name_field(identity.cluster)
        self._node = _name_field(identity.node)
        self._nonce = nonce
        self._awaited = awaited
        self._inbox = bytearray()
        self._transcript = b""

    def opening(self) -> bytes:
        """Return what to send as soon as the connection stands."""
        return b""

    def receive(self, data: Buffer) -> bytes:
        """Take what arrived; return what to send now. After a `HandshakeError` nothing more may be fed."""
        if self.authenticated:
            raise RuntimeError("the handshake is over")
        self._inbox += data
        message = self._next_message()
        return b"" if message is None else self._answer(message)

    def _answer(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _next_message(self) -> bytes | None:
        """Return the awaited message once it is complete; raise at the first byte that cannot be its."""
        inbox = self._inbox
        if not MAGIC.startswith(inbox[: len(MAGIC)]):
            raise GarbageError("this is not a qq peer")
        if len(inbox) < _HEADER.size:
            return None
        _, version, kind = _HEADER.unpack_from(inbox)
        if kind != _Kind.REJECT:
            self._check_header(version, kind)
        size = _LAYOUTS[_Kind(kind)].size
        if len(inbox) < size:
            return None
        message, self.rest = bytes(inbox[:size]), bytes(inbox[size:])
        inbox.clear()
        if kind == _Kind.REJECT:
            raise _rejection(message)
        if self.rest and kind != _Kind.WELCOME:
            raise GarbageError("the peer talks on without waiting for an answer")
        return message

    def _check_header(self, version: int, kind: int) -> None:
        if version != VERSION:
            raise VersionMismatchError(
                f"the peer speaks version {version} of the protocol, this node {VERSION}"
            )
        if kind != self._awaited:
            raise GarbageError(f"peer message {kind} where {self._awaited.name} is due")

    def _check_cluster(self, cluster: bytes) -> None:
        if cluster != self._cluster:
            raise WrongClusterError(
                f"the peer belongs to cluster {_shown(cluster)}, this node to {_shown(self._cluster)}"
            )

    def _proof(self, role: bytes) -> bytes:
        return hmac.digest(self._secret, role + self._transcript, "sha256")

    def _check_proof(self, message: bytes, role: bytes) -> None:
        proof: bytes = _PROOF.unpack(message)[3]
        if not hmac.compare_digest(proof, self._proof(role)):
            raise WrongSecretError(f"node {self.peer!r} does not know the secret of this cluster")
        self.authenticated = True


class DiallerHandshake(Handshake):
    """The side that opened the connection, to one expected peer."""

    def __init__(self, identity: Identity, expected_peer: str, nonce: bytes) -> None:
        super().__init__(identity, nonce, _Kind.CHALLENGE)
        self.peer = expected_peer
        self._expected = _name_field(expected_peer)

    def opening(self) -> bytes:
        hello = _HELLO.pack(
            MAGIC, VERSION, _Kind.HELLO, self._cluster, self._node, self._expected, self._nonce
        )
        self._transcript = hello
        return hello

    def _answer(self, message: bytes) -> bytes:
        if self._awaited is _Kind.CHALLENGE:
            return self._prove(message)
        self._check_proof(message, _ACCEPTOR)
        return b""

    def _prove(self, challenge: bytes) -> bytes:
        _, _, _, cluster, node, _ = _CHALLENGE.unpack(challenge)
        self._check_cluster(cluster)
        if node != self._expected:
            raise UnknownNodeError(f"node {_shown(node)} answers where {self.peer!r} is expected")
        self._transcript += challenge
        self._awaited = _Kind.WELCOME
        return _PROOF.pack(MAGIC, VERSION, _Kind.PROOF, self._proof(_DIALLER))


class AcceptorHandshake(Handshake):
    """The side that listens; only `callers` may dial it."""

    def __init__(self, identity: Identity, callers: Collection[str], nonce: bytes) -> None:
        super().__init__(identity, nonce, _Kind.HELLO)
        self._callers = {_name_field(name): name for name in callers}

    def _answer(self, message: bytes) -> bytes:
        if self._awaited is _Kind.HELLO:
            return self._challenge(message)
        self._check_proof(message, _DIALLER)
        return _PROOF.pack(MAGIC, VERSION, _Kind.WELCOME, self._proof(_ACCEPTOR))

    def _challenge(self, hello: bytes) -> bytes:
        _, _, _, cluster, node, expected, _ = _HELLO.unpack(hello)
        self._check_cluster(cluster)
        if expected != self._node:
            raise UnknownNodeError(
                f"node {_shown(node)} looks for {_shown(expected)} at {_shown(self._node)}"
            )
        if node not in self._callers:
            raise UnknownNodeError(f"node {_shown(node)} is no peer that dials {_shown(self._node)}")
        self.peer = self._callers[node]
        challenge = _CHALLENGE.pack(MAGIC, VERSION, _Kind.CHALLENGE, self._cluster, self._node, self._nonce)
        self._transcript = hello + challenge
        self._awaited = _Kind.PROOF
        return challenge


def _name_field(name: str) -> bytes:
    """Encode a name as it stands in a message: UTF-8 filled up with zero bytes, exactly one form per name."""
    encoded = name.encode()
    if not 1 <= len(encoded) <= NAME_BYTES_MAX or b"\0" in encoded:
        raise ValueError(f"a node or cluster name has 1 to {NAME_BYTES_MAX} bytes and no zero byte: {name!r}")
    return encoded.ljust(NAME_BYTES_MAX, b"\0")


def _shown(field: bytes) -> str:
    """Make a stranger's name fit for the log: harmless and short."""
    return repr(field.rstrip(b"\0").decode(errors="replace"))


def _rejection(message: bytes) -> HandshakeError:
    _, version, _, reason = _REJECT.unpack(message)
    if reason not in _REJECTIONS:
        return GarbageError(f"the peer rejects this node for the unknown reason {reason}")
    cause, text = _REJECTIONS[reason]
    if cause is VersionMismatchError:
        text = f"{text} ({version}, this node {VERSION})"
    return RejectedError(f"the peer rejects this node: {text}", cause)
