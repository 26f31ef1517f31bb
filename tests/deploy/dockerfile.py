"""Parser of the Dockerfile syntax in use, and of .dockerignore."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    name: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """Of the exec form; raises ValueError for a shell's."""
        return json.loads(self.text[self.text.index("[") :])


def stages(file: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of each stage, by its name; the last stage is built by default."""
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", "").splitlines()
    found: dict[str, list[Instruction]] = {}
    for line in lines:
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found[rest.split()[-1]] = []
        if found:
            list(found.values())[-1].append(Instruction(name, rest.strip()))
    return found


def copy_context(root: Path, ignore: Path, target: Path) -> None:
    """Copy the files that .dockerignore admits: those after `!`, less those that later lines ignore again."""
    lines = [line for line in ignore.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    again = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    target.mkdir()
    for line in lines:
        source = root / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns(*again))
        elif line.startswith("!"):
            shutil.copy(source, target / source.name)
