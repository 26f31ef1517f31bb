"""Files that are read again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from qq.tls.reloadable import Reloadable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(20)
def test_a_pipe_is_not_read_again_since_that_may_last_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("before")
    secret = Reloadable([file], file.read_text)
    file.unlink()
    os.mkfifo(file)
    assert not secret.reload()
    assert not secret.reload()
    assert [record.message for record in caplog.records] == [
        f"{file} is no regular file; what was read before stays in use"
    ]
    file.unlink()
    file.write_text("from now on")
    assert secret.reload()
    assert secret.current == "from now on"
