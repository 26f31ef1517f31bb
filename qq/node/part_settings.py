"""Derives the settings of each part of a node from the node's configuration."""

from __future__ import annotations

import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cluster.config import GroupConfig
from cluster.configuration.configuration import PeerAddress, host_problem
from cluster.raft.timing import Timing
from qq.amqp.connection import Settings
from qq.amqp10.connection import Settings10
from qq.amqp10.receiving_link import ReceivingLimits
from qq.amqp10.session import SessionLimits
from qq.amqp10.values import Symbol
from qq.client_sockets.shared import keepalive_of
from qq.config import ConfigError
from qq.errors import StartError
from qq.http.base.listener import HttpLimits
from qq.management.reports.nodes import CertificateFiles, Listener
from qq.tls.handshakes import TlsHandshakes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from ssl import SSLContext

    from qq.config import NodeAddress, NodeConfig, Seed
    from qq.oauth2.code_flow import CodeFlow
    from qq.oauth2.verifier import Verifier
    from qq.tls.reloadable import Reloadable
    from qq.tracing.tracer import OpenTelemetryTracer


def group_config(config: NodeConfig) -> GroupConfig:
    """Return the settings of the replicated group."""
    limits = config.limits
    listed = [config.address] if config.join else config.nodes
    return GroupConfig(
        name=config.name,
        nodes=addresses(listed),
        cluster=config.cluster_name,
        joins=bool(config.join),
        replaces_emptied=config.replace_emptied,
        raises_version=config.finish_upgrades,
        timing=Timing(
            config.election_timeout_min_s,
            config.election_timeout_max_s,
            config.heartbeat_s,
            learner_bytes_per_s=limits.catch_up_bytes_per_s,
        ),
        segment_bytes=limits.segment_bytes,
        segment_entries=limits.segment_entries,
        cache_bytes=limits.cache_bytes,
        checkpoint_entries=limits.checkpoint_entries,
        checkpoint_bytes=limits.checkpoint_bytes,
        checkpoint_interval_s=limits.checkpoint_interval_s,
        retained_bytes=limits.retained_bytes,
        disk_free_limit_bytes=limits.disk_free_limit_bytes,
    )


def amqp_settings(config: NodeConfig) -> Settings:
    """Return the settings of AMQP connections."""
    return Settings(
        product=config.product,
        version=config.version,
        cluster_name=config.cluster_name,
        channel_max=config.limits.channel_max,
        frame_max=config.limits.frame_max,
        heartbeat_s=config.limits.client_heartbeat_s,
        message_bytes_max=config.limits.message_bytes,
        platform=_platform(),
    )


def amqp10_settings(config: NodeConfig) -> Settings10:
    """Return the settings of AMQP 1.0 connections."""
    limits = config.limits
    told = Settings()
    properties = {
        "product": config.product,
        "version": config.version,
        "platform": _platform(),
        "copyright": told.copyright,
        "information": "AMQP 1.0",
        "cluster_name": config.cluster_name,
        "node": config.name,
    }
    return Settings10(
        container_id=config.cluster_name,
        properties={Symbol(key): value for key, value in properties.items()},
        offered_capabilities=("LINK_PAIR_V1_0", "ANONYMOUS-RELAY"),
        idle_time_out_ms=limits.client_heartbeat_s * 1000 // 2,
        sessions_max=limits.session_max_per_connection,
        frame_max=limits.frame_max,
        session=SessionLimits(
            limits.link_max_per_session - 1,
            limits.session_incoming_window,
            ReceivingLimits(limits.link_credit, limits.message_bytes, limits.frame_max),
        ),
    )


def _platform() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {socket.gethostname()}"


HTTP_REQUESTS_MAX = 128
"""Concurrent requests of users, unless configured otherwise: each may take as much memory as its body."""


def http_limits(config: NodeConfig, connections: int) -> HttpLimits:
    """Return the settings of the HTTP server for this number of connections."""
    limits = config.limits
    return HttpLimits(
        connections=connections,
        requests=limits.http_request_max or min(connections // 2, HTTP_REQUESTS_MAX),
        lease_streams=limits.lease_stream_max,
        header_timeout_s=limits.http_header_timeout_s,
        body_timeout_s=limits.http_body_timeout_s,
        idle_timeout_s=limits.http_idle_timeout_s,
        metrics_need_login=config.metrics_need_login,
        keepalive=keepalive_of(limits),
    )


def http_handshakes(config: NodeConfig, contexts: Reloadable[SSLContext] | None) -> TlsHandshakes | None:
    """Return the TLS handshakes of the HTTP port, or None for plain HTTP."""
    if contexts is None:
        return None
    return TlsHandshakes(lambda: contexts.current, config.limits.tls_handshake_timeout_s)


def addresses(nodes: Iterable[NodeAddress]) -> dict[str, PeerAddress]:
    """Return the peer addresses of nodes by name. Raises ConfigError for a host that no resolver could look up."""
    for node in nodes:
        _check_host(f"[[nodes]] {node.name}: host", node.host)
    return {node.name: PeerAddress(node.host, node.peer_port) for node in nodes}


def seeds(config: NodeConfig) -> tuple[Seed, ...]:
    """Return the addresses where a joining node dials first.

    Raises ConfigError for a host that no resolver could look up.
    """
    for seed in config.join:
        _check_host("[cluster] join: host", seed.host)
    return config.join


def _check_host(what: str, host: str) -> None:
    problem = host_problem(host)
    if problem is not None:
        raise ConfigError(f"{what}: {host!r} {problem}")


def certificates(config: NodeConfig) -> list[CertificateFiles]:
    """Return the certificates that the management API shows with their expiry."""
    shown = (("amqp/ssl", config.tls), ("https", config.http_tls), ("clustering/ssl", config.peer_tls))
    return [
        CertificateFiles(protocol, str(files.cert), None if files.ca is None else str(files.ca))
        for protocol, files in shown
        if files is not None
    ]


def open_ports(config: NodeConfig, http_port: int, *, is_serving: bool) -> list[Listener]:
    """Return the open ports; those for AMQP clients only if `is_serving`."""
    peer_tls, http_tls = config.peer_tls is not None, config.http_tls is not None
    clustering = "clustering/ssl" if peer_tls else "clustering"
    ports = [
        Listener("https" if http_tls else "http", config.http_host, http_port, http_tls),
        Listener(clustering, config.peer_host, config.address.peer_port, peer_tls),
    ]
    if is_serving:
        ports.append(Listener("amqp", config.amqp_host, config.address.amqp_port))
    if is_serving and config.address.amqps_port is not None:
        ports.append(Listener("amqp/ssl", config.amqps_host, config.address.amqps_port, uses_tls=True))
    return ports


def verifier(config: NodeConfig) -> Verifier | None:
    """Return the verifier of tokens, if OAuth 2 is configured. Raises StartError.

    The libraries are imported only if they are needed, because that takes time.
    """
    if config.oauth2 is None:
        return None
    with _of_extra("oauth2"):
        from qq.oauth2.verifier import Verifier  # noqa: PLC0415
    return Verifier(config.oauth2)


def login_provider(config: NodeConfig, tokens: Verifier | None) -> CodeFlow | None:
    """Return the code flow for logins to the management page at a token issuer, or None for passwords only."""
    if tokens is None or config.oauth2 is None or config.oauth2.client_id is None:
        return None
    from qq.oauth2.code_flow import CodeFlow  # noqa: PLC0415

    return CodeFlow(config.oauth2, config.oauth2.client_id, tokens)


def tracer(config: NodeConfig) -> OpenTelemetryTracer | None:
    """Return the tracer of messages, if tracing is configured. Raises StartError."""
    if config.tracing is None:
        return None
    with _of_extra("tracing"):
        from qq.tracing.tracer import OpenTelemetryTracer  # noqa: PLC0415
    return OpenTelemetryTracer(config.tracing, config.name, config.cluster_name)


@contextmanager
def _of_extra(name: str) -> Generator[None]:
    """Turn a missing import in the block into a StartError that names the package extra.

    The extra has the name of the section of the configuration.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise StartError(
            f"[{name}] needs {missing.name}: pip install 'qq-broker[{name}]', or -r requirements/{name}.txt"
        ) from None
