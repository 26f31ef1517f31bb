"""Names in documents are there: modules, files, settings, metrics, commands and options, HTTP paths, targets of make.

And the other way round, where a reference claims to be complete: settings, metrics, HTTP paths, options of `qq`.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shlex
from dataclasses import fields
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import pytest
from aiohttp import web

from cluster.raft import messages
from cluster.runtime.histogram import Histogram
from qq import config
from qq.cli.client import credentials
from qq.cli.command_line.rabbitmq_commands import COMMANDS, NOT_NEEDED
from qq.cli.root import root
from qq.http import api
from qq.http.base.listener import HttpLimits
from qq.http.base.repeated_checks import RepeatedChecks
from qq.machine.catalog import limits
from qq.machine.policy.arguments import CONSUMER_ARGUMENTS
from qq.machine.policy.policies import OPERATOR_KEYS, POLICY_KEYS
from qq.machine.policy.queue_options import ALTERNATE_EXCHANGE, OWN_OPTIONS, QUEUE_OPTIONS
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.metrics.counters import (
    CertificateEnd,
    ClusterTotals,
    Counters,
    DelayMetrics,
    DiskMetrics,
    MemoryMetrics,
    MetricsSnapshot,
    RaftMetrics,
    SpanCounts,
)
from qq.metrics.prometheus import node_registry
from tests.docs.documents import ROOT, blocks, command_lines, name_of, of_each_document, prose, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REFERENCE = ROOT / "docs" / "reference"
PACKAGES = ("chaos", "cluster", "qq")


# --- modules and their contents

DOTTED = re.compile(r"(?<![\w./-])(?:qq|cluster|chaos)(?:\.[A-Za-z_]\w*)+(?![\w/])")
OF_A_CLUSTER = ("cluster.",)
"""In the documents for users `cluster` is the variable of their test."""


@of_each_document
def test_dotted_names_in_documents_exist(document: Path) -> None:
    for name in (name for span in spans(document) for name in DOTTED.findall(span)):
        if name.startswith(OF_A_CLUSTER) and document.parent != ROOT:
            assert name.split(".")[1] in attributes("qq/testing.py"), name
        elif Path(name).suffix != ".py":
            assert is_there(name), f"{name_of(document)}: {name}"


def is_there(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        if place.is_dir():
            file = place / "__init__.py"
        elif place.with_suffix(".py").is_file():
            file = place.with_suffix(".py")
        else:
            continue
        rest = parts[count:]
        return not rest or (file.is_file() and set(rest) <= attributes(str(file.relative_to(ROOT))))
    return False


@cache
def attributes(file: str) -> set[str]:
    """Return the names that a module and its classes define."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case _:
                pass
    return found


SOURCE = r"`((?:[\w.-]+/)*\w+\.py)`"
IDENTIFIER = r"`(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\(\))?`"
IDENTIFIERS = rf"{IDENTIFIER}(?:(?:, |,? and |,? or ){IDENTIFIER})*"
BEHIND_FILE = (
    re.compile(rf"{SOURCE}: (.*?)(?=[.;|](?: |$)|$)"),  # `file.py`: a field of `Name`, or of `Other`.
    re.compile(rf"\({SOURCE}((?:, {IDENTIFIER})+)"),  # (`file.py`, `name`)
)
BEFORE_FILE = (
    re.compile(rf"({IDENTIFIERS})(?:\*\*)? \([^)`]*{SOURCE}"),  # `Name` and `Other` (its kind, `file.py`)
    re.compile(rf"({IDENTIFIERS}) (?:in|of) {SOURCE}"),  # `name` in `file.py`
)
"""Phrases that place a name in a file. Naming both in a sentence does not."""
IN_MODULE = re.compile(r"(?<![\w/.:-])((?:[a-z_]\w*/)+[a-z_]\w*)\.([A-Za-z_]\w*)(?![\w./])")
"""`package/module.name`."""
SUFFIXES = {
    "c",
    "cpp",
    "cs",
    "go",
    "hpp",
    "html",
    "js",
    "json",
    "md",
    "php",
    "png",
    "py",
    "rb",
    "rs",
    "service",
    "sh",
    "toml",
    "txt",
    "yaml",
    "yml",
}


def paragraphs(document: Path) -> list[str]:
    """Return the text with each paragraph, list element and table row on a line."""
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) )", prose(document))
    return [" ".join(part.split()) for part in parts]


def names_beside_files(text: str) -> Iterator[tuple[str, str]]:
    """Each file and a name that the text says is in it."""
    found = [match.groups() for form in BEHIND_FILE for match in form.finditer(text)]
    found += [match.groups()[::-1] for form in BEFORE_FILE for match in form.finditer(text)]
    for file, behind in found:
        for span in re.findall(IDENTIFIER, behind):
            name = span.strip("`").removesuffix("()")
            if name not in PACKAGES and name.rpartition(".")[2] not in SUFFIXES:
                yield file, name


def is_in(name: str, path: str) -> bool:
    """Whether a file of this name defines it; of `Class.name` both, of `variable.name` the name."""
    *owners, last = name.split(".")
    wanted = {last, *(owner for owner in owners if owner[0].isupper())}
    return any(wanted <= attributes(file) for file in python_files() if f"/{file}".endswith(f"/{path}"))


@cache
def python_files() -> list[str]:
    tops = (*PACKAGES, "deploy", "examples", "tests")
    return [str(file.relative_to(ROOT)) for top in tops for file in (ROOT / top).rglob("*.py")]


@of_each_document
def test_document_names_the_file_that_defines_an_identifier(document: Path) -> None:
    mentioned = {pair for paragraph in paragraphs(document) for pair in names_beside_files(paragraph)}
    assert {(file, name) for file, name in mentioned if not is_in(name, file)} == set()


@of_each_document
def test_names_of_a_module_are_defined_in_its_file(document: Path) -> None:
    mentioned = {(f"{module}.py", name) for module, name in IN_MODULE.findall(document.read_text())}
    assert {
        (file, name) for file, name in mentioned if name not in SUFFIXES and not is_in(name, file)
    } == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3. `qq/a.py`: a field of `S`, and `f()` in it; `other`", [("qq/a.py", "S"), ("qq/a.py", "f")]),
        ("is (`a.py`, `_B`)", [("a.py", "_B")]),
        ("**`A`** (`a.py`); `B`, `C.d` (16, `b.py`)", [("a.py", "A"), ("b.py", "B"), ("b.py", "C.d")]),
        ("`A` in `a.py` is a `B`", [("a.py", "A")]),
        ("`A`, or whatever is in `a.py`, is a `B`; `a.py` and `b.py`: `c.py`", []),
    ],
)
def test_names_beside_files_are_found_in_a_paragraph(text: str, found: list[tuple[str, str]]) -> None:
    assert sorted(names_beside_files(text)) == found


def test_wire_document_lists_all_messages_between_nodes() -> None:
    text = (ROOT / "docs" / "formats" / "wire.md").read_text().partition("| message | |\n")[2]
    rows = re.match(r"(?:\|.*\n)+", text)
    assert rows is not None
    named = [name for row in rows[0].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(message.__name__ for message in get_args(messages.Message))


# --- files

FILE = re.compile(
    r"(?<![\w/.:~$*<{-])(?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|yml|yaml|json|txt|c|service|sh)(?![\w/*])"
)
FOLDERS = ("", "qq", "cluster", "chaos", "chaos/pipeline", "tests", "docs", "deploy")
"""Begins of paths in documents; ARCHITECTURE.md omits the folder of its chapter."""
WRITTEN = re.compile(
    r"(?:^|/)(?:var/|node\.toml$|cluster\.json$|definitions\.json$|backup\.json$|clean\.json$|d\.json$|meta\.json$)"
)
"""Files that users or programs write."""


@of_each_document
def test_files_are_in_the_repository(document: Path) -> None:
    missing = {
        path
        for span in spans(document)
        for path in FILE.findall(span)
        if not WRITTEN.search(path) and not is_file(path)
    }
    assert missing == set()


PLACE = re.compile(r"(?:qq|cluster|chaos|tests|docs|deploy|examples|requirements)(?:/[\w-]+)+/?")
"""A folder, or a file without its suffix."""


@of_each_document
def test_folders_are_in_the_repository(document: Path) -> None:
    named = {span.rstrip("/") for span in spans(document) if PLACE.fullmatch(span)}
    assert {place for place in named if not is_place(ROOT / place)} == set()


def is_place(place: Path) -> bool:
    # A folder that was moved away may have left its byte code.
    files = (file for file in place.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return next(files, None) is not None or place.with_suffix(".py").is_file()


def is_file(path: str) -> bool:
    if "/" not in path:
        return path in file_names()
    return any((ROOT / folder / path).exists() for folder in FOLDERS)


@cache
def file_names() -> set[str]:
    tops = ("qq", "cluster", "chaos", "tests", "docs", "deploy", "examples", "requirements")
    below = {file.name for top in tops for file in (ROOT / top).rglob("*")}
    return below | {file.name for file in ROOT.iterdir()}


# --- settings


@cache
def known_settings() -> dict[str, set[str]]:
    """The keys of each section, as reading a file asks for them."""
    document = {"cluster": {"secret": "x" * 16}, "node": {"name": "n1", "data_dir": "."}}
    node = {"name": "n1", "host": "h", "peer_port": 1, "amqp_port": 2, "http_port": 3}
    reader = config._SettingsReader(Path("node.toml"), document | {"nodes": [node]}, {})
    config._read(reader)
    known = {section: set(keys) for section, keys in reader._known.items()}
    for section in ("tls", "http_tls", "peer_tls"):
        known[section] |= {"cert", "key", "ca"}
    for section in ("tls", "http_tls"):
        known[section].add("ciphers")
    known["nodes"] = {*node, "amqps_port"}
    return known


def test_documented_sections_are_those_of_the_configuration() -> None:
    assert {*config.SECTIONS, "nodes"} == known_settings().keys()


def test_reference_lists_exactly_the_settings() -> None:
    described: dict[str, set[str]] = {}
    section = ""
    for line in (REFERENCE / "settings.md").read_text().splitlines():
        if heading := re.match(r"## `\[+(\w+)\]+`", line):
            section = heading[1]
        elif section and line.startswith("| `"):
            keys = line.split("|")[1]
            described.setdefault(section, set()).update(re.findall(r"`(\w+)`", keys))
    assert described == known_settings()


@of_each_document
def test_settings_are_settings(document: Path) -> None:
    text = document.read_text()
    known = known_settings()
    for section, key in re.findall(r"\[(\w+)\] (\w+)`", text):
        assert key in known[section], f"{name_of(document)}: [{section}] {key}"
    variables = {f"QQ_{section}_{key}".upper() for section, keys in known.items() for key in keys}
    of_compose = set(re.findall(r"\bQQ_\w+", (ROOT / "docker-compose.yml").read_text()))
    other_variables = of_compose | set(credentials.VARIABLES)
    for variable in re.findall(r"\bQQ_[A-Z_]+\b(?!<)", text):
        if not variable.endswith("_"):
            assert variable in variables | other_variables, f"{name_of(document)}: {variable}"


@of_each_document
def test_configurations_name_settings_only(document: Path) -> None:
    indented = re.findall(r"(?:^ {4,}.*\n)+", document.read_text(), re.MULTILINE)
    for block in [*(code for language, code in blocks(document) if language == "toml"), *indented]:
        section = ""
        for line in block.splitlines():
            if heading := re.match(r" *\[+(\w+)\]+", line):
                section = heading[1]
                assert section in known_settings(), f"{name_of(document)}: [{section}]"
            elif section and (key := re.match(r" *(\w+) = ", line)):
                assert key[1] in known_settings()[section], f"{name_of(document)}: {line}"


# --- queues


def quoted(text: str) -> set[str]:
    """Return the words in backquotes."""
    return set(re.findall(r"`([\w-]+)`", text))


def keys_of_tables(file: str) -> set[str]:
    """Return the texts in backquotes in the first columns of the tables."""
    first = [
        line.split("|")[1] for line in (REFERENCE / file).read_text().splitlines() if line.startswith("|")
    ]
    return quoted("".join(first))


def section(beginning: str, end: str) -> str:
    """Return the part of the reference of queues from `beginning` to the next `end`."""
    return (REFERENCE / "queues.md").read_text().partition(beginning)[2].partition(end)[0]


def test_reference_describes_queue_options_as_declared() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\| (.*) \|$", section("## Arguments", "These are"), re.MULTILINE)
    texts = {name: text for names, text in rows for name in quoted(names)}
    assert quoted("".join(names for names, _ in rows if "(ours)" in names)) == {
        option.name for option in OWN_OPTIONS
    }
    for option in QUEUE_OPTIONS:
        if option.rules:
            text = texts[option.name]
            assert ("argument only" in text) == (option.policy is None), option.name
            types = option.argument.types if option.argument is not None else ()
            assert (types == (QUORUM,)) == bool(re.search(rf"\b{QUORUM}\b", text)), option.name
            assert (types == (CLASSIC,)) == text.startswith(CLASSIC), option.name
    without_effect = section("These are accepted and checked", ".\n") + section("streams (", ")")
    declared = {option.name for option in QUEUE_OPTIONS}
    assert quoted(without_effect) == declared - texts.keys()
    assert texts.keys() <= declared
    with_effect = {option.name for option in QUEUE_OPTIONS if option.rules}
    assert texts.keys() - with_effect == {"queue-type", ALTERNATE_EXCHANGE}


def test_reference_lists_the_options_of_each_queue_type() -> None:
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", section("| type | settings |", "\n\n"), re.MULTILINE)
    types = {QUORUM: (QUORUM,), CLASSIC: (CLASSIC,), "streams": ()}
    assert [kind for kind, _ in rows] == list(types)
    for kind, names in rows:
        assert quoted(names) == {name for name, key in POLICY_KEYS.items() if key.types == types[kind]}


def test_reference_lists_exactly_the_operator_policy_keys() -> None:
    assert quoted(section("An operator policy may have the keys", "## ")) == OPERATOR_KEYS.keys()


def test_reference_lists_exactly_the_consumer_arguments() -> None:
    supported = {name for name, argument in CONSUMER_ARGUMENTS if argument.types}
    table = section("## Arguments of consumers", "## ")
    assert quoted("".join(re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE))) == supported


def test_reference_lists_exactly_the_vhost_and_user_limits() -> None:
    named = {key for key in keys_of_tables("limits.md") if key.startswith("max-")}
    assert named == {*limits.VHOST_LIMITS, *limits.USER_LIMITS}


# --- metrics

LABELS = {
    "rabbitmq_node",
    "rabbitmq_cluster",
    "rabbitmq_cluster_permanent_id",
    "rabbitmq_endpoint",
    "rabbitmq_version",
}
PREFIXES = {"rabbitmq_", "rabbitmq_detailed_", "rabbitmq_cluster_"}
"""How the names of the metrics of single objects begin."""


@cache
def known_metrics() -> set[str]:
    raft = RaftMetrics(1, True, "voter", 1, 1, 1, 1, 1, 1, 1, 1, 3)
    disk, memory = DiskMetrics(1, 1, 1, False), MemoryMetrics(1, False)
    delays = DelayMetrics(*(Histogram() for _ in fields(DelayMetrics)))
    snapshot = MetricsSnapshot(
        "n1",
        "c",
        "v",
        Counters(),
        raft,
        disk,
        memory,
        delays,
        0.0,
        1.0,
        1,
        1,
        1,
        1,
        1,
        ClusterTotals(1, 1, 1, 1, 1),
        spans=SpanCounts(),
        certificates=[CertificateEnd("https", "cert", 1.0)],
        peers={"n2": True},
    )
    samples = (sample for family in node_registry(lambda: snapshot).collect() for sample in family.samples)
    return {sample.name for sample in samples if not sample.name.endswith("_created")}


def test_every_metric_is_in_the_reference() -> None:
    text = (REFERENCE / "metrics.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == known_metrics()


def test_public_metrics_are_shown_or_explained() -> None:
    """The list has RabbitMQ 4.0's own metrics, and those of its operator's rules, its mixin and alert collections."""
    text = (REFERENCE / "metrics.md").read_text()
    rows = re.findall(
        r"^\| .* \| (`.*) \|$", text.partition("These metrics of RabbitMQ 4.0")[2], re.MULTILINE
    )
    absent = [pattern for row in rows for pattern in re.findall(r"`([\w*]+)`", row)]
    of_queues = re.findall(r"\bqueue_\w+", text.partition("## Of single queues")[2])
    shown = known_metrics() | {f"rabbitmq_detailed_{name}" for name in of_queues}
    public = (ROOT / "tests" / "metrics" / "public_names.txt").read_text().split()
    unexplained = [
        name
        for name in public
        if name not in shown
        and f"{name}_bucket" not in shown
        and not any(fnmatch(name.removeprefix("rabbitmq_"), pattern) for pattern in absent)
    ]
    assert unexplained == []


@of_each_document
def test_metrics_are_shown_by_a_node(document: Path) -> None:
    named = set(re.findall(r"\brabbitmq_\w+", document.read_text()))
    known = known_metrics()
    histograms = {name.removesuffix("_bucket") for name in known if name.endswith("_bucket")}
    assert named <= known | histograms | LABELS | PREFIXES


def test_every_alert_is_described() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    monitor = ROOT / "docs" / "how-to" / "monitor.md"
    assert sorted(span for span in spans(monitor) if re.fullmatch(r"Qq\w+", span)) == sorted(alerts)
    runbooks = re.findall(r"runbook_url: (\S+)", rules)
    assert runbooks == [f"docs/how-to/monitor.md#{alert.lower()}" for alert in alerts]
    assert sorted(re.findall(r'<a id="(\w+)"', monitor.read_text())) == sorted(map(str.lower, alerts))


# --- commands


@cache
def commands() -> dict[str, click.Command]:
    """Each command by its name; some have two words."""
    return dict(commands_of(root))


def commands_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.help
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", each) for part, each in commands_of(command))
        else:
            yield name, command


def options_of(command: click.Command) -> set[str]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return {name for option in options for name in option.opts}


def groups() -> set[str]:
    return {name.partition(" ")[0] for name in commands() if " " in name}


@of_each_document
def test_documented_qq_commands_have_their_options(document: Path) -> None:
    for line in command_lines(document):
        if not (found := re.match(r"(?:\S*/)?qq ([a-z]+\b.*)", line)):
            continue
        if found[1] in groups():
            continue
        called = [name for name in commands() if re.match(rf"{name}(?![\w-])", found[1])]
        assert len(called) == 1, f"{name_of(document)}: {line}"
        for option in re.findall(r"(?<![\w-])--[a-z-]+", found[1].partition("#")[0]):
            assert option in options_of(commands()[called[0]]), f"{name_of(document)}: {line}"


NODE_OPTIONS, OUTPUT = "node-and-login", "output"
"""The chapters with options of many commands; further chapters link to them."""


def test_every_command_and_option_of_qq_is_in_the_reference() -> None:
    chapters = chapters_of_commands()
    common = {chapter: options_in(chapters[chapter]) for chapter in (NODE_OPTIONS, OUTPUT)}
    described: dict[str, set[str]] = {}
    for title, text in chapters.items():
        if title in groups():
            rows = re.findall(r"^\| `([a-z-]+)` (\|.*)", text, re.MULTILINE)
            described |= {f"{title} {name}": options_in(row) for name, row in rows}
        elif title in commands():
            described[title] = options_in(text)
    own = {name: options_of(command) for name, command in commands().items()}
    having = {
        NODE_OPTIONS: {name for name, options in own.items() if "--context" in options},
        OUTPUT: {name for name, options in own.items() if "--output" in options},
    }
    for chapter, names in having.items():
        for name in names:
            own[name] -= common[chapter]
    assert described == own
    for chapter, names in having.items():
        leading = {title for title, text in chapters.items() if f"(#{chapter})" in text}
        written = {name if name in chapters else name.partition(" ")[0] for name in names}
        assert leading & {*commands(), *groups()} == written
    assert common[NODE_OPTIONS] <= options_of(commands()["status"])
    assert common[OUTPUT] <= options_of(commands()["status"])


def chapters_of_commands() -> dict[str, str]:
    """Return the chapters of the reference: those of commands by their names, the rest by their anchors."""
    text = (REFERENCE / "cli.md").read_text()
    found = dict(re.findall(r"^## ([^\n]+)$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    return {
        title.removeprefix("`qq ").rstrip("`")
        if title.startswith("`")
        else re.sub(r"[^\w -]", "", title).replace(" ", "-").lower(): chapter
        for title, chapter in found.items()
    }


def options_in(text: str) -> set[str]:
    """The options in the rows of tables."""
    return set(re.findall(r"(?<=`)--?[a-z-]+", "\n".join(re.findall(r"^\|.*|\|.*", text, re.MULTILINE))))


@of_each_document
def test_documented_chaos_options_exist(document: Path) -> None:
    """They are looked for in the text of the programs, which need packages that a quick run has not."""
    for line in command_lines(document):
        if not (found := re.search(r"python -m (chaos(?:\.\w+)*)(.*)", line)):
            continue
        package = ROOT.joinpath(*found[1].split("."))
        texts = "".join(file.read_text() for file in package.rglob("*.py"))
        for option in set(re.findall(r"(?<![\w-])--[a-z-]+", found[2])) - {"--help"}:
            assert f'"{option}"' in texts, f"{name_of(document)}: {line}"
        if (command := re.match(r" ([a-z]+)\b", found[2])) and found[1] == "chaos":
            assert f'"{command[1]}"' in (package / "__main__.py").read_text(), f"{name_of(document)}: {line}"


@of_each_document
def test_documented_make_targets_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    for line in command_lines(document):
        if not (found := re.match(r"make ([a-z-]+)([^#]*)", line)):
            continue
        assert found[1] in targets, f"{name_of(document)}: {line}"
        given = (argument.partition("=")[0] for argument in shlex.split(found[2]) if "=" in argument)
        assert set(given) <= variables, f"{name_of(document)}: {line}"


def test_benchmarks_readme_names_every_benchmark() -> None:
    """That `make bench` begins all of them, test_benchmarks_begin.py says."""
    benchmarks = {file.name for file in (ROOT / "tests" / "benchmarks").glob("*.py")}
    named = {span for span in spans(ROOT / "tests" / "benchmarks" / "README.md") if span in benchmarks}
    assert named == {name for name in benchmarks if not name.startswith("test_")}


# --- HTTP

PLACEHOLDERS = "V|U|Q|X|C|NAME|KEY|NODE|COMPONENT|PASSWORD|PORT|PROTOCOLS|NUMBER|UNIT|PATTERN|ID|G|N|S|E|A"
"""Placeholders in paths of documents."""
PARAMETER = re.compile(r"\{\w+(?::[^}]*)?\}")
OTHER_SPELLINGS = {"/api/*", f"{api.ESCAPED}*"}
"""Paths with a second spelling."""


@cache
def routes() -> list[str]:
    """Return the paths that a node answers, with `*` for names."""
    paths = [
        route.path
        for route in api.routes(_NoBroker(), _NoBroker(), RepeatedChecks(), HttpLimits())
        if isinstance(route, web.RouteDef)
    ]  # pyright: ignore[reportArgumentType]
    own = re.findall(r'web\.get\("([^"]+)"', (ROOT / "qq" / "http" / "app.py").read_text())
    found = {PARAMETER.sub("*", path).rstrip("/") or "/" for path in [*paths, *own]}
    return sorted(found - OTHER_SPELLINGS)


class _NoBroker:
    """Routes are made without asking it for anything."""


def paths_of(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for path in re.findall(r"(?<![\w*.-])(?:/api|/healthz|/livez|/metrics)(?:/[\w%.,={}$~-]+)*", text):
            if path != "/api":
                yield re.sub(f"^{api.ESCAPED}", "/api/", path)


def is_route(path: str) -> bool:
    parts = path.split("/")
    return any(
        len(parts) == len(route) and all(one in ("*", other) for one, other in zip(route, parts, strict=True))
        for route in (route.split("/") for route in routes())
    )


@of_each_document
def test_http_paths_are_answered(document: Path) -> None:
    lines = [*spans(document), *command_lines(document)]
    # Shell variables that stand for the beginning of a path.
    lines = [re.sub(r"\$A\b", "/api", re.sub(r"https?://[^/ ]+", " ", line)) for line in lines]
    unknown = {path for path in paths_of(lines) if not is_route(path)}
    assert unknown == set()


def test_every_http_path_is_in_the_reference() -> None:
    described = {
        re.sub(rf"/(?:{PLACEHOLDERS})(?=/|$)", "/*", path) for path in paths_of(spans(REFERENCE / "http.md"))
    }
    described |= {f"{path}/*" for path in described if path.startswith("/api/bindings/*/e/")}
    # Bindings to queues and to exchanges share a path of the server.
    described = {re.sub(r"(?<=/e/\*/)[qe](?=/)", "*", path) for path in described}
    assert set(routes()) - described - {"/"} == set()


# --- documents in code


def sources() -> list[Path]:
    tops = ("qq", "cluster", "chaos", "tests", "deploy", "examples")
    found = [
        file
        for top in tops
        for file in (ROOT / top).rglob("*")
        # Below `build` are other projects' packages.
        if file.suffix in {".py", ".c", ".toml", ".yml"} and "build" not in file.relative_to(ROOT).parts
    ]
    return [*found, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]


PAPER = re.compile(r"\(desig[n]\b|\bdesig[n] (?:invariant )?\d")
"""References to a paper that was never published."""


def test_documents_named_in_code_exist() -> None:
    missing = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in sources()
        if file.parent.name != "docs"
        for name in re.findall(r"(?<![\w/.*-])(?:[\w-]+/)*[\w-]+\.md\b", file.read_text())
        if not is_file(name)
    }
    missing |= {f"{file.relative_to(ROOT)}" for file in sources() if PAPER.search(file.read_text())}
    assert missing == set()


# --- texts of nodes


TEXTS = [ROOT / "docs" / "how-to" / name for name in ("disks.md", "monitor.md", "troubleshoot.md")]
HERE = re.compile(r": |\.\.\.|\bn\d\b|\b[A-Z]{1,}\d?\b|\d+(?:\.\d+)?|[`'\"\[\]]")
"""Variable parts in a text of a node: names, numbers, the rest of a line."""


@cache
def mentioned() -> str:
    """Return all texts of the program, a line each."""
    texts = [os.strerror(errno.ENOSPC), "handshake with"]  # the system's; "the {what} with ..."
    for file in [*(ROOT / "qq").rglob("*.py"), *(ROOT / "cluster").rglob("*.py")]:
        nodes = ast.walk(ast.parse(file.read_text()))
        texts += [
            each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
    return "\n".join(texts)


@pytest.mark.parametrize("document", TEXTS, ids=name_of)
def test_quoted_node_messages_exist_in_the_code(document: Path) -> None:
    tables = "\n".join(
        line.split("|")[1] for line in document.read_text().splitlines() if line.startswith("|")
    )
    texts = [
        text
        for text in re.findall(r"`([^`]+)`", tables)
        if " " in text and not text.startswith(("GET ", "qq "))
    ]
    assert texts
    for text in texts:
        for part in (part.strip(" :,.()") for part in HERE.split(text)):
            is_mentioned = len(part) < 5 or part in mentioned()
            assert is_mentioned, f"{name_of(document)}: {text}: {part}"


def test_migration_page_has_the_counterpart_of_each_command() -> None:
    text = (ROOT / "docs" / "how-to" / "migrate.md").read_text()
    rows = [re.findall(r"`([^`]+)`", row) for row in text.splitlines() if row.startswith("| `")]
    assert {name: row[-1] for row in rows for name in row[:-1] if name in COMMANDS} == COMMANDS
    assert NOT_NEEDED.keys() <= {row[0] for row in rows}
