"""The settings of a node that operators change while it runs, until its next start.

An operator needs these settings in an alarm: the level of the log, and the limits of memory and disk.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qq.config import LOG_LEVELS
from qq.node.memory_watch import limit_bytes, share_bytes

if TYPE_CHECKING:
    from cluster.membership.alarms import Alarms
    from qq.config import NodeConfig
    from qq.node.memory_watch import MemoryWatch

log = logging.getLogger(__name__)

_LOG_LEVEL = "log_level"
_SHARE, _BYTES, _DISK = "memory_high_watermark", "memory_high_watermark_bytes", "disk_free_limit_bytes"
_LIMITS = (_SHARE, _BYTES, _DISK)
NAMES = (_LOG_LEVEL, *_LIMITS)


class LiveSettings:
    """Implements `qq.management.nodes.node_reports.SettingsInForce`."""

    def __init__(self, config: NodeConfig, memory: MemoryWatch, alarms: Alarms) -> None:
        self._config = config
        self._memory = memory
        self._alarms = alarms
        self._changed: dict[str, Any] = {}

    @property
    def memory_limit_bytes(self) -> int:
        return self._memory.limit_bytes

    @property
    def disk_free_limit_bytes(self) -> int:
        return self._alarms.disk_free_limit_bytes

    def shown(self) -> dict[str, str]:
        """Return the settings in force, without secrets."""
        changed = {
            f"limits.{name}" if name in _LIMITS else name: str(self._changed[name]) for name in self._changed
        }
        return {**self._config.shown(), **changed}

    def change(self, name: str, value: Any) -> None:
        """Change a setting until the node's next start. Raises ValueError."""
        _check(name, value, self._config.limits.message_bytes)
        self._changed[name] = value
        if name == _SHARE:
            self._changed[_BYTES] = 0  # otherwise the bytes would count
        self._apply()
        log.warning("%s is %s until the node's next start", name, value)

    def reset(self, name: str) -> None:
        """Return to the value with which the node has started. Raises ValueError."""
        _check_name(name)
        for each in (_SHARE, _BYTES) if name in (_SHARE, _BYTES) else (name,):
            self._changed.pop(each, None)
        self._apply()
        log.warning("%s is as at the node's start", name)

    def _apply(self) -> None:
        logging.getLogger().setLevel(self._changed.get(_LOG_LEVEL, self._config.log_level).upper())
        changed = {name: self._changed[name] for name in _LIMITS if name in self._changed}
        limits = replace(self._config.limits, **changed)
        self._memory.limit_bytes = limit_bytes(limits)
        self._alarms.disk_free_limit_bytes = limits.disk_free_limit_bytes


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise ValueError(f"{name} cannot be changed while the node runs; there are {', '.join(NAMES)}")


def _check(name: str, value: Any, message_bytes: int) -> None:
    """Raise ValueError unless the setting can have the value."""
    _check_name(name)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    match name:
        case "log_level":
            is_good, rule = value in LOG_LEVELS, f"one of {', '.join(LOG_LEVELS)}"
        case "memory_high_watermark":
            is_share = (is_whole or isinstance(value, float)) and 0 <= value <= 1
            is_good = is_share and (value == 0 or share_bytes(value) >= message_bytes)
            least = message_bytes / share_bytes(1)
            rule = (
                f"1 at most, and at least {least:.2g}: message_bytes ({message_bytes}) of the memory; or 0, so that "
                "publishers wait"
            )
        case "memory_high_watermark_bytes":
            is_good = is_whole and value >= message_bytes
            rule = f"a whole number, and at least message_bytes ({message_bytes})"
        case _:
            is_good, rule = is_whole and value >= 0, "a whole number that is not negative"
    if not is_good:
        raise ValueError(f"{name} must be {rule}")
