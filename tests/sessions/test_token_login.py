"""Tokens in place of passwords, with a fake verifier; tests/oauth2 has a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import pytest
from pamqp import commands

from qq.errors import reply_text
from qq.machine.protocol.versions import VERSIONS
from qq.scopes import Scopes, TokenUser
from qq.sessions.login import InvalidToken
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import HEADER, RawClient

ALL = ("configure:%2F", "write:%2F", "read:%2F")
TOKEN = "eyJ-good"


class Verifier:
    """Accepts the tokens in `users`; with `has_issuer`, others may be valid with a further key."""

    def __init__(self) -> None:
        self.users = {TOKEN: ann()}
        self.has_issuer = False
        self.waiting: list[Callable[[], None]] = []

    def is_token(self, password: bytes) -> bool:
        return password.startswith(b"eyJ")

    def verify(self, token: bytes) -> TokenUser:
        found = self.users.get(token.decode())
        if found is None:
            raise InvalidToken("it is not known")
        return found

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        if self.has_issuer:
            self.waiting.append(renewed)
        return self.has_issuer

    def renew(self) -> None:
        waiting, self.waiting = self.waiting, []
        for renewed in waiting:
            renewed()


def ann(*scopes: str, name: str = "ann", lifetime_s: float = 600) -> TokenUser:
    return TokenUser(name, Scopes(scopes or ALL), time.time() + lifetime_s)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        broker.call(broker.machine.raise_to, 8)
        yield broker


@pytest.fixture
def verifier(broker: LoneBroker) -> Verifier:
    verifier = broker.broker.logins.verifier = Verifier()
    return verifier


def logging_in(broker: LoneBroker, token: str) -> RawClient:
    client = RawClient(broker.amqp_port, handshake=False)
    client.write(HEADER)
    client.expect(commands.Connection.Start)
    client.send(0, client.start_ok(f"\0anybody\0{token}"))
    return client


def opening(broker: LoneBroker, token: str = TOKEN, vhost: str = "/") -> RawClient:
    client = logging_in(broker, token)
    client.expect(commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk(2047, 131_072, 0), commands.Connection.Open(vhost))
    return client


def opened(broker: LoneBroker, token: str = TOKEN) -> RawClient:
    client = opening(broker, token)
    client.expect(commands.Connection.OpenOk)
    client.open_channel(1)
    return client


def closed(client: RawClient, code: int, text: str, *, channel: int = 0) -> None:
    client.expect_close(code, reply_text(code, text), channel=channel)


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_token_is_refused_before_the_upgrade_is_finished() -> None:
    with LoneBroker(version=VERSIONS[0]) as broker:
        broker.broker.logins.verifier = Verifier()
        with opening(broker) as client:
            closed(client, 530, "tokens are good for a login when the upgrade of the cluster is finished")


@pytest.mark.usefixtures("verifier")
def test_the_user_is_the_tokens_and_is_in_no_list(broker: LoneBroker) -> None:
    with opened(broker) as client:
        client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        [row] = broker.machine.catalog.connections.values()
        assert (row.user, "ann" in broker.machine.users) == ("ann", False)


def test_a_login_waits_for_the_keys_of_the_issuer(broker: LoneBroker, verifier: Verifier) -> None:
    verifier.has_issuer = True
    with logging_in(broker, "eyJ-new") as good, logging_in(broker, "eyJ-bad") as bad:
        wait_until(lambda: len(verifier.waiting) == 2)
        verifier.users["eyJ-new"] = ann()
        broker.call(verifier.renew)
        good.expect(commands.Connection.Tune)
        closed(
            bad,
            403,
            "Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        )


def test_client_that_hangs_up_during_verification_is_dropped(broker: LoneBroker, verifier: Verifier) -> None:
    verifier.has_issuer = True
    with logging_in(broker, "eyJ-new"):
        wait_until(lambda: verifier.waiting)
    wait_until(lambda: not broker.broker.connections)
    verifier.users["eyJ-new"] = ann()
    broker.call(verifier.renew)


def update(token: str) -> commands.Connection.UpdateSecret:
    return commands.Connection.UpdateSecret(token, "renewal")


def test_new_token_counts_at_once(broker: LoneBroker, verifier: Verifier) -> None:
    verifier.users["eyJ-two"] = ann("write:%2F", lifetime_s=0.4)
    with opened(broker) as client:
        declare = commands.Queue.Declare(queue="q", durable=True)
        client.call(1, declare, commands.Queue.DeclareOk)
        client.call(0, update("eyJ-two"), commands.Connection.UpdateSecretOk)
        client.send(1, declare)
        closed(client, 403, "configure access to queue 'q' in vhost '/' refused for user 'ann'", channel=1)
        closed(client, 320, "the token of user 'ann' has expired")


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, "it is not known"),
        (ann(name="bob"), "it is another user's"),
        (ann("read:other"), "access to vhost '/' refused for user 'ann'"),
    ],
    ids=["unknown", "another", "elsewhere"],
)
@pytest.mark.parametrize("has_issuer", [False, True])
def test_invalid_new_token_closes_the_connection(
    broker: LoneBroker, verifier: Verifier, user: TokenUser | None, expected: str, has_issuer: bool
) -> None:
    with opened(broker) as client:
        verifier.has_issuer = has_issuer
        if user is not None and not has_issuer:
            verifier.users["eyJ-two"] = user
        client.send(0, update("eyJ-two"))
        if has_issuer:
            wait_until(lambda: verifier.waiting)
            if user is not None:
                verifier.users["eyJ-two"] = user
            broker.call(verifier.renew)
        closed(client, 530, f"New secret was refused by one of the backends: {expected}")


def test_second_update_secret_before_the_answer_is_refused(broker: LoneBroker, verifier: Verifier) -> None:
    """Each may have to wait, and the number of pending updates must be bounded."""
    verifier.has_issuer = True
    with opened(broker) as client:
        client.send(0, update("eyJ-two"), update("eyJ-three"))
        closed(client, 503, "connection.update-secret before the answer to the last one")
        assert len(verifier.waiting) == 1
        broker.call(verifier.renew)


def test_update_secret_of_a_password_login_is_ignored(broker: LoneBroker, verifier: Verifier) -> None:
    with RawClient(broker.amqp_port) as client:
        client.call(0, update("eyJ-two"), commands.Connection.UpdateSecretOk)
        client.call(0, update("other"), commands.Connection.UpdateSecretOk)
