"""The checks that the accepting thread answers, without the thread."""

from __future__ import annotations

from qq.http.base.repeated_checks import CHECKS_MAX, CheckResult, RepeatedChecks

HERE, LOGIN = "127.0.0.1", "Basic eDp5"


def result() -> CheckResult:
    return CheckResult(200, {"status": "ok"})


def test_further_check_takes_the_place_of_the_oldest() -> None:
    checks = RepeatedChecks()
    for number in range(CHECKS_MAX):
        checks.remember(HERE, f"/{number}", LOGIN, result)
    assert checks.find(HERE, "/0", LOGIN) is not None
    checks.remember(HERE, "/more", LOGIN, result)
    assert checks.find(HERE, "/1", LOGIN) is None
    assert checks.find(HERE, "/0", LOGIN) == checks.find(HERE, "/more", LOGIN) == (200, b'{"status": "ok"}')


def test_repeated_check_evicts_no_check() -> None:
    """A client whose requests only the event loop understands pushed out all checks of other clients."""
    checks = RepeatedChecks()
    for number in range(CHECKS_MAX):
        checks.remember(HERE, f"/{number}", LOGIN, result)
    for _ in range(CHECKS_MAX):
        checks.remember(HERE, "/0", LOGIN, result)
    assert all(checks.find(HERE, f"/{number}", LOGIN) for number in range(CHECKS_MAX))
