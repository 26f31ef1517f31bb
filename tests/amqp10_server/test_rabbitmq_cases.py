"""The checklist of RabbitMQ's test cases names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
TEXT = Path(__file__).with_name("RABBITMQ_CASES.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| `")]
ANSWERS = sorted({answer for _, answers in ROWS for answer in re.findall(r"`([\w/]+\.py[\w:]*)`", answers)})


def test_each_case_has_an_answer() -> None:
    cases = [case for cases, answer in ROWS if answer for case in re.findall(r"`(\w+)`", cases)]
    assert len(cases) > 150
    of_client = cases[: cases.index("auth_attempt_metrics") + 1]
    assert len(of_client) == len(set(of_client))


@pytest.mark.parametrize("answer", ANSWERS)
def test_answer_exists(answer: str) -> None:
    file, _, name = answer.partition("::")
    text = (TESTS / file).read_text()
    assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)
