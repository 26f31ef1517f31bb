"""The commands that make certificates in docs/how-to: nodes and clients accept the results."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from qq.config import ClientTls, TlsFiles
from qq.tls import contexts
from tests.deploy.how_to import block, run_shell, secrets_for_kubernetes


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None) -> None:
    """Raise SSLError if a side refuses the other's certificate under the rules of newer Pythons."""
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(downward, upward, server_hostname=name),
        server.wrap_bio(upward, downward, server_side=True),
    ]
    for _ in range(3):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert all(side.version() for side in sides)


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, dict[str, Path]]:
    return secrets_for_kubernetes(tmp_path)


def test_kubernetes_nodes_accept_their_peers_certificates(secrets: dict[str, dict[str, Path]]) -> None:
    files = secrets["qq-peer-tls"]
    made = contexts.for_peers(TlsFiles(files["tls.crt"], files["tls.key"], files["ca.crt"])).current
    shake_hands(made.server, made.client)


@pytest.mark.parametrize("name", ["qq", "qq.default.svc.cluster.local"])
def test_a_client_in_kubernetes_takes_the_certificate(secrets: dict[str, dict[str, Path]], name: str) -> None:
    files = secrets["qq-tls"]
    server = contexts.for_clients(ClientTls(files["tls.crt"], files["tls.key"])).current
    shake_hands(server, ssl.create_default_context(cafile=str(files["ca.crt"])), name)


def test_peer_and_client_authorities_are_separate(secrets: dict[str, dict[str, Path]]) -> None:
    nodes, clients = secrets["qq-peer-tls"], secrets["qq-tls"]
    client = contexts.for_peers(TlsFiles(clients["tls.crt"], clients["tls.key"], nodes["ca.crt"])).current
    node = contexts.for_peers(TlsFiles(nodes["tls.crt"], nodes["tls.key"], nodes["ca.crt"])).current
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(node.server, client.client)


def test_hosts_have_certificates_of_both_authorities(tmp_path: Path) -> None:
    run_shell(block("tls.md", "authority clients-ca"), tmp_path)
    server = contexts.for_clients(ClientTls(tmp_path / "n1.crt", tmp_path / "n1.key")).current
    for name in ("n1", "10.0.0.1"):
        shake_hands(server, ssl.create_default_context(cafile=str(tmp_path / "clients-ca.crt")), name)
    files = TlsFiles(*(tmp_path / name for name in ("n1-peer.crt", "n1-peer.key", "nodes-ca.crt")))
    made = contexts.for_peers(files).current
    shake_hands(made.server, made.client)
