"""Runs a seed of floods: random mixes of frames, connections and hang-ups against a cluster, beside a light client.

Invariant: the floods are a function of the seed. Each answer to the light client comes before the node has used
`WAIT_CPU_S` of processor time, /livez answers, the leader keeps its office, and every node lives.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from chaos.fuzz.answers import HarmError
from chaos.fuzz.floods import (
    WAIT_CPU_S,
    Waited,
    clear,
    connect,
    flooding,
    make_tls,
    mixed,
    plan,
    prepare,
)
from chaos.fuzz.legal_run import Pulse
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from chaos.fuzz.floods import Tls
    from qq.testing import ClusterNode

CONNECTIONS = (1, 5, 20, 100)
ROUND_S = (0.3, 2.0)
"""Seconds of a round of floods: the least, and the most."""
AFTER_S = 0.5
"""Seconds that are measured after the floods have hung up."""
AT_ONCE = 3
"""Floods of a round, at most."""


class FloodOutcome(NamedTuple):
    """The result of a seed."""

    seed: int
    rounds: int
    waited: Waited
    longest_livez_s: float
    violation: str


def run_floods(seed: int, *, rounds: int, until_s: float) -> FloodOutcome:
    """Flood a cluster for some rounds, or fewer after `until_s` on the monotonic clock; return the result."""
    random = Random(seed)
    waited, done, violation = Waited(), 0, ""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="qq-floods-")))
        tls = make_tls(directory)
        cluster = stack.enter_context(LocalCluster(3, directory / "cluster", tls.settings))
        node = cluster.leader()
        prepare(node)
        pulse = Pulse(node)
        pulse.start()
        stack.callback(pulse.stop)
        while done < rounds and time.monotonic() < until_s and not violation:
            violation, waited = _round(random, node, tls, waited)
            if not violation:
                violation = _harm(cluster, node, pulse)
            clear(node)
            done += 1
    return FloodOutcome(
        seed, done, waited, pulse.longest_s, f"round {done}: {violation}" if violation else ""
    )


def _round(random: Random, node: ClusterNode, tls: Tls, waited: Waited) -> tuple[str, Waited]:
    try:
        light = connect(node, random.choice((None, tls)))
        with ExitStack() as floods:
            for _ in range(random.randint(1, AT_ONCE)):
                flood = plan(mixed(random), random.choice(CONNECTIONS))
                floods.enter_context(flooding(node, flood, random.choice((None, tls))))
            waited = light.wait(random.uniform(*ROUND_S), waited)
        waited = light.wait(AFTER_S, waited)
        light.close()
    except (OSError, EOFError) as error:
        return f"the light client: {error}", waited
    if waited.cpu_s > WAIT_CPU_S:
        text = f"an answer to the light client took {waited.cpu_s * 1000:.0f} ms of processor time"
        return text, waited
    return "", waited


def _harm(cluster: LocalCluster, node: ClusterNode, pulse: Pulse) -> str:
    """Return the harm to the cluster, or an empty text."""
    if dead := [each.name for each in cluster.nodes if not each.running]:
        return f"{', '.join(dead)} ended"
    if cluster.leader() is not node:
        return f"{node.name} leads no more"
    try:
        pulse.check()
    except HarmError as error:
        return str(error)
    return ""
