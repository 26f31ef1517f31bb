"""The command `qq`.

Lives here: the subcommands and their options. A command is a module with a function that returns the exit status; it is
imported when it is called for, because a node is large and most commands are small.

Law: an operating error is one line on standard error and the exit status of its kind, never a traceback.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from qq import __version__, garbage
from qq.cli import ending
from qq.cli.layout import BASE_PORT_MAX
from qq.errors import OperatingError
from qq.packages import find_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.cli.remote import Remote
    from qq.config import Seed

TIMEOUT_S = 600.0
"""How long commands wait that change something: a new node has to be given the log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit status."""
    options = _parser().parse_args(arguments)
    find_cluster()
    try:
        return _run(options)
    except OperatingError as error:
        print(f"qq {_name(options)}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:  # before the command had its own signal handlers
        return 130


def _name(options: argparse.Namespace) -> str:
    return " ".join(filter(None, [options.command, getattr(options, "subcommand", None)]))


def _run(options: argparse.Namespace) -> int:
    match _name(options):
        case "up":
            from qq.cli.up import up  # noqa: PLC0415

            return up(
                data_dir=options.data_dir,
                node_count=options.nodes,
                base_port=options.base_port,
                fresh=options.fresh,
                restart=options.restart,
            )
        case "serve":
            with garbage.none_expected():
                from qq.cli.serve import serve  # noqa: PLC0415

            return serve(options.config, join=options.join)
        case "status":
            from qq.cli.status import status  # noqa: PLC0415

            return status(_remote(options), as_json=options.json)
        case "leader show":
            from qq.cli.operations import show_leader  # noqa: PLC0415

            return show_leader(_remote(options))
        case "leader transfer":
            from qq.cli.operations import transfer_leadership  # noqa: PLC0415

            if options.timeout and options.to is None:
                options.refuse("--timeout needs --to: without it each try moves leadership on")
            return transfer_leadership(_remote(options), options.to)
        case "check safe-to-stop":
            from qq.cli.operations import check_safe_to_stop  # noqa: PLC0415

            return check_safe_to_stop(_remote(options), options.node)
        case "member list":
            from qq.cli.members import list_members  # noqa: PLC0415

            return list_members(_remote(options), as_json=options.json)
        case "member add" | "member remove" | "member replace" | "member promote":
            return _change_members(options)
        case "drain" | "revive" | "upgrade finish":
            return _change_members(options)
        case "inspect":
            from qq.cli.inspect import dump, inspect  # noqa: PLC0415

            if options.dump:
                return dump(options.directory, options.first or 0, options.last)
            if (options.first, options.last) != (None, None):
                options.refuse("--from and --to need --dump: else all is checked")
            return inspect(options.directory)
        case "backup":
            from qq.cli.backup import backup  # noqa: PLC0415

            with ending.in_order():
                return backup(_remote(options), options.target)
        case "restore":
            from qq.cli.restore import restore_backup  # noqa: PLC0415

            with ending.in_order():
                return restore_backup(options.backup, options.config)
        case "recover":
            from qq.cli.restore import recover_survivor  # noqa: PLC0415

            return recover_survivor(options.survivor, is_sure=options.yes)
        case command:
            raise AssertionError(command)


def _change_members(options: argparse.Namespace) -> int:
    """Run a command about members; raises OperatingError."""
    from qq.cli import members  # noqa: PLC0415

    node = _remote(options)
    match _name(options):
        case "member add":
            host, port = options.address
            return members.add_member(node, options.node, host, port, waits_for_vote=not options.no_wait)
        case "member remove":
            return members.remove_member(node, options.node)
        case "member replace":
            return members.replace_member(node, options.node, waits_for_vote=not options.no_wait)
        case "member promote":
            return members.promote_member(node, options.node)
        case "drain":
            return members.drain(node, options.node)
        case "revive":
            return members.revive(node, options.node)
        case _:
            return members.finish_upgrade(node)


def _remote(options: argparse.Namespace) -> Remote:
    """Make the `Remote` for the node that the options name; raises OperatingError."""
    from qq.cli.credentials import client_login  # noqa: PLC0415
    from qq.cli.remote import Remote  # noqa: PLC0415

    login = client_login(options.user, options.password, options.password_file, os.environ)
    return Remote(options.http, login, getattr(options, "timeout", None))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qq", description="A message broker with replicated queues.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    up_command = commands.add_parser("up", help="run a local cluster until Ctrl-C")
    up_command.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3)
    up_command.add_argument(
        "--data-dir", type=Path, default=Path("var"), metavar="DIR", help="kept between runs (default: ./var)"
    )
    up_command.add_argument(
        "--base-port",
        type=_base_port,
        default=5672,
        metavar="PORT",
        help="node i: AMQP on PORT+i-1, HTTP on that +10000, peers on that +20000 (default: 5672)",
    )
    up_command.add_argument("--fresh", action="store_true", help="delete the cluster in the directory first")
    up_command.add_argument("--restart", action="store_true", help="start a node that died again")

    serve_command = commands.add_parser("serve", help="run one node until SIGTERM")
    serve_command.add_argument("--config", type=Path, required=True, metavar="FILE")
    serve_command.add_argument(
        "--join",
        type=_seed,
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="become a member of the cluster whose node has this port for peers; may be given several times",
    )

    status_command = commands.add_parser("status", help="show the cluster as one of its nodes sees it")
    _add_node_options(status_command)
    status_command.add_argument("--json", action="store_true", help="print what the node answered")

    leader_command = commands.add_parser("leader", help="show or change who leads")
    leader_commands = leader_command.add_subparsers(dest="subcommand", required=True)
    _add_node_options(leader_commands.add_parser("show", help="print the name of the node that leads"))
    transfer_command = leader_commands.add_parser(
        "transfer", help="have another node lead; returns when it does"
    )
    _add_node_options(transfer_command)
    transfer_command.add_argument("--to", type=_node_name, metavar="NODE", help="default: any other")
    transfer_command.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="for how long to try again if NODE has not taken over (default: it is not)",
    )
    transfer_command.set_defaults(refuse=transfer_command.error)

    check_command = commands.add_parser("check", help="ask before you do something; exit status 0 is yes")
    check_commands = check_command.add_subparsers(dest="subcommand", required=True)
    stop_command = check_commands.add_parser(
        "safe-to-stop", help="whether the cluster goes on without a node"
    )
    _add_node_options(stop_command)
    stop_command.add_argument(
        "--node", type=_node_name, metavar="NODE", help="default: the node that is asked"
    )
    stop_command.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long to wait for a yes (default: it is not waited for)",
    )

    backup_command = commands.add_parser("backup", help="make a backup of a cluster that runs")
    backup_command.add_argument(
        "target", metavar="DIR|-", help="a new directory, or - for a tar archive on stdout"
    )
    _add_node_options(backup_command)

    restore_command = commands.add_parser("restore", help="begin a new cluster with what a backup holds")
    restore_command.add_argument(
        "backup", metavar="BACKUP", help="a directory, a file with a tar archive, or - for one from stdin"
    )
    restore_command.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="of the node that begins; its data is to be empty",
    )

    recover_command = commands.add_parser(
        "recover", help="begin a new cluster with what one node holds, when a majority is gone for good"
    )
    recover_command.add_argument(
        "--unsafe-from",
        dest="survivor",
        type=Path,
        required=True,
        metavar="DIR",
        help="the data directory of the node that is left; confirmed messages may be missing in it",
    )
    recover_command.add_argument(
        "--yes", action="store_true", help="do it, and not only tell what may be missing"
    )

    _add_member_commands(commands)

    inspect_command = commands.add_parser(
        "inspect", help="check the data directory of a node that does not run, or a backup"
    )
    inspect_command.add_argument("directory", type=Path, metavar="DIR", help="nothing in it is changed")
    inspect_command.add_argument("--dump", action="store_true", help="print the entries of the log instead")
    inspect_command.add_argument("--from", dest="first", type=int, metavar="INDEX")
    inspect_command.add_argument("--to", dest="last", type=int, metavar="INDEX")
    inspect_command.set_defaults(refuse=inspect_command.error)
    return parser


def _add_member_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    member_command = commands.add_parser("member", help="show or change the members of the cluster")
    member_commands = member_command.add_subparsers(dest="subcommand", required=True)
    list_command = member_commands.add_parser("list", help="show the members")
    _add_node_options(list_command)
    list_command.add_argument("--json", action="store_true", help="print what the node answered")
    add_command = member_commands.add_parser("add", help="take a node in; returns when it votes")
    add_command.add_argument("node", type=_node_name, metavar="NODE")
    add_command.add_argument("address", type=_seed, metavar="HOST:PORT", help="where the others reach it")
    _add_change_options(add_command, may_leave_early=True)
    remove_command = member_commands.add_parser("remove", help="have a member be none any more, up or down")
    remove_command.add_argument("node", type=_node_name, metavar="NODE")
    _add_change_options(remove_command)
    replace_command = member_commands.add_parser(
        "replace", help="have another data directory take the place of one that is lost"
    )
    replace_command.add_argument("node", type=_node_name, metavar="NODE")
    _add_change_options(replace_command, may_leave_early=True)
    promote_command = member_commands.add_parser("promote", help="wait until a member votes")
    promote_command.add_argument("node", type=_node_name, metavar="NODE")
    _add_change_options(promote_command)

    drain_command = commands.add_parser(
        "drain", help="have a node lead nothing and serve no clients; returns when all have gone"
    )
    revive_command = commands.add_parser("revive", help="end what `qq drain` has begun")
    for command in (drain_command, revive_command):
        command.add_argument(
            "node", nargs="?", type=_node_name, metavar="NODE", help="default: the node that is asked"
        )
        _add_change_options(command)

    upgrade_command = commands.add_parser("upgrade", help="go over to the next version of the state")
    upgrade_commands = upgrade_command.add_subparsers(dest="subcommand", required=True)
    finish_command = upgrade_commands.add_parser(
        "finish", help="have all nodes go over to what the node that is asked can run; no way back"
    )
    _add_change_options(finish_command)


def _add_change_options(command: argparse.ArgumentParser, *, may_leave_early: bool = False) -> None:
    _add_node_options(command)
    command.add_argument(
        "--timeout", type=_seconds, default=TIMEOUT_S, metavar="SECONDS", help="default: %(default)g"
    )
    if may_leave_early:
        command.add_argument("--no-wait", action="store_true", help="return before the node votes")


def _add_node_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say which node to ask, and as which user."""
    command.add_argument(
        "--http", type=_url, default="http://127.0.0.1:15672", metavar="URL", help="the node to ask"
    )
    command.add_argument("--user", help="default: QQ_USER of the environment, or guest")
    passwords = command.add_mutually_exclusive_group()
    passwords.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="default: QQ_PASSWORD_FILE or QQ_PASSWORD of the environment, or the password guest",
    )
    passwords.add_argument("--password", help="others see it in the list of processes")


def _node_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must be the name of a node")
    return text


def _url(text: str) -> str:
    """Make a URL of `HOST:PORT`; a URL stays as it is."""
    is_whole = "://" in text
    url = text if is_whole else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or is_whole)
    except ValueError:  # of the port, or of an address of IPv6
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise argparse.ArgumentTypeError(f"{text!r} is neither HOST:PORT nor a URL of http or https")
    return url


def _seed(text: str) -> Seed:
    from qq.config import seed_in  # noqa: PLC0415

    try:
        return seed_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("must be a number of seconds")
    return seconds


def _base_port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= BASE_PORT_MAX:
        raise argparse.ArgumentTypeError(f"must be 1 to {BASE_PORT_MAX}")
    return port
