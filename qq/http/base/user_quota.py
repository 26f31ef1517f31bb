"""Places that users share: a user may hold at most as many as are left for other users.

So a single user gets at most half of all places, two users a third each, and a new user always finds a free place.
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
    """The places of a kind."""

    def __init__(self, most: int, what: str, setting: str) -> None:
        """`most` is the number of places, from `setting`. `what` names their use in error texts."""
        self._most = most
        self._what = what
        self._setting = setting
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Return the number of taken places."""
        return self._taken.total()

    @contextmanager
    def place(self, user: str) -> Generator[None]:
        """Take a place until the end of the block. Raises Refusal if the user has used up their share."""
        taken, own = self.taken, self._taken[user]
        if own >= self._most - taken:
            raise overloaded(f"{taken} {self._what} are under way, {own} of '{user}' ({self._setting})")
        with counted(self._taken, user):
            yield


@contextmanager
def counted(counts: Counter[T], one: T) -> Generator[None]:
    """Add 1 to a count until the end of the block. A count of 0 is removed."""
    counts[one] += 1
    try:
        yield
    finally:
        counts[one] -= 1
        if not counts[one]:
            del counts[one]
