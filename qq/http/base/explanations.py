"""Sentences for people beside reasons in RabbitMQ's words, which programs know.

Invariant: the work is linear in the length of the reason, which may contain a client's text.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from qq.machine.policy.policies import POLICY_KEYS

_OF_WHOLE_REASONS = {
    "failed_to_parse_json": "The body of the request is no JSON object.",
    "not_json": "The body of the request is no JSON object.",
    "tags_not_present": "The body needs the key `tags`; an empty text is no tag.",
    "value_not_present": "The body needs the key `value`.",
    "vhost_or_user_not_found": "There is no such virtual host, or no such user: declare it first.",
}
_UNKNOWN_SETTINGS = "] are not recognised policy settings"
_SETTING = re.compile(r'\{<<"([^"]*)">>,')


def explanation(reason: str) -> str:
    """Return a sentence about a reason in RabbitMQ's words, or an empty text."""
    if reason.rstrip().endswith(_UNKNOWN_SETTINGS):
        first = _SETTING.search(reason)
        return _of_setting(first[1]) if first else ""
    return _OF_WHOLE_REASONS.get(reason, "")


def _of_setting(name: str) -> str:
    if name in POLICY_KEYS:
        return f"`{name}` cannot be set by such a policy, or not in this version of the state."
    meant = "".join(f" Did you mean `{key}`?" for key in get_close_matches(name, POLICY_KEYS, 1))
    return f"No policy has the setting `{name}`.{meant}"
