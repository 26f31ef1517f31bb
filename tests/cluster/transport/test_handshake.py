from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.configuration.configuration import Versions
from cluster.transport.handshake import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    VERSIONS,
    AcceptorHandshake,
    AlreadyLinkedError,
    Credentials,
    DiallerHandshake,
    GarbageError,
    Handshake,
    HandshakeError,
    OtherClusterError,
    OtherMembersError,
    OtherStateVersionError,
    OwnNameError,
    RejectedError,
    SecondProcessError,
    Terms,
    TooManyNonMembersError,
    UnknownNodeError,
    VersionMismatchError,
    WhyRejected,
    WrongClusterError,
    WrongSecretError,
)

SECRET = b"the secret of the cluster"
NONCE_1 = bytes(range(32))
NONCE_2 = bytes(range(32, 64))
NONCE_3 = bytes(range(64, 96))


MEMBERS = ["n1", "n2", "n3"]
PROCESS = b"the process of..."[:16]
TERMS = Terms.of(MEMBERS, 7, PROCESS)


def everybody(_peer: str, _terms: Terms) -> None:
    """Admit each peer that knows the secret."""


def dialler(
    node: str = "n1",
    expected: str | None = "n2",
    cluster: str = "c",
    secrets: tuple[bytes, ...] = (SECRET,),
    nonce: bytes = NONCE_1,
    terms: Terms = TERMS,
    why_rejected: WhyRejected = everybody,
    version: int = VERSIONS[-1],
) -> DiallerHandshake:
    return DiallerHandshake(
        Credentials(cluster, node, secrets, terms), expected, nonce, why_rejected, version
    )


def acceptor(
    node: str = "n2",
    cluster: str = "c",
    secrets: tuple[bytes, ...] = (SECRET,),
    nonce: bytes = NONCE_2,
    terms: Terms = TERMS,
    why_rejected: WhyRejected = everybody,
) -> AcceptorHandshake:
    return AcceptorHandshake(Credentials(cluster, node, secrets, terms), nonce, why_rejected)


def converse(one: DiallerHandshake, other: AcceptorHandshake) -> list[bytes]:
    hello = one.opening()
    challenge = other.receive(hello)
    proof = one.receive(challenge)
    welcome = other.receive(proof)
    assert one.receive(welcome) == b""
    return [hello, challenge, proof, welcome]


def error_of(side: Handshake, data: bytes) -> HandshakeError:
    with pytest.raises(HandshakeError) as caught:
        side.receive(data)
    assert not side.authenticated
    return caught.value


def test_both_sides_agree_on_each_other() -> None:
    one, other = dialler(), acceptor()
    messages = converse(one, other)
    assert (one.authenticated, one.peer) == (True, "n2")
    assert (other.authenticated, other.peer) == (True, "n1")
    assert max(map(len, messages)) <= MESSAGE_BYTES_MAX


def test_messages_may_arrive_byte_by_byte() -> None:
    one, other = dialler(), acceptor()
    to_other, to_one = one.opening(), b""
    while to_other or to_one:
        to_one += b"".join(other.receive(bytes([byte])) for byte in to_other)
        to_other = b"".join(one.receive(bytes([byte])) for byte in to_one)
        to_one = b""
    assert one.authenticated
    assert other.authenticated


def test_neither_side_believes_before_the_last_proof() -> None:
    one, other = dialler(), acceptor()
    challenge = other.receive(one.opening())
    proof = one.receive(challenge)
    assert not one.authenticated
    assert not other.authenticated
    other.receive(proof)
    assert not one.authenticated


def test_the_first_frames_may_follow_the_welcome_at_once() -> None:
    one, other = dialler(), acceptor()
    proof = one.receive(other.receive(one.opening()))
    one.receive(other.receive(proof) + b"frames")
    assert one.rest == b"frames"


def test_handshake_message_has_no_data_behind_it() -> None:
    one, other = dialler(), acceptor()
    assert isinstance(error_of(acceptor(), one.opening() + b"x"), GarbageError)
    challenge = other.receive(one.opening())
    assert isinstance(error_of(dialler(), challenge + b"x"), GarbageError)
    assert isinstance(error_of(other, one.receive(challenge) + b"x"), GarbageError)


def test_acceptor_reports_a_wrong_secret_to_the_dialler() -> None:
    one, other = dialler(secrets=(b"another",)), acceptor()
    error = error_of(other, one.receive(other.receive(one.opening())))
    assert isinstance(error, WrongSecretError)
    assert str(error) == "node 'n1' has proved no secret that this node accepts"
    reported = error_of(one, error.reply)
    assert isinstance(reported, RejectedError)
    assert reported.cause is WrongSecretError
    assert "secret differs" in str(reported)


def test_the_dialler_notices_an_acceptor_without_the_secret() -> None:
    one = dialler()
    one.receive(acceptor().receive(one.opening()))
    welcome_of_another_secret = converse(dialler(secrets=(b"another",)), acceptor(secrets=(b"another",)))[3]
    assert isinstance(error_of(one, welcome_of_another_secret), WrongSecretError)


def test_a_reflected_proof_is_refused() -> None:
    one, other = dialler(), acceptor()
    proof = one.receive(other.receive(one.opening()))
    as_welcome = proof.replace(proof[:7], converse(dialler(), acceptor())[3][:7])
    assert isinstance(error_of(one, as_welcome), WrongSecretError)


def test_a_recorded_dialler_is_refused_by_a_fresh_challenge() -> None:
    hello, _, proof, _ = converse(dialler(), acceptor())
    other = acceptor(nonce=NONCE_3)
    other.receive(hello)
    assert isinstance(error_of(other, proof), WrongSecretError)


OLD, NEW = b"the secret until now", b"the secret from now on"
SECRETS = st.lists(st.sampled_from([OLD, NEW, b"another"]), min_size=1, max_size=2, unique=True).map(tuple)


@given(SECRETS, SECRETS)
def test_both_sides_use_the_secret_that_the_dialler_proves(
    of_dialler: tuple[bytes, ...], of_acceptor: tuple[bytes, ...]
) -> None:
    one, other = dialler(secrets=of_dialler), acceptor(secrets=of_acceptor)
    proof = one.receive(other.receive(one.opening()))
    if of_dialler[0] in of_acceptor:
        assert one.receive(other.receive(proof)) == b""
        assert one.authenticated
        assert other.authenticated
        assert one._secrets == other._secrets == of_dialler[:1]
    else:
        error = error_of(other, proof)
        assert isinstance(error, WrongSecretError)
        reported = error_of(one, error.reply)
        assert isinstance(reported, RejectedError)
        assert reported.cause is WrongSecretError


def test_node_with_only_the_second_secret_cannot_answer() -> None:
    class Impostor(AcceptorHandshake):
        def _check_proof(self, message: bytes, role: bytes) -> Terms:
            del role
            self._transcript += message
            return TERMS

    one = dialler(secrets=(NEW, OLD))
    other = Impostor(Credentials("c", "n2", (OLD,), TERMS), NONCE_2, everybody)
    welcome = other.receive(one.receive(other.receive(one.opening())))
    assert isinstance(error_of(one, welcome), WrongSecretError)


def test_a_recorded_acceptor_is_refused_by_a_fresh_hello() -> None:
    _, challenge, _, welcome = converse(dialler(), acceptor())
    one = dialler(nonce=NONCE_3)
    one.opening()
    one.receive(challenge)
    assert isinstance(error_of(one, welcome), WrongSecretError)


def test_proof_for_a_node_is_refused_by_a_third() -> None:
    # The attacker between them lets n1 prove itself to "n2" and shows the proof to n3.
    one, third = dialler(), acceptor(node="n3", nonce=NONCE_2)
    challenge_of_second = acceptor().receive(one.opening())
    proof = one.receive(challenge_of_second)
    third.receive(dialler(expected="n3").opening())
    assert isinstance(error_of(third, proof), WrongSecretError)


@pytest.mark.parametrize("message", range(4))
def test_tampered_byte_is_noticed_by_a_side(message: int) -> None:
    for position in range(len(converse(dialler(), acceptor())[message])):
        for flip in (0x01, 0x80):
            assert not tampered_conversation(message, position, flip)


def tampered_conversation(message: int, position: int, flip: int) -> bool:
    """Return whether the receiver of the tampered message ends up believing the other side."""

    def wire(number: int, data: bytes) -> bytes:
        if number != message:
            return data
        return data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]

    one, other = dialler(), acceptor()
    try:
        challenge = wire(1, other.receive(wire(0, one.opening())))
        welcome = wire(3, other.receive(wire(2, one.receive(challenge))))
        one.receive(welcome)
    except HandshakeError:
        pass
    return one.authenticated if message == 3 else other.authenticated


@pytest.mark.parametrize("message", range(4))
def test_truncated_message_proves_no_secret(message: int) -> None:
    one, other = dialler(), acceptor()
    sides: list[Handshake] = [other, one, other, one]
    data = one.opening()
    for number in range(message):
        data = sides[number].receive(data)
    assert sides[message].receive(data[:-1]) == b""
    assert not sides[message].authenticated


def test_node_of_a_different_cluster_gets_the_reason() -> None:
    one = dialler(cluster="red")
    error = error_of(acceptor(cluster="blue"), one.opening())
    assert isinstance(error, WrongClusterError)
    assert str(error) == "the peer belongs to cluster 'red', this node to 'blue'"
    reported = error_of(one, error.reply)
    assert isinstance(reported, RejectedError)
    assert reported.cause is WrongClusterError


DIFFERENCES = {
    "only itself": (Terms.of(["n1"], 7, PROCESS), OtherMembersError),
    "as many others": (Terms.of(["n1", "n2", "n4"], 7, PROCESS), OtherMembersError),
    "one more": (Terms.of([*MEMBERS, "n4"], 7, PROCESS), OtherMembersError),
    "an older version": (Terms.of(MEMBERS, 6, PROCESS), OtherStateVersionError),
    "a newer version": (Terms.of(MEMBERS, 8, PROCESS), OtherStateVersionError),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_disagreeing_members_refuse_each_other_with_the_reason(name: str) -> None:
    terms, error_type = DIFFERENCES[name]
    one, other = dialler(terms=terms), acceptor()
    error = error_of(other, one.receive(other.receive(one.opening())))
    reported = error_of(one, error.reply)
    assert type(error) is type(reported) is error_type
    if error_type is OtherMembersError:
        assert str(error) == (
            f"node 'n1' has another list of members ({terms.members_count} names) than this node (3): put the same "
            "list into the configuration of all nodes"
        )
    else:
        assert str(reported) == (
            f"node 'n2' is at version 7 of the state and can run 7, this node is at {terms.state_version} and can run "
            f"{terms.state_version}: start a program on both that can run both"
        )


def test_order_of_the_list_is_irrelevant_and_names_stay_apart() -> None:
    assert Terms.of(reversed(MEMBERS), 7, PROCESS) == TERMS
    assert Terms.of(["a", "bc"], 7, PROCESS) != Terms.of(["ab", "c"], 7, PROCESS)


def test_unauthenticated_dialler_gets_no_terms() -> None:
    one, other = dialler(secrets=(b"another",), terms=Terms.of(["n1"], 6, PROCESS)), acceptor()
    challenge = other.receive(one.opening())
    error = error_of(other, one.receive(challenge))
    assert isinstance(error, WrongSecretError)
    assert TERMS.members_digest not in challenge + error.reply


def test_terms_are_those_of_the_proving_side() -> None:
    # An attacker in between lets both sides believe that the peer agrees with it.
    one, other = dialler(terms=Terms.of(["n1"], 7, PROCESS)), acceptor()
    proof = one.receive(other.receive(one.opening()))
    forged = proof.replace(Terms.of(["n1"], 7, PROCESS).members_digest, TERMS.members_digest)
    assert isinstance(error_of(other, forged), WrongSecretError)


ENOUGH = Versions(7, 8)
IDS = {name: name.encode() * 8 for name in ("c1", "c2", "d1", "d2")}


def living(version: int = 8, cluster: str = "c1", member: str = "d1", versions: Versions = ENOUGH) -> Terms:
    """Return the terms of a node whose log has a configuration."""
    return Terms.of(MEMBERS, version, PROCESS, versions, IDS[cluster], IDS[member])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (living(), living(member="d2")),
        (living(), Terms.of(["n1"], 7, PROCESS, ENOUGH)),  # its log has no configuration yet
        (living(), living(versions=Versions(8, 9))),
        (Terms.of(MEMBERS, 7, PROCESS, ENOUGH), TERMS),
    ],
)
def test_members_with_compatible_versions_hear_each_other(one: Terms, other: Terms) -> None:
    for dialling, accepting in ((one, other), (other, one)):
        converse(dialler(terms=dialling), acceptor(terms=accepting))


@pytest.mark.parametrize(
    ("terms", "error_type", "text"),
    [
        (living(cluster="c2"), OtherClusterError, "node 'n1' belongs to another cluster"),
        (
            living(9, versions=Versions(8, 9)),
            OtherStateVersionError,
            "node 'n1' is at version 9 of the state",
        ),
        (
            TERMS,
            OtherStateVersionError,
            "is at version 7 of the state and can run 7, this node is at 8 and can run 7 to 8",
        ),
    ],
)
def test_members_of_incompatible_clusters_refuse_each_other(
    terms: Terms, error_type: type[HandshakeError], text: str
) -> None:
    one, other = dialler(terms=terms), acceptor(terms=living())
    error = error_of(other, one.receive(other.receive(one.opening())))
    reported = error_of(one, error.reply)
    assert type(error) is type(reported) is error_type
    assert text in str(error)


def test_a_node_of_the_last_release_is_spoken_to_in_its_version() -> None:
    one, other = dialler(version=3, terms=TERMS), acceptor(terms=Terms.of(MEMBERS, 7, PROCESS, ENOUGH))
    messages = converse(one, other)
    assert [message[4] for message in messages] == [3, 3, 3, 3]
    assert len(messages[2]) == 93
    assert other.terms == TERMS
    assert one.terms == TERMS


@pytest.mark.parametrize(
    "judged", [AlreadyLinkedError, SecondProcessError, TooManyNonMembersError, UnknownNodeError]
)
def test_rejected_dialler_gets_the_reason(judged: type[HandshakeError]) -> None:
    judged_peers: list[tuple[str, Terms]] = []

    def why_rejected(peer: str, terms: Terms) -> HandshakeError:
        judged_peers.append((peer, terms))
        return judged("because")

    one, other = dialler(), acceptor(why_rejected=why_rejected)
    error = error_of(other, one.receive(other.receive(one.opening())))
    assert type(error) is judged
    assert judged_peers == [("n1", TERMS)]
    reported = error_of(one, error.reply)
    assert isinstance(reported, RejectedError)
    assert reported.cause is judged


def test_dialler_judges_the_acceptor() -> None:
    one, other = dialler(why_rejected=lambda *_: AlreadyLinkedError("because")), acceptor()
    welcome = other.receive(one.receive(other.receive(one.opening())))
    error = error_of(one, welcome)
    assert isinstance(error, AlreadyLinkedError)
    assert error.reply == b"", "the acceptor awaits frames by now"


@pytest.mark.parametrize("name", [b"\xff" * 64, b"\0" * 64, b"a\0b".ljust(64, b"\0")])
def test_a_caller_without_a_name_is_refused(name: bytes) -> None:
    hello = dialler().opening()
    error = error_of(acceptor(), hello[:71] + name + hello[135:])
    assert isinstance(error, UnknownNodeError)
    assert error.reply


def test_dialler_that_expects_a_different_node_is_refused() -> None:
    error = error_of(acceptor(node="n3"), dialler(expected="n2").opening())
    assert isinstance(error, UnknownNodeError)
    assert str(error) == "node 'n1' looks for 'n2' at 'n3'"


def test_dialler_refuses_the_answer_of_an_unexpected_node() -> None:
    one = dialler(expected="n2")
    one.opening()
    challenge_of_third = acceptor(node="n3").receive(dialler(expected="n3").opening())
    error = error_of(one, challenge_of_third)
    assert isinstance(error, UnknownNodeError)
    assert str(error) == "node 'n3' answers where 'n2' is expected"


def test_dialler_without_an_expected_name_believes_the_proof() -> None:
    one, other = dialler(expected=None), acceptor(node="n3")
    assert one.peer == ""
    messages = converse(one, other)
    assert messages[0][135:199] == bytes(64)
    assert (one.peer, other.peer) == ("n3", "n1")


def test_a_name_that_was_not_expected_is_covered_by_the_proofs() -> None:
    # The attacker between them lets n1 believe that it talks to n3, and n2 that n1 does.
    one, other = dialler(expected=None), acceptor(node="n2")
    challenge = other.receive(one.opening())
    proof = one.receive(challenge.replace(b"n2", b"n3"))
    assert isinstance(error_of(other, proof), WrongSecretError)


def test_dialler_that_reaches_itself_sends_no_reply() -> None:
    one = dialler(expected=None)
    error = error_of(one, acceptor(node="n1").receive(one.opening()))
    assert isinstance(error, OwnNameError)
    assert str(error) == "node 'n1' answers there, which is the name of this node"
    assert error.reply == b""


def test_the_last_release_wants_a_name() -> None:
    with pytest.raises(ValueError, match="version 3 of the handshake wants the name"):
        dialler(expected=None, version=3)
    hello = dialler(version=3).opening()
    error = error_of(acceptor(), hello[:135] + bytes(64) + hello[199:])
    assert isinstance(error, UnknownNodeError)


@pytest.mark.parametrize("name", [b"\xff" * 64, b"\0" * 64])
def test_an_answer_without_a_name_is_refused(name: bytes) -> None:
    one = dialler(expected=None)
    challenge = acceptor().receive(one.opening())
    assert isinstance(error_of(one, challenge[:71] + name + challenge[135:]), UnknownNodeError)


def test_unknown_version_is_answered_in_a_common_form() -> None:
    one = dialler()
    hello = one.opening()
    next_version = (VERSIONS[-1] + 1).to_bytes(2, "little")
    newer = hello[:4] + next_version + hello[6:] + b"more of whatever that version has"
    error = error_of(acceptor(), newer)
    assert isinstance(error, VersionMismatchError)
    assert str(error) == "the peer speaks version 5 of the protocol, this node 3 and 4"
    reply_of_newer = error.reply[:4] + next_version + error.reply[6:]
    reported = error_of(one, reply_of_newer)
    assert isinstance(reported, RejectedError)
    assert reported.cause is VersionMismatchError
    assert ": 5, this node 3 and 4" in str(reported)


def test_garbage_is_noticed_at_its_first_byte_and_not_answered() -> None:
    for side in (dialler(), acceptor()):
        error = error_of(side, b"G")
        assert isinstance(error, GarbageError)
        assert error.reply == b""


def test_a_message_out_of_turn_is_garbage() -> None:
    hello, challenge, proof, welcome = converse(dialler(), acceptor())
    for wrong in (challenge, proof, welcome):
        assert isinstance(error_of(acceptor(), wrong), GarbageError)
    for wrong in (hello, proof, welcome):
        assert isinstance(error_of(dialler(), wrong), GarbageError)


def test_a_rejection_for_a_reason_not_known_here_is_garbage() -> None:
    assert isinstance(error_of(dialler(), MAGIC + b"\x01\x00\x05\xff"), GarbageError)


@pytest.mark.parametrize("name", ["", "x" * 65, "ü" * 33, "a\0b"])
def test_a_name_that_does_not_fit_a_message_is_refused_at_home(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        dialler(node=name)


def test_an_empty_secret_and_a_short_nonce_are_refused_at_home() -> None:
    for secrets in ((), (b"",), (SECRET, b"")):
        with pytest.raises(ValueError, match="secret is empty"):
            dialler(secrets=secrets)
    with pytest.raises(ValueError, match="32 bytes, not 5"):
        acceptor(nonce=b"short")


def pieces() -> st.SearchStrategy[list[bytes]]:
    """Random bytes and recorded messages, whole or cut."""
    real = converse(dialler(), acceptor())
    beginnings = st.tuples(st.sampled_from(real), st.integers(0, 231)).map(lambda cut: cut[0][: cut[1]])
    return st.lists(
        st.one_of(st.binary(max_size=300), st.just(MAGIC), st.sampled_from(real), beginnings), max_size=6
    )


@given(pieces(), st.booleans())
def test_garbage_does_not_authenticate_and_errors_are_typed(data: list[bytes], dials: bool) -> None:
    side: Handshake = dialler(nonce=NONCE_3) if dials else acceptor(nonce=NONCE_3)
    side.opening()
    try:
        for piece in data:
            side.receive(piece)
            assert len(side._inbox) <= MESSAGE_BYTES_MAX
    except HandshakeError:
        pass
    assert not side.authenticated
