"""Test cases of which `make test` tries some and `make long` tries the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Case = TypeVar("Case")


def cases(all_of_them: Iterable[Case], is_always_tried: Callable[[Case], bool]) -> list[Any]:
    """As the parameters of a test."""
    return [
        case if is_always_tried(case) else pytest.param(case, marks=pytest.mark.long) for case in all_of_them
    ]
