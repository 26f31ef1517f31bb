from __future__ import annotations

import pytest

from chaos.judge.memory import findings
from chaos.judge.run import Run
from chaos.judge.verdict import promises
from tests.chaos.judge.histories import History, Judged
from tests.chaos.judge.stories.collection import add_stories


@pytest.fixture(scope="session")
def judged() -> Judged:
    """The promises in a history with the stories of all tests; each story has its own queues."""
    history = History()
    planted = add_stories(history)
    run = Run.described(history.meta())
    return Judged(promises(findings(history.in_order(), run, limit=1000), run), planted)
