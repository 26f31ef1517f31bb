"""The first line of `qq doctor`, its exit status, and the findings of a small cluster."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from qq.cli import main
from qq.cli.client.remote import Remote
from qq.diagnosis.findings import Diagnosis, Finding, document_of

if TYPE_CHECKING:
    import pytest


def test_doctor_prints_its_verdict_first_and_as_status(qq: Any) -> None:
    def current_document() -> dict[str, Any]:
        return json.loads(qq("doctor", "-o", "json").output)

    while (
        document := current_document()
    ) != current_document():  # a node that has just started finds this and that
        time.sleep(0.2)
    result = qq("doctor")
    assert result.lines[0] == document["verdict"]
    grave = [each for each in document["findings"] if each["severity"] != "info"]
    assert result.status == bool(grave)
    codes = [each["code"] for each in document["findings"]]
    assert "members-few" in codes
    assert qq("doctor", "-o", "csv").lines[0] == "severity,code,subject,text,advice,since"
    assert [
        line.split()[1] for line in result.lines if line.startswith(("CRITICAL ", "INFO ", "WARNING "))
    ] == [f"{code}:" for code in codes]


def test_doctor_escapes_control_characters_in_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("no-consumers", "queue 'a\nCRITICAL\x1b[2J\u202e' in vhost '/'", "x")
    document = document_of(Diagnosis([finding]))
    monkeypatch.setattr(Remote, "get", lambda *_: document)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == r"WARNING no-consumers: queue 'a\x0aCRITICAL\x1b[2J\u202e' in vhost '/'"
    assert all(line.isprintable() for line in lines)
