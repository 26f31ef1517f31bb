"""Programs and packages that a test needs: a test without them fails with the command that installs them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.interop.debian import install
from tests.interop.sources import SourceMissingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.fail(f"there is no {program}: install it, and run `make interop` again", pytrace=False)


def fetched(fetch: Callable[..., Path], *arguments: str) -> Path:
    try:
        return fetch(*arguments)
    except SourceMissingError as error:
        pytest.fail(str(error), pytrace=False)


def installed(*packages: str) -> None:
    try:
        install(*packages)
    except SourceMissingError as error:
        pytest.fail(str(error), pytrace=False)
