"""Names and texts of others, as a terminal may show them.

Invariant: what a client has put into a name is shown, and does nothing else: it moves no cursor, and turns no text
around.
"""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""Write what cannot be printed as `\x1b` or `\u202e`: control characters, and those that only direct others."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def quoted(name: str) -> str:
    """Write a name in quotation marks, so that one sees where it ends."""
    return f"'{escaped(name)}'"


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
