"""The Toxiproxy server: finds, builds and starts it, and sets its proxies and toxics.

    python -m chaos.live.toxiproxy --install     build it into the project's tool directory; needs Go

The server is driven with the package toxiproxy-python. That package keeps the server's address in a class (so a process
can use a single server), has no timeouts of its own and opens a connection for each call. All its calls are made here,
under a lock.

Invariant: the server ends with the process that started it, even after a crash.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import requests
from toxiproxy import Proxy
from toxiproxy import Toxiproxy as Client
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from chaos import tools
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODULE = "github.com/Shopify/toxiproxy/v2/cmd/server"
VERSION = "v2.12.0"
GO_HOME = "/usr/local/go/bin"
"""Where Go's installer puts `go`; PATH often does not have this directory."""
BINARY = "toxiproxy-server"
VARIABLE = "TOXIPROXY_SERVER"
TOOLS = tools.directory() / "bin"
HOST = "127.0.0.1"

Stream = Literal["upstream", "downstream"]
"""Upstream is from the client of a proxy to the server behind it."""

_START_PATIENCE_S = 10.0
_POLL_S = 0.02
_CLIENT_LOCK = threading.Lock()
_API_ERRORS = (requests.RequestException, InvalidToxic, NotFound, ProxyExists)
# Run by a Python that becomes the server: the request to die with the parent survives the exec.
_BECOME_SERVER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if str(os.getppid()) != sys.argv[1]:
    sys.exit("its parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ToxiproxyError(OperatingError):
    """The Toxiproxy server is missing, or has refused a request."""


class Route(NamedTuple):
    """A proxy: a connection to `listen` is passed to `upstream`. Both are ports of the loopback interface."""

    name: str
    listen: int
    upstream: int


def find_server() -> Path:
    """Return the binary, from the environment, PATH or the project's tool directory. Raises ToxiproxyError."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ToxiproxyError(f"${VARIABLE}: {named} is not a program")
        return Path(named)
    found = shutil.which(BINARY) or shutil.which(BINARY, path=str(TOOLS))
    if found is None:
        raise ToxiproxyError(
            f"there is no {BINARY}: `make toxiproxy` builds one (with Go), or put one on PATH or name it in ${VARIABLE}"
        )
    return Path(found)


def install() -> Path:
    """Build the pinned version into the project's tool directory and return its path. Raises ToxiproxyError."""
    go = shutil.which("go") or shutil.which("go", path=GO_HOME)
    if go is None:
        raise ToxiproxyError(f"{BINARY} is built with Go, and there is no `go` on PATH or in {GO_HOME}")
    TOOLS.mkdir(parents=True, exist_ok=True)
    command = [go, "install", f"{MODULE}@{VERSION}"]
    build = subprocess.run(
        command, env=os.environ | {"GOBIN": str(TOOLS)}, capture_output=True, text=True, check=False
    )
    if build.returncode != 0:
        reason = (build.stderr.strip().splitlines() or [f"status {build.returncode}"])[-1]
        raise ToxiproxyError(f"`{' '.join(command)}` failed: {reason}")
    return (TOOLS / "server").rename(TOOLS / BINARY)


class Toxiproxy:
    """A server of its own. The synchronous methods wait some milliseconds for its answer."""

    def __init__(self, port: int, log: Path) -> None:
        """`port` is the port of its API."""
        self._port = port
        self._log = log
        self._client = Client()
        self._proxies: dict[str, Proxy] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server and wait until it answers. Raises ToxiproxyError."""
        server = find_server()
        _reach_loopback_directly()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _BECOME_SERVER, str(os.getpid())),
                *(server, "-host", HOST, "-port", str(self._port)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the harness
            )
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                while not await asyncio.to_thread(self._call, self._client.running):
                    if self._process.returncode is not None:
                        raise ToxiproxyError(
                            f"{server} ended with status {self._process.returncode}; see {self._log}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ToxiproxyError(f"{server} does not answer on port {self._port}; see {self._log}") from None

    async def stop(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def add(self, route: Route, *, enabled: bool = True) -> None:
        """Add a proxy. Raises ToxiproxyError, like all following methods."""
        listen = f"{HOST}:{route.listen}"
        try:
            self._proxies[route.name] = self._call(
                lambda: self._client.create(f"{HOST}:{route.upstream}", route.name, listen, enabled)
            )
        except KeyError as error:
            # The client takes every answer for a proxy, even the server's error.
            raise ToxiproxyError(
                f"Toxiproxy on port {self._port} cannot listen on {listen}, "
                f"for somebody else has taken that by now; see {self._log}"
            ) from error

    def enable(self, name: str) -> None:
        """Let the proxy listen again."""
        self._call(self._proxies[name].enable)

    def disable(self, name: str) -> None:
        """End the proxy's connections and refuse new connections, as the address of an ended process does."""
        self._call(self._proxies[name].disable)

    def add_toxic(self, proxy: str, toxic: str, kind: str, stream: Stream, **attributes: int) -> None:
        """Hurt a direction of all connections of the proxy. `kind` and `attributes` are Toxiproxy's own."""
        self._call(
            lambda: self._proxies[proxy].add_toxic(
                name=toxic, type=kind, stream=stream, attributes=attributes
            )
        )

    def remove_toxic(self, proxy: str, toxic: str) -> None:
        """Remove a toxic. If it dropped data, its connections are closed."""
        self._call(lambda: self._proxies[proxy].destroy_toxic(toxic))

    def toxics(self) -> list[tuple[str, str]]:
        """Return proxy and name of all toxics."""
        return [(name, toxic) for name, proxy in self._proxies.items() for toxic in self._call(proxy.toxics)]

    def _call(self, request: Callable[[], Any]) -> Any:
        with _CLIENT_LOCK:
            self._client.update_api_consumer(HOST, self._port)
            try:
                return request()
            except _API_ERRORS as error:
                raise ToxiproxyError(f"Toxiproxy on port {self._port}: {error!r}") from error


def _reach_loopback_directly() -> None:
    """Exclude loopback from a web proxy in the environment, because that proxy cannot reach this server."""
    for variable in ("NO_PROXY", "no_proxy"):
        hosts = os.environ.get(variable, "").split(",")
        if HOST not in hosts:
            os.environ[variable] = ",".join([*filter(None, hosts), HOST])


def main(argv: Sequence[str] | None = None) -> int:
    return tools.locate("chaos.live.toxiproxy", "the Toxiproxy server", argv, find_server, install)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
