"""Blocks in docs/how-to that users copy: commands that make certificates, and settings of Kubernetes."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

from tests.deploy.deployment import ROOT

HOW_TO = ROOT / "docs" / "how-to"
SECRET = re.compile(r"secret generic (\S+) \\\n((?: *--from-file=\S+)+)")


def block(document: str, beginning: str) -> str:
    """The indented code that begins like this."""
    code = re.findall(r"(?:^ {4}.*\n)+", (HOW_TO / document).read_text(), re.MULTILINE)
    (found,) = [each for each in map(textwrap.dedent, code) if each.startswith(beginning)]
    return found


def run_shell(code: str, directory: Path) -> None:
    functions = block("tls.md", "authority() {") + "kubectl() { :; }\n"
    subprocess.run(
        ["/bin/sh", "-ec", functions + code], cwd=directory, check=True, capture_output=True, timeout=60
    )


def secrets_for_kubernetes(directory: Path) -> dict[str, dict[str, Path]]:
    """Make the certificates of docs/how-to/kubernetes.md. By name of the Secret that is made of them: its files."""
    code = block("kubernetes.md", "namespace=")
    run_shell(code, directory)
    return {
        name: {key: directory / file for key, file in re.findall(r"--from-file=(\S+)=(\S+)", files)}
        for name, files in SECRET.findall(code)
    }


def with_a_fourth_node(settings: str) -> str:
    """Change the ConfigMap's text as docs/how-to/kubernetes.md describes, so that qq-3 joins."""
    join, table = (block("kubernetes.md", beginning) for beginning in ("join = ", "[[nodes]]"))
    return settings.replace("[cluster]\n", f"[cluster]\n{join}") + f"\n{table}"
