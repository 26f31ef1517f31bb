"""Sentences beside reasons in RabbitMQ's words."""

from __future__ import annotations

import time

import pytest

from qq.http.base.explanations import explanation


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            'Validation failed\n\n[{<<"max-lenght">>,100}] are not recognised policy settings\n',
            "No policy has the setting `max-lenght`. Did you mean `max-length`?",
        ),
        (
            '[{<<"q">>,1},{<<"z">>,2}] are not recognised policy settings',
            "No policy has the setting `q`.",
        ),
        (
            '[{<<"dead-letter-exchange">>,<<"e">>}] are not recognised policy settings',
            "`dead-letter-exchange` cannot be set by such a policy, or not in this version of the state.",
        ),
        (
            '[{<<"a\n">>,[1]}] are not recognised policy settings',
            "No policy has the setting `a\n`.",
        ),
        ("[] are not recognised policy settings", ""),
        ("not_json", "The body of the request is no JSON object."),
        ("Not Found", ""),
    ],
)
def test_reason_in_the_words_of_rabbitmq_is_explained(reason: str, text: str) -> None:
    assert explanation(reason) == text


@pytest.mark.parametrize("part", ["[", '{<<"', '{<<"a', "[{", "] are not recognised policy settings"])
def test_explanation_takes_no_long_work_for_a_hostile_text(part: str) -> None:
    began_s = time.process_time()
    for end in ("", "] are not recognised policy settings"):
        explanation(part * (2_000_000 // len(part)) + end)
    assert time.process_time() - began_s < 0.5
