"""`qq list limits`: lists the limits of virtual hosts and of users together."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from qq.cli.output import print_rows
from qq.cli.remote import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.cli.remote import Remote

_COLUMNS = ("of", "name", "limit", "value")
_VHOST, _USER = "vhost", "user"


def print_limits(node: Remote, vhost: str | None, user: str | None, form: str) -> int:
    """Print the limits of a virtual host, of a user, or of all. Raises CommandError."""
    of_vhosts = _rows(node, _VHOST, vhost) if user is None else iter(())
    of_users = _rows(node, _USER, user) if vhost is None else iter(())
    try:
        print_rows(form, list(chain(of_vhosts, of_users)), _COLUMNS)
    except (KeyError, TypeError, AttributeError):
        raise node.is_foreign() from None
    return 0


def _rows(node: Remote, whose: str, name: str | None) -> Iterator[dict[str, Any]]:
    for each in node.get_list(path_of(f"{whose}-limits", *([] if name is None else [name]))):
        for limit, value in sorted(each["value"].items()):
            yield {"of": whose, "name": each[whose], "limit": limit, "value": value}
