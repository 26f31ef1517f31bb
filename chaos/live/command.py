"""`python -m chaos run`: carries out a run from the command line, judges it and writes its report.

Invariant: the status is 0 only if the run went as planned and every promise was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from chaos.live import nemesis
from chaos.live.run import Options, run
from chaos.workloads import catalog
from chaos.workloads.transport import Endpoint
from chaos.workloads.world import MIXED, PROTOCOLS, protocols_of
from qq.cli.client.credentials import client_login
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Sequence

NONE = "none"
BAD_OPTION = 2
PASSWORD = "--password"  # noqa: S105 -- the name of the option
HIDDEN = "..."
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}


class OptionError(OperatingError):
    """An option is unknown or makes no sense."""


def main(argv: Sequence[str]) -> int:
    """Carry out a run and judge it; return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        options = _options(arguments, f"python -m chaos run {shlex.join(without_password(argv))}")
        print(f"seed {options.seed}", flush=True)
        outcome = asyncio.run(run(options))
    except OperatingError as error:
        print(f"chaos run: {error}", file=sys.stderr)
        return BAD_OPTION
    for problem in outcome.problems:
        print(f"PROBLEM: {problem}")
    print(f"run: {outcome.directory}")
    kept = _judge(outcome.directory) if arguments.check else True
    return 0 if kept and not outcome.problems else 1


def without_password(argv: Sequence[str]) -> list[str]:
    """Return the command line without passwords, because it is shown in the report."""
    shown: list[str] = []
    for before, argument in pairwise(("", *argv)):
        name, equals, _ = argument.partition("=")
        if before == PASSWORD:
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if name == PASSWORD and equals else argument)
    return shown


def _judge(directory: Path) -> bool:
    """Check the run and write its report; return whether every promise was kept."""
    # Spark and the plotting library are large, and a run without a check works without them.
    from chaos import report  # noqa: PLC0415
    from chaos.pipeline import job  # noqa: PLC0415

    verdict = job.check(directory)
    print(job.describe(verdict))
    print(f"report: {report.write(directory)}")
    return verdict.valid


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos run",
        allow_abbrev=False,
        description="Start a cluster, load it, hurt it, and decide whether it broke a promise.",
    )
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--for", dest="duration", default="60s", help="how long to hurt it: 60s, 5m, 1h")
    parser.add_argument("--nemesis", help="names of faults or groups of them (default: all); none")
    parser.add_argument("--workloads", default=catalog.ALL, help="names of workloads")
    parser.add_argument(
        "--protocol",
        choices=(*PROTOCOLS, MIXED),
        default=MIXED,
        help="AMQP of the clients; mixed (default): each draws a version for each connection. "
        "Transactions always use 0-9-1",
    )
    parser.add_argument("--seed", type=int, help="of the faults and of what is published; else a random one")
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second (default: %(default)g)")
    parser.add_argument("--out", type=Path, help="directory of the run (default: var/chaos/TIME-SEED)")
    parser.add_argument(
        "--endpoints", help="host:port,... of a cluster that is there: it is loaded, not hurt"
    )
    parser.add_argument(
        "--http", help="with --endpoints: http://host:port,... of the same cluster, for readers of leases"
    )
    # Named like the options of `qq` (qq/cli/options.py), and turned into a login by the same function. They are
    # declared here again because they belong to --endpoints, and chaos has no context that could hold them.
    parser.add_argument("--user", help="with --endpoints; default: QQ_USER of the environment, or guest")
    passwords = parser.add_mutually_exclusive_group()
    passwords.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="with --endpoints; default: QQ_PASSWORD_FILE or QQ_PASSWORD of the environment, or guest",
    )
    passwords.add_argument(PASSWORD, help="with --endpoints; others see it in the list of processes")
    parser.add_argument("--no-check", dest="check", action="store_false", help="record only")
    return parser


def _options(arguments: argparse.Namespace, command: str) -> Options:
    if not arguments.rate > 0:
        raise OptionError(f"--rate {arguments.rate:g}: no messages, no run")
    seed = arguments.seed
    if seed is None:
        seed = SystemRandom().getrandbits(32)
        command = f"{command} --seed {seed}"
    if arguments.http is not None and arguments.endpoints is None:
        raise OptionError(f"--http {arguments.http}: it belongs to --endpoints")
    login = client_login(arguments.user, arguments.password, arguments.password_file, os.environ)
    return Options(
        nodes=arguments.nodes,
        seconds=parse_duration(arguments.duration),
        nemesis=_faults(arguments),
        workloads=tuple(arguments.workloads.split(",")),
        protocols=protocols_of(arguments.protocol),
        seed=seed,
        rate=arguments.rate,
        out=arguments.out,
        endpoints=() if arguments.endpoints is None else parse_endpoints(arguments.endpoints),
        http=() if arguments.http is None else parse_urls(arguments.http),
        user=login.user,
        password=login.password,
        command=command,
    )


def _faults(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the requested faults. Raises OptionError if they are for a cluster that chaos did not start."""
    names = arguments.nemesis
    if names == NONE or (names is None and arguments.endpoints is not None):
        return ()
    faults = nemesis.chosen((nemesis.ALL if names is None else names).split(","))
    if arguments.endpoints is not None:
        raise OptionError(f"--nemesis {names} and --endpoints: a cluster that is there is loaded, not hurt")
    return faults


def parse_duration(text: str) -> float:
    """Return the seconds of "90s", "5m", "1h" or "90". Raises OptionError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not seconds:
        raise OptionError(f"{text!r} is no duration: write 60s, 5m or 1h")
    return seconds


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints n1, n2, ... of "host:port,host:port". Raises OptionError."""
    endpoints = []
    for number, part in enumerate(text.split(","), start=1):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise OptionError(f"{part.strip()!r} is no endpoint: write host:port,host:port")
        endpoints.append(Endpoint(f"n{number}", host.strip("[]"), int(port)))
    return tuple(endpoints)


def parse_urls(text: str) -> tuple[str, ...]:
    """Return the addresses of "http://host:port,https://host:port". Raises OptionError."""
    urls = tuple(part.strip().rstrip("/") for part in text.split(","))
    for url in urls:
        if not re.fullmatch(r"https?://[^/?#\s]+", url):
            raise OptionError(f"{url!r} is no address: write http://host:port,http://host:port")
    return urls
