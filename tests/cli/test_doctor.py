"""The first line of `qq doctor`, its exit status, and the findings of a small cluster."""

from __future__ import annotations

import json
import time
from typing import Any


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
