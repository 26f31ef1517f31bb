"""Backups over HTTP: permissions, the stream, and an interrupted backup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from qq.management.nodes.backups import Backups
from tests.http.fakes import FakeManagement
from tests.http.http_node import GUEST, Client, Node

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PATH = "cluster/backup"


class Stream:
    def __init__(self, parts: list[bytes], error: OSError | None) -> None:
        self._parts = parts
        self._error = error

    async def stream(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._error is not None:
            raise self._error


class FakeBackups(Backups):
    """Backups that end as the test says."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.is_given_back = False

    @asynccontextmanager
    async def make(self) -> AsyncGenerator[Any]:
        yield Stream([b"part"] * 3, self.error)
        self.is_given_back = True


class Giving(FakeManagement):
    """Management with backups that end as the test says."""

    backups: FakeBackups

    def __init__(self) -> None:
        super().__init__()
        self.backups = FakeBackups()


@pytest.fixture
def node() -> Node[Giving]:
    return Node(Giving())


def test_a_backup_is_for_administrators(node: Node[Giving]) -> None:
    node.add_user("watcher", "monitoring")
    refused = node.api(PATH, user="watcher")
    assert (refused.status, refused.json["error"]) == (401, "not_authorised")
    assert node.request(f"/api/{PATH}").status == 401


def test_backup_is_sent_in_parts(node: Node[Giving]) -> None:
    answer = node.api(PATH)
    assert (answer.status, answer.text) == (200, "partpartpart")
    assert node.management.backups.is_given_back


@pytest.mark.parametrize("error", [OSError("the file is gone"), ConnectionResetError()])
def test_interrupted_backup_ends_with_a_client_error(node: Node[Giving], error: OSError) -> None:
    node.management.backups.error = error

    async def request(client: Client) -> None:
        with pytest.raises(aiohttp.ClientError):
            await (await client.get(f"/api/{PATH}", headers=GUEST)).read()

    node.run(request)
    assert node.management.backups.is_given_back


def test_head_request_for_a_backup_is_405(node: Node[Giving]) -> None:
    assert node.api(PATH, "HEAD").status == 405
