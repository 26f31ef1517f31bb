"""`qq doctor`: shows problems and limits of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.cli.output import print_answer
from qq.diagnosis.findings import Severity, lines_of

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_COLUMNS = ("severity", "code", "subject", "text", "advice", "since")
_CALM = Severity.INFO.value


def doctor(node: Remote, form: str) -> int:
    """Print the findings; exit status 1 if an operator should act. Raises CommandError."""
    answer = node.get("/api/doctor")
    try:
        lines = list(lines_of(answer))
        is_calm = all(each["severity"] == _CALM for each in answer["findings"])
    except (KeyError, TypeError, AttributeError):
        raise node.is_foreign() from None
    print_answer(form, answer, "findings", _COLUMNS, lambda: print("\n".join(lines)))
    return 0 if is_calm else 1
