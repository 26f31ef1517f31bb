"""The facts about a client's TLS that operators see, from a handshake in memory."""

from __future__ import annotations

import re
import ssl

import trustme

from qq.client_sockets.tls_facts import tls_facts


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The server's side of a connection."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname="broker.test")
    far = server.wrap_bio(up, down, server_side=True)
    for side in (near, far, near, far):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return far


def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("broker.test").configure_cert(server)
    return client, server


def test_connection_shows_its_tls_version_and_cipher() -> None:
    facts = tls_facts(handshake(*contexts(trustme.CA())))
    assert facts is not None
    assert (facts.version, facts.cipher.startswith("TLS_")) == ("TLSv1.3", True)
    assert (facts.subject, facts.issuer, facts.validity) == (None, None, None)
    assert tls_facts(None) is None


def test_verified_certificate_is_shown() -> None:
    authority = trustme.CA()
    client, server = contexts(authority)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    authority.issue_cert("client.test", common_name="ann", organization_name="o").configure_cert(client)
    facts = tls_facts(handshake(client, server))
    assert facts is not None
    assert facts.subject is not None
    assert facts.subject.startswith("CN=ann,")
    assert facts.issuer is not None
    assert "O=trustme" in facts.issuer
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    assert re.fullmatch(f"{moment} - {moment}", facts.validity or "")
