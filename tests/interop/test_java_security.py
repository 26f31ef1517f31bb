"""TLS, certificates and tokens with RabbitMQ's Java client for AMQP 1.0."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from qq.cli.local_files import AMQPS_PORT_OFFSET
from qq.testing import LocalCluster
from tests.interop.needed import fetched, needs
from tests.interop.requests import ALL, request
from tests.interop.sources import java_clients
from tests.interop.upstream import HERE, check, run_conversations
from tests.oauth2.issuer import SERVICE, Issuer

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-suites"), pytest.mark.timeout(400)]

SUITE_S = 300.0
PASSWORD = b"secret"
VHOST = "java-security"
ANNA = "CN=anna,OU=unit,O=orders"


class TokenEndpoint(Issuer):
    """Gives tokens: /token?lifetime=SECONDS, with these `scopes` and, if limited, a `count` of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Counter[str] = Counter()

    def take(self, path: str, form: str, headers: Message) -> tuple[int, bytes]:
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        self.given[path] += 1
        if self.given[path] > int(query.get("count", 1_000)):
            return 500, b"{}"
        lifetime_s = int(query["lifetime"])
        scopes = [f"{each}:%2F" for each in query.get("scopes", "configure,write,read").split(",")]
        token = self.token(*scopes, lifetime_s=lifetime_s)
        return 200, json.dumps({"access_token": token, "expires_in": lifetime_s}).encode()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Directory of a certificate for the host name `localhost`, of clients' certificates, and of two authorities."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    server = authority.issue_cert("localhost")
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    for name in ("anna", "berta"):
        client = authority.issue_cert(
            f"{name}.example", common_name=name, organization_name="orders", organization_unit_name="unit"
        )
        # A format that Java can read without a further library.
        store = pkcs12.serialize_key_and_certificates(
            name.encode(),
            serialization.load_pem_private_key(client.private_key_pem.bytes(), None),
            x509.load_pem_x509_certificate(client.cert_chain_pems[0].bytes()),
            None,
            serialization.BestAvailableEncryption(PASSWORD),
        )
        (tmp_path / f"{name}.p12").write_bytes(store)
    return tmp_path


def test_java_client_logs_in_with_certificates_and_tokens(certificates: Path) -> None:
    needs("java", "mvn")
    tls = {
        "cert": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
        "ca": str(certificates / "ca.pem"),
        "verify": "peer",
    }
    with TokenEndpoint() as issuer:
        oauth2 = {"resource_server_id": SERVICE, "jwks_url": f"{issuer.url}/keys"}
        # From version 4.1 on, the client renews tokens.
        settings = {"tls": tls, "oauth2": oauth2, "product": {"version": "4.1.0"}}
        with LocalCluster(settings=settings) as cluster:
            node = cluster.followers()[0]
            request(node, "PUT", f"vhosts/{VHOST}", {})
            request(node, "PUT", f"users/{quote(ANNA)}", {"password_hash": "", "tags": ""})
            for vhost in ("%2F", VHOST):
                request(node, "PUT", f"permissions/{vhost}/{quote(ANNA)}", ALL)
            command = ["java", "-cp", f"{fetched(java_clients)}/*", "RabbitMqAmqpSecurity.java"]
            ports = [str(node.amqp_port), str(node.amqp_port + AMQPS_PORT_OFFSET)]
            outcome = run_conversations(
                [*command, *ports, str(certificates), f"{issuer.url}/token"], HERE / "java", SUITE_S
            )
    check(outcome, [], 14)
