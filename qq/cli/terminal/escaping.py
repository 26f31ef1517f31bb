"""Escapes names and texts that clients chose, so that a terminal can show them safely.

Invariant: a name chosen by a client is only displayed. It can neither move the cursor nor reverse text.
"""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""Escape unprintable characters, such as control and direction characters, as `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def quoted(name: str) -> str:
    """Return the escaped name in quotation marks, which show where it ends."""
    return f"'{escaped(name)}'"


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
