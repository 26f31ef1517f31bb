"""Places that users share: a user may have as many as are left for others.

So one user has half of all at most, two have a third each, and whoever comes next finds room, whatever the others do.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from qq.http.base.error_responses import overloaded

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")


class UserShares:
    """The places of one kind."""

    def __init__(self, most: int, what: str, setting: str) -> None:
        """There are `most` of them, by this setting; `what` is what takes them."""
        self._most = most
        self._what = what
        self._setting = setting
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken.total()

    @contextmanager
    def place(self, user: str) -> Generator[None]:
        """Take a place for as long as the block lasts. Raises Refusal if the user has their share."""
        taken, own = self.taken, self._taken[user]
        if own >= self._most - taken:
            raise overloaded(f"{taken} {self._what} are under way, {own} of '{user}' ({self._setting})")
        with counted(self._taken, user):
            yield


@contextmanager
def counted(counts: Counter[T], one: T) -> Generator[None]:
    """Count one more of these for as long as the block lasts; what there are none of is not kept."""
    counts[one] += 1
    try:
        yield
    finally:
        counts[one] -= 1
        if not counts[one]:
            del counts[one]
