"""Starts processes of this program without the time of its imports: a server that has imported it forks them.

Importing a node takes longer than all its other work before it serves, and tests start many nodes.

Invariant: a forked process has the same environment as a new process would: its own arguments, variables, files and
session. Its exit status goes to the process that asked for it. A server ends with the process that has started it, and
its forked processes end with it (cli/serve.py), even if that process has left other children.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PACKAGES = str(Path(__file__).parents[2])
PROGRAM = "qq.__main__"
"""The module of the command `qq`."""
_PRELOADED = ("qq.cli.local.serve", "qq.http.app", "qq.metrics.prometheus")
# Variables that are read before a program runs: they cannot be changed for a forked process.
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
_servers: dict[tuple[str | tuple[str, str], ...], ForkServer] = {}
_choosing = threading.Lock()
_closed_in_children: WeakSet[socket.socket | IO[bytes]] = WeakSet()


def close_in_children(end: socket.socket | IO[bytes]) -> None:
    """Close `end` in every child that this process forks, so that its close shows peers that the process has ended.

    Otherwise a worker of `multiprocessing` would hold a copy as long as it lives. An executed program has no copy
    anyway.
    """
    _closed_in_children.add(end)


def _close_copies() -> None:
    for end in _closed_in_children:
        end.close()


os.register_at_fork(after_in_child=_close_copies)


class ForkedProcess:
    """A process that a fork server has started, with the methods of `subprocess.Popen` that its users need."""

    def __init__(self, pid: int, handle: int, status_socket: int) -> None:
        """`handle` refers to the process; `status_socket` is a descriptor with its exit status after its end."""
        self.pid = pid
        self._handle = handle
        self._status_socket = status_socket
        self._status: int | None = None
        self._asking = threading.Lock()

    def __del__(self) -> None:
        os.close(self._status_socket)
        os.close(self._handle)

    def poll(self) -> int | None:
        """Return the exit status, negative if a signal has ended the process; None as long as it runs."""
        return self._wait_for_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._wait_for_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_for_status(self, timeout: float | None) -> int | None:
        with self._asking:
            ended = select.poll()  # `select` cannot watch descriptors with large numbers
            ended.register(self._status_socket, select.POLLIN)
            if self._status is None and ended.poll(None if timeout is None else timeout * 1000):
                line = b""
                with suppress(ConnectionResetError):
                    line = os.read(self._status_socket, 16)
                # Without a line the server has ended, and its forked processes with it.
                self._status = int(line) if line else -signal.SIGKILL
            return self._status


class ForkServer:
    """The client of a fork server, which it starts; several threads may use it."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        close_in_children(self._socket)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # aiohttp reads the system's authorities when it is imported, for clients that no node uses, which takes
                # 0.1 s. The forked processes have an environment of their own, so a shovel trusts the right
                # authorities.
                env=os.environ | {"SSL_CERT_FILE": os.devnull},
                start_new_session=True,  # Ctrl-C is for the process that has started the server
            )

    @property
    def is_running(self) -> bool:
        """Whether the server runs and can be asked."""
        return self._process.poll() is None

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        kept: Sequence[int] = (),
        program: str = PROGRAM,
    ) -> ForkedProcess:
        """Run `qq` with these arguments, in exactly this environment, with output to these descriptors.

        `kept` are descriptors that the process keeps open as long as it runs, one at most. `program` is the module
        whose function `run` the process calls. Raises OSError if the server has ended.
        """
        request = json.dumps(
            {"program": program, "arguments": list(arguments), "environment": dict(environment)}
        ).encode()
        ours, theirs = socket.socketpair()
        with self._asking, theirs:
            socket.send_fds(self._socket, [b"."], [theirs.fileno(), stdout, stderr, *kept])
        ours.sendall(request)
        ours.shutdown(socket.SHUT_WR)
        answer, handles = b"", []
        with suppress(ConnectionResetError):
            answer, handles, _, _ = socket.recv_fds(ours, 16, 1)
        if not handles:
            raise ConnectionResetError("the process that it is forked from has ended, and has printed why")
        return ForkedProcess(int(answer), handles[0], ours.detach())

    @property
    def pid(self) -> int:
        """The process id of the server, the parent of all forked processes."""
        return self._process.pid

    def close(self) -> None:
        """End the server and its forked processes."""
        self._socket.close()
        self._process.wait()


def fork_server(name: str = "") -> ForkServer:
    """Return the server of this name for the present environment, and start it on the first call.

    Two names are two servers, which import the program twice: for tests that need processes with different hash seeds.
    """
    of_the_interpreter = {
        key: value for key, value in os.environ.items() if key.startswith(_OF_THE_INTERPRETER)
    }
    key = (name, *sorted(of_the_interpreter.items()))
    # If two threads started servers of the same name, the forgotten server would end its forked processes with it.
    with _choosing:
        server = _servers.get(key)
        if server is not None and not server.is_running:
            server.close()
            server = None
        if server is None:
            server = _servers[key] = ForkServer()
        return server


@atexit.register
def _close_all() -> None:
    for server in _servers.values():
        server.close()


# --- the server


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, socket.socket] = {}
        self._wakeup, waker = socket.socketpair()
        self._waker = waker
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_up)

    def run(self) -> str | None:
        """Serve until the client closes its socket and return None; in a forked process, return its program."""
        while True:
            ready, _, _ = select.select([self._requests, self._wakeup], [], [])
            if self._wakeup in ready:
                self._wakeup.recv(4096)
                self._reap()
            if self._requests in ready:
                mark, descriptors, _, _ = socket.recv_fds(self._requests, 1, 4)
                if not mark:
                    return None
                if (program := self._fork(*descriptors)) is not None:
                    return program

    def _fork(self, status_socket: int, stdout: int, stderr: int, *kept: int) -> str | None:
        answer = socket.socket(fileno=status_socket)
        request = json.loads(b"".join(iter(lambda: answer.recv(65536), b"")))
        pid = os.fork()
        if pid == 0:
            self._become(request, stdout, stderr)
            answer.close()
            return request["program"]
        for number in (stdout, stderr, *kept):
            os.close(number)
        handle = os.pidfd_open(pid)  # the child was not reaped yet, so the pid is still its own
        socket.send_fds(answer, [str(pid).encode()], [handle])
        os.close(handle)
        self._children[pid] = answer
        return None

    def _become(self, request: dict[str, Any], stdout: int, stderr: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for held in (self._requests, self._wakeup, self._waker, *self._children.values()):
            held.close()
        os.setsid()
        for number, target in ((stdout, 1), (stderr, 2)):
            os.dup2(number, target)
            os.close(number)
        sys.argv[:] = [str(Path(__file__).parents[1] / "__main__.py"), *request["arguments"]]
        os.environ.clear()
        os.environ.update(request["environment"])

    def _reap(self) -> None:
        for pid, status in _ended():
            with (
                self._children.pop(pid) as status_socket,
                suppress(BrokenPipeError),
            ):  # the client may not wait for the status any more
                status_socket.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _wake_up(_number: int, _frame: object) -> None:
    """Do nothing: without a handler `set_wakeup_fd` would write no byte."""


def _ended() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def main() -> int:
    if _PACKAGES not in sys.path:  # as in __main__.py
        sys.path.insert(0, _PACKAGES)
    # The program's own modules can be imported only now.
    importlib.import_module(PROGRAM)
    importlib.import_module("qq.process.packages").find_cluster()
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        program = _Server(requests).run()
    return 0 if program is None else importlib.import_module(program).run()


if __name__ == "__main__":
    sys.exit(main())
