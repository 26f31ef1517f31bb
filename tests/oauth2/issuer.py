"""An issuer of tokens: keys, tokens signed with them, and a real server that publishes the keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SERVICE = "rabbitmq"
RSA = rsa.generate_private_key(65537, 2048)
"""A key for all tests, because generating a key takes long."""


class Issuer:
    """Publishes `keys`, by their ids, at /keys, and at the place where OpenID Connect Discovery tells of it."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": RSA}
        self.requested_paths: list[str] = []
        """The paths that were asked for."""
        self.answer: Callable[[str], tuple[int, bytes]] = self._answer
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requested_paths.append(self.path)
                self._write(*issuer.answer(self.path))

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                self._write(*issuer.take(self.path, self.rfile.read(size).decode(), self.headers))

            def _write(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode() or "/keys")
                    body = b""
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def jwks(self) -> bytes:
        found = [
            algorithm_of(key).to_jwk(key.public_key(), as_dict=True) | {"kid": number, "use": "sig"}
            for number, key in self.keys.items()
        ]
        return json.dumps({"keys": found}).encode()

    def _answer(self, path: str) -> tuple[int, bytes]:
        match path:
            case "/keys":
                return 200, self.jwks()
            case "/.well-known/openid-configuration":
                return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
            case _:
                return 404, b""

    def take(self, path: str, form: str, headers: Message) -> tuple[int, bytes]:
        return 404, b""

    def token(self, *scopes: str, number: str | None = "one", key: Any = None, **claims: Any) -> str:
        return token(*scopes, number=number, key=key or self.keys.get(number or "one", RSA), **claims)


def algorithm_of(key: Any) -> Any:
    return jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm


def token(
    *scopes: str,
    number: str | None = "one",
    key: Any = RSA,
    lifetime_s: float = 600,
    algorithm: str = "",
    **claims: Any,
) -> str:
    """Return a token with these scopes, which get the usual prefix; claims of None are left out."""
    usual = {
        "sub": "ann",
        "aud": SERVICE,
        "exp": time.time() + lifetime_s,
        "scope": " ".join(f"{SERVICE}.{scope}" for scope in scopes),
    }
    content = {name: value for name, value in (usual | claims).items() if value is not None}
    headers = {} if number is None else {"kid": number}
    default = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.encode(content, key, algorithm or default, headers)


def new_key() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
