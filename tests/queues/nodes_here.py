"""A cluster of real nodes inside this process: real sockets and files, on an event loop in a thread.

Tests can transfer leadership without ending a process, inspect logs and states of nodes, and shorten long times.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from qq import config
from qq.cli.local_files import local_nodes, prepare
from qq.config import NodeConfig, NodeLimits
from qq.machine.protocol.commands import Command
from qq.machine.protocol.versions import VERSIONS
from qq.node import Node, start
from qq.node.node import SWITCH_INTERVAL_S
from qq.process import garbage
from qq.testing import _reserve_ports

T = TypeVar("T")
PATIENCE_S = 20.0
POLL_S = 0.005
LAG_S = 0.2


class NodeHere:
    """A node that can be stopped cleanly and started again."""

    def __init__(self, settings: NodeConfig) -> None:
        self.config = settings
        self.name = settings.name
        self.url = f"amqp://guest:guest@127.0.0.1:{settings.address.amqp_port}/"
        self.http_port = settings.address.http_port
        self.node: Node | None = None

    @property
    def running(self) -> bool:
        return self.node is not None

    async def start(self) -> None:
        async with AsyncExitStack() as closing:
            self.node = await start(self.config, closing)
            self._closing = closing.pop_all()
        self._serving = asyncio.get_running_loop().create_task(self.node.serve())

    async def stop(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            self._serving.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await self._serving
            finally:
                await self._closing.aclose()

    def check(self) -> None:
        """Raise the error that ended the node, if any."""
        if self.node is not None and self._serving.done():
            self._serving.result()

    @property
    def version(self) -> int:
        """The version of the state."""
        assert self.node is not None
        return self.node.broker.machine.version

    def is_ready(self) -> bool:
        return self.node is not None and self.node.readiness.why_not() is None


class ClusterHere:
    """Three nodes. Its methods are called from the thread of the test.

    On exit it stops all nodes, and raises the error that ended a node, if any.
    """

    def __init__(self, directory: Path, limits: NodeLimits | None = None) -> None:
        self._directory = directory
        self._limits = limits or NodeLimits()
        self._cleanup = ExitStack()
        self.nodes: list[NodeHere] = []

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            cleanup.callback(garbage.collect)  # nodes that begin to serve exempt all existing objects
            cleanup.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            files = local_nodes(self._directory, 3, _reserve_ports(3, cleanup))
            prepare(self._directory, files, fresh=False)
            self.nodes = [
                NodeHere(replace(config.load(node.config, {}), limits=self._limits)) for node in files
            ]
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever)
            self._thread.start()
            cleanup.callback(self._end_loop)
            for node in self.nodes:
                cleanup.callback(self.stop, node)
            self.start(*self.nodes)
            # A new cluster goes over to the newest version of the state within its first second.
            self.wait_until(lambda: all(node.version == VERSIONS[1] for node in self.nodes))
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Functions on the loop

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        async def call() -> T:
            return function(*arguments)

        return self._run(call())

    def start(self, *nodes: NodeHere) -> None:
        for node in nodes:
            self._run(node.start())
        self.wait_until(lambda: all(node.is_ready() for node in nodes))

    def stop(self, *nodes: NodeHere) -> None:
        for node in nodes:
            self._run(node.stop())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def wait_until(self, condition: Callable[[], T | None]) -> T:
        """Wait until a condition is true, and return its value."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := self.call(condition)):
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)
        return found

    def operate(self, node: NodeHere, *commands: Command) -> None:
        """Submit an operator's commands through a node, and return when this node has applied them."""
        assert node.node is not None
        submissions = node.node.broker.submissions
        applied = threading.Event()

        def submit() -> None:
            for command in commands:
                submissions.add(command)
            submissions.read_barrier(applied.set)

        self.call(submit)
        assert applied.wait(PATIENCE_S)

    @contextmanager
    def lagging(self, node: NodeHere) -> Generator[None]:
        """Delay messages of peers to this node, by less than the time after which it would suspect its leader."""
        assert node.node is not None
        links: Any = node.node.links
        deliver = links.deliver
        late: deque[tuple[Any, ...]] = deque()

        def deliver_late(*arguments: Any) -> None:
            late.append(arguments)
            self._loop.call_later(LAG_S, deliver_first)

        def deliver_first() -> None:
            if late:
                deliver(*late.popleft())

        def deliver_rest() -> None:
            """Deliver the delayed messages before new ones, because a link keeps the order."""
            del links.deliver
            while late:
                deliver_first()

        self.call(setattr, links, "deliver", deliver_late)
        try:
            yield
        finally:
            self.call(deliver_rest)

    # The group

    @property
    def running(self) -> list[NodeHere]:
        return [node for node in self.nodes if node.running]

    def leader(self) -> NodeHere:
        """Return the leader, once all nodes know it."""
        name = self.wait_until(self._leader_of_all)
        return next(node for node in self.nodes if node.name == name)

    def _leader_of_all(self) -> str | None:
        first, *rest = {self._leader_of(node) for node in self.running}
        return None if rest else first

    def _leader_of(self, node: NodeHere) -> str | None:
        return node.node.group.leader if node.node else None

    def hand_over(self) -> None:
        """Transfer leadership, and wait until all nodes know the new leader."""
        old = self.leader()
        assert old.node is not None
        term = self.call(lambda: old.node.group.engine.term)
        deadline_s = time.monotonic() + PATIENCE_S
        while self.call(lambda: old.node.group.engine.term) == term:
            self.call(old.node.group.leadership.transfer)
            time.sleep(POLL_S)
            assert time.monotonic() < deadline_s
        self.wait_until(lambda: {self._leader_of(node) for node in self.running} not in ({None}, {old.name}))
        self.leader()

    def digests(self) -> set[str]:
        """Of the states of all nodes, at a moment when all have applied the same."""
        while True:
            for node in self.nodes:
                node.check()
            found = self.call(self._digests_if_equal)
            if found is not None:
                return found
            time.sleep(POLL_S)

    def _digests_if_equal(self) -> set[str] | None:
        nodes = [node.node for node in self.nodes if node.node is not None]
        if len({node.group.engine.applied_index for node in nodes}) > 1:
            return None
        return {node.broker.machine.digest() for node in nodes}
