"""Match patterns of test names. It imports no module of these tests, because a plugin uses it beside other `tests`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def matching(pattern: str, names: Sequence[str]) -> set[str]:
    wanted = re.compile(".*".join(re.escape(part) for part in pattern.split("*")))
    return {name for name in names if wanted.fullmatch(name)}
