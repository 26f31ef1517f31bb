"""The command line as such: help, mistakes, completion, imports, and output on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from qq.cli.command_line.examples import EXAMPLES
from qq.cli.command_line.rabbitmq_commands import COMMANDS
from qq.cli.root import SECTIONS, root
from qq.cli.terminal import progress
from qq.cli.terminal.escaping import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Said

    from qq.testing import ClusterNode

    Qq = Callable[..., Said]

CHECKOUT = Path(__file__).parents[2]
QQ = [sys.executable, "-P", str(CHECKOUT / "qq" / "__main__.py")]
ENTRIES = [entry for entries in SECTIONS.values() for entry in entries]
NAMES = [entry.name for entry in ENTRIES]


def test_help_lists_every_module_of_the_commands() -> None:
    modules = {file.stem for file in (CHECKOUT / "qq" / "cli" / "commands").glob("*.py")}
    assert modules - {"__init__"} == {entry.module for entry in ENTRIES}
    assert len(NAMES) == len(set(NAMES))


def test_the_help_names_all_commands(called: Qq) -> None:
    result = called("--help")
    assert (result.status, result.errors) == (0, "")
    assert set(re.findall(r"^  ([a-z][a-z-]*)  ", result.output, re.MULTILINE)) == {*NAMES}
    assert called().status == 2
    assert called().errors == result.output
    assert called("-h") == result


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_for_all_its_options(called: Qq, name: str) -> None:
    command = root.get_command(click.Context(root), name)
    commands = {name: command}
    if isinstance(command, click.Group):
        commands |= {f"{name} {part}": below for part, below in command.commands.items()}
    for command_words, each in commands.items():
        result = called(*command_words.split(), "--help")
        assert (result.status, result.errors) == (0, "")
        assert result.output.startswith(f"Usage: qq {command_words} ")
        assert all(option.help for option in each.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    ("arguments", "command", "expected"),
    [
        (["lst"], "qq", "No such command 'lst'. Did you mean 'list'?"),
        (["list", "queue"], "qq list", "No such command 'queue'. Did you mean 'queues'?"),
        (["xyz"], "qq", "No such command 'xyz'"),
        (["--verison"], "qq", "No such option '--verison'. Did you mean '--version'?"),
        (["list_queues"], "qq", "`list_queues` is `qq list queues` here"),
        (["list-queues"], "qq", "`list_queues` is `qq list queues` here"),
        (["users"], "qq", "`users` is `qq list users` here"),
        (["reset"], "qq", "`reset`: stop the node and empty its data directory"),
        (["help", "list", "queue"], "qq list", "No such command 'queue'. Did you mean 'queues'?"),
        (["help", "status", "x"], "qq status", "`qq status` has no commands"),
        (
            ["status", "--url", "amqp://guest:s3cret@127.0.0.1"],
            "qq status",
            (
                "Invalid value for '--url' / '--http': this is an address of AMQP; commands use HTTP, by default at "
                "port 15672: http://HOST:15672"
            ),
        ),
        (
            ["--vhost", "v", "list", "users"],
            "qq",
            "No such option '--vhost' here: options stand behind the whole command",
        ),
        (
            ["list", "-x", "users"],
            "qq list",
            "No such option '-x' here: options stand behind the whole command",
        ),
        (["drain", "--timeuot", "1"], "qq drain", "No such option '--timeuot'. Did you mean '--timeout'?"),
        (["declare", "queue"], "qq declare queue", "Missing option '--name'"),
        (
            ["declare", "queue", "--name", ""],
            "qq declare queue",
            "Invalid value for '--name': must not be empty",
        ),
        (
            ["declare", "queue", "--name", "\udcff"],
            "qq declare queue",
            "Invalid value for '--name': is not UTF-8",
        ),
        (["list", "users", "--regex", "("], "qq list users", None),
        (["list", "users", "--name", "a", "--regex", "b"], "qq list users", "give either --name or --regex"),
        (["list", "users", "--columns", "a,,b"], "qq list users", None),
        (["list", "users", "-o", "xml"], "qq list users", None),
        (["list", "limits", "--vhost", "a", "--for-user", "b"], "qq list limits", None),
        (["status", "--url", "a:1", "--context", "b"], "qq status", "give either --url or --context"),
        (["declare", "policy", "--definition", "[" * 100_000], "qq declare policy", None),
        (
            ["declare", "user", "--name", "u", "--no-password", "--password-hash", "x"],
            "qq declare user",
            None,
        ),
        (
            [
                "declare",
                "queue",
                "--name",
                "q",
                "--type",
                "quorum",
                "--arguments",
                '{"x-queue-type": "classic"}',
            ],
            "qq declare queue",
            "--type and x-queue-type in --arguments do not agree: give one of them",
        ),
        (["close", "connection", "--name", "x", "--reason", "a\nb"], "qq close connection", None),
        (["up", "--nodes", "2"], "qq up", None),
        (["up", "--base-port", "99999"], "qq up", None),
        (["completion", "tcsh"], "qq completion", None),
    ],
)
def test_mistyped_command_is_reported_with_a_suggestion(
    called: Qq, arguments: list[str], command: str, expected: str | None
) -> None:
    status, output, errors = called(*arguments)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"{command}: ")
    assert errors.endswith(f" (see `{command} --help`)\n")
    assert expected in (None, errors.removeprefix(f"{command}: ").partition(" (see ")[0])
    assert len(errors) < 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--user", "a:b"],
        ["status", "--user", "\udcff"],
        ["status", "--password", "\udcff"],
        ["drain", "\udcff"],
        ["context", "add", "a", "--url", "a:1", "--user", "\udcff"],
    ],
)
def test_text_that_is_not_utf8_is_refused(called: Qq, arguments: list[str]) -> None:
    status, output, errors = called(*arguments, *([] if "--url" in arguments else ["--url", "127.0.0.1:9"]))
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert "not UTF-8" in errors or "with a colon" in errors


def test_names_of_rabbitmqs_tools_are_understood(called: Qq) -> None:
    assert called("change_password", "--help").output.startswith("Usage: qq change-password ")
    assert called("list", "topic_permissions", "--help").output.startswith(
        "Usage: qq list topic-permissions "
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(called: Qq, shell: str) -> None:
    result = called("completion", shell)
    assert (result.status, result.errors) == (0, "")
    assert f"_QQ_COMPLETE={shell}_complete" in result.output


def test_commands_options_and_contexts_are_completed(called: Qq) -> None:
    assert called("context", "add", "production", "--url", "n1:1").status == 0

    def completed(*command_words: str) -> list[str]:
        environ = {
            "_QQ_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["qq", *command_words]),
            "COMP_CWORD": str(len(command_words)),
        }
        ended = subprocess.run(QQ, env=os.environ | environ, capture_output=True, text=True, check=True)
        return [line.partition(",")[2] for line in ended.stdout.splitlines()]

    assert completed("dec") == ["declare"]
    assert completed("list", "op") == ["operator-policies"]
    assert completed("list", "queues", "--reg") == ["--regex"]
    assert completed("status", "--context", "p") == ["production"]
    for command in ("use", "remove", "show"):
        assert completed("context", command, "p") == ["production"]


def test_help_imports_no_large_modules() -> None:
    """Otherwise `qq serve` would start later."""
    program = """
import sys
from qq.cli import main
main(["--help"])
large = {"aiohttp", "asyncio", "cluster", "rich", "ssl", "qq.node", "qq.machine", "pysyncobj"} & {*sys.modules}
assert not large, large
assert "qq.cli.commands.list" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, capture_output=True)
    program = program.replace('main(["--help"])', 'main(["serve", "--help"])')
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, capture_output=True)


@pytest.mark.parametrize("command_line", ["list exchanges", "definitions export -"])
def test_full_disk_is_reported_and_a_closed_pipe_exits_with_141(
    real_node: ClusterNode, command_line: str
) -> None:
    command = [*QQ, *command_line.split(), "--url", f"127.0.0.1:{real_node.http_port}"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"qq {command_line.removesuffix(' -')}: standard output: No space left on device\n",
    )
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_tolerated(real_node: ClusterNode, closed: str) -> None:
    command = [*QQ, "status", "--url", f"127.0.0.1:{real_node.http_port}"]
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    if ">&-" in closed.split():
        assert ended.stdout == ""
    else:
        assert ended.stdout.startswith("all well: ")


def test_letters_that_a_terminal_does_not_have_are_written_out(real_node: ClusterNode, qq: Qq) -> None:
    assert qq("declare", "exchange", "--name", "é☃").status == 0
    command = [*QQ, "list", "exchanges", "--name", "é", "--url", f"127.0.0.1:{real_node.http_port}"]
    environ = os.environ | {"PYTHONIOENCODING": "latin-1"}
    for form, shown in (("table", b"\xe9\\u2603"), ("csv", b",\xe9\\u2603,"), ("json", b'"\\u00e9\\u2603"')):
        ended = subprocess.run([*command, "-o", form], env=environ, capture_output=True, check=True)
        assert shown in ended.stdout
    assert qq("delete", "exchange", "--name", "é☃").status == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b/é☃", "a b/é☃"),
        ("\x1b[31m\n\t\x7f\x9b", "\\x1b[31m\\x0a\\x09\\x7f\\x9b"),
        ("\u202e\u2028\U000e0001", "\\u202e\\u2028\\U000e0001"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_are_escaped_for_the_terminal(text: str, shown: str) -> None:
    assert escaped(text) == shown


def on_a_terminal(*arguments: str, at: str = "", typed: str = "", number: int = 0) -> tuple[int, str]:
    """Run a command on a terminal; return its exit status and the visible text.

    When the text matches `at`, type `typed`, or send the signal `number` at the first match.
    """
    ours, its = pty.openpty()
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([*QQ, *arguments], stdin=its, stdout=its, stderr=its, env=environ)
    os.close(its)
    seen, done = "", 0
    with suppress(OSError):  # there is no terminal any more
        while part := os.read(ours, 65536):
            seen += part.decode(errors="replace")
            if at and re.search(at, seen[done:]):
                done = len(seen)
                if typed:
                    os.write(ours, typed.encode())
                elif number:
                    process.send_signal(number)
                    number = 0
    os.close(ours)
    return process.wait(30), seen


def test_a_terminal_is_shown_a_table(qq: Qq, real_node: ClusterNode) -> None:
    url = f"127.0.0.1:{real_node.http_port}"
    assert qq("declare", "exchange", "--name", "[red]\x1b[31m").status == 0
    status, seen = on_a_terminal("list", "exchanges", "--columns", "name,type", "--name", "red", "--url", url)
    assert qq("delete", "exchange", "--name", "[red]\x1b[31m").status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert (status, [line.split() for line in plain.splitlines()]) == (
        0,
        [["name", "type"], ["[red]\\x1b[31m", "direct"]],
    )


def test_new_password_is_entered_twice_and_not_echoed(qq: Qq, real_node: ClusterNode) -> None:
    url = f"127.0.0.1:{real_node.http_port}"
    status, seen = on_a_terminal(
        "declare",
        "user",
        "--name",
        "typed",
        "--tags",
        "management",
        "--url",
        url,
        at="(password|confirmation): ",
        typed="s3cret\n",
    )
    assert status == 0
    assert "Repeat for confirmation" in seen
    assert "s3cret" not in seen
    assert qq("list", "vhosts", "--user", "typed", "--password", "s3cret").status == 0
    assert qq("delete", "user", "--name", "typed").status == 0


def test_top_refreshes_until_it_is_interrupted(real_node: ClusterNode) -> None:
    options = "--url", f"127.0.0.1:{real_node.http_port}", "--interval", "0.5"
    status, seen = on_a_terminal("top", *options, at="sent B/s", number=signal.SIGINT)
    assert status == 130
    assert "published/s" in seen
    assert "\x1b[?25h" in seen.rpartition("\x1b[?25l")[2], "the cursor is back"


def test_waiting_at_a_terminal_shows_a_notice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        status, seen = on_a_terminal("status", "--url", url, at="waiting for an answer", number=signal.SIGINT)
    assert status == 130
    assert "Traceback" not in seen
    assert "\x1b[?25h" in seen.rpartition("\x1b[?25l")[2], "the cursor is back"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_appears_for_slow_work_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*, prints: bool = False) -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.progress_bar("reading things", in_bytes=True, prints=prints) as bar:
            bar.update(5_000, 10_000)
        return terminal.getvalue()

    assert shown() == "", "it was fast"
    monkeypatch.setattr(progress, "NOTICE_S", 0.0)
    assert "reading things" in shown()
    assert "5.0/10.0 kB" in shown()
    assert "reading things" in shown(prints=True), "what it prints goes elsewhere"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert shown(prints=True) == ""


@pytest.mark.parametrize("url", ["http://guest:s3cret@host", "guest:s3/cret@host:1", "amqps://a:s3cret@b/"])
def test_password_in_a_url_is_refused_and_never_printed(
    called: Qq, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    assert "s3" not in called("status", "--url", url).errors
    monkeypatch.setenv("QQ_URL", url)
    result = called("status")
    assert result.status == 1
    assert "s3" not in result.errors


def test_https_at_a_port_without_tls_is_explained(qq: Qq, real_node: ClusterNode) -> None:
    result = qq("status", "--url", f"https://127.0.0.1:{real_node.http_port}")
    assert (result.status, result.errors.count("\n")) == (1, 1)
    assert "does not speak TLS: use http:// in place of https://" in result.errors


def test_request_to_a_peer_port_is_explained(qq: Qq, real_node: ClusterNode) -> None:
    peer_port = tomllib.loads(real_node.log.with_name("node.toml").read_text())["nodes"][0]["peer_port"]
    result = qq("status", "--url", f"127.0.0.1:{peer_port}")
    assert result.status == 1
    assert "is it the HTTP port of a node, by default 15672?" in result.errors


@pytest.mark.parametrize("command", sorted(set(COMMANDS.values())))
def test_counterpart_of_a_rabbitmq_command_exists(command: str) -> None:
    names, *options = command.removeprefix("qq ").split(" --")
    found: click.Command = root
    for name in names.split():
        assert isinstance(found, click.Group), command
        below = found.get_command(click.Context(found), name)
        assert below is not None, command
        found = below
    known = {name for option in found.params for name in option.opts}
    assert {f"--{option.split()[0]}" for option in options} <= known, command


def test_rabbitmqadmin_arguments_become_options(qq: Qq) -> None:
    made = qq("declare", "queue", "name=orders=x", "auto_delete=true", 'arguments={"x-max-length": 1}')
    assert (made.status, made.output) == (0, "queue 'orders=x' in '/': made\n")
    permitted = qq("declare", "permission", "vhost=/", "user=guest", "configure=.*", "write=.*", "read=.*")
    assert permitted.output == "permission of user 'guest' in '/': is as wanted\n"
    assert (
        qq("declare", "policy", "--name", "name=x", "--pattern", "a=b", 'definition={"max-length": 1}').status
        == 0
    )
    assert qq("delete", "policy", "--name", "name=x").status == 0
    assert qq("delete", "queue", "name=orders=x").status == 0


def test_help_of_a_command_is_that_of_its_option(called: Qq) -> None:
    assert called("help").output == called("--help").output
    for command_words in (("declare", "user"), ("change-tags",), ("list",)):
        assert called("help", *command_words).output == called(*command_words, "--help").output


def test_every_example_in_the_help_is_a_valid_command(called: Qq) -> None:
    for command, lines in EXAMPLES.items():
        shown = called(*command.removeprefix("qq ").split(), "--help").output
        for line in lines:
            assert line in shown, command
            assert line.startswith(f"{command} "), line
            command_words = shlex.split(line)
            assert command_words[: len(command.split())] == command.split()
            context = root.make_context("qq", command_words[1:], resilient_parsing=False)
            found: click.Command = root
            arguments = command_words[1:]
            while isinstance(found, click.Group):
                _, below, arguments = found.resolve_command(context, arguments)
                assert below is not None
                found = below
            found.make_context(command, arguments, parent=context)  # raises UsageError


def test_help_lists_own_options_before_node_options(called: Qq) -> None:
    for command in (("drain",), ("leader", "transfer"), ("member", "add"), ("list", "queues"), ("status",)):
        shown = called(*command, "--help").output
        own = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE)
        common = {
            "--url",
            "--context",
            "--user",
            "--password-file",
            "--password",
            "--output",
            "--json",
            "--help",
        }
        kinds = [option in common for option in own]
        assert kinds == sorted(kinds), command


def test_help_texts_of_subcommands_are_never_cut(called: Qq) -> None:
    for name in NAMES:
        group = root.get_command(click.Context(root), name)
        shown = "".join(called(name, "--help").output.split())
        for below in group.commands.values() if isinstance(group, click.Group) else ():
            assert "".join(below.get_short_help_str(1000).split()) in shown, below.name
