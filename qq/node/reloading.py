"""The certificates and secrets of a node, which are read again when their files change."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from qq.config import read_secrets
from qq.tls import contexts
from qq.tls.reloadable import Reloadable

if TYPE_CHECKING:
    from cluster.transport.peer_links import PeerLinks
    from qq.config import NodeConfig

FILES_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks for changed certificates or secrets. A check takes some calls of stat()."""


class RereadFiles:
    """The certificates and secrets as last read; raises OperatingError if a file cannot be used at the start."""

    def __init__(self, config: NodeConfig) -> None:
        self.client_tls = contexts.for_clients(config.tls) if config.tls else None
        self.http_tls = contexts.for_clients(config.http_tls) if config.http_tls else None
        self.peer_tls = contexts.for_peers(config.peer_tls) if config.peer_tls else None
        file = config.secret_file
        self._secrets = Reloadable([file], partial(read_secrets, file)) if file else None
        self._secrets_of_config = config.secrets

    def cluster_secrets(self) -> tuple[bytes, ...]:
        """Return the secrets of the cluster that are in use now."""
        return self._secrets.current if self._secrets else self._secrets_of_config

    async def watch(self, links: PeerLinks) -> None:
        """Read changed files and pass their contents on to the links, until cancelled."""
        while True:
            await asyncio.sleep(FILES_CHECK_INTERVAL_S)
            for each in filter(None, (self.client_tls, self.http_tls)):
                each.reload()
            if self.peer_tls is not None and self.peer_tls.reload():
                links.renew_tls(self.peer_tls.current)
            if self._secrets is not None and self._secrets.reload():
                links.renew_secrets(self._secrets.current)
