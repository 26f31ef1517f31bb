"""Regular expressions over names: the common part of PCRE, with a bound on the cost of a search.

Supported: literals and escapes, classes also with POSIX names, `.`, anchors and word boundaries, groups of every kind
but atomic groups, alternatives, greedy and lazy repetition, look-ahead, look-behind of a fixed length, the options i
and s. Refused: back references, possessive quantifiers, recursion, conditions. Classes and case handle ASCII only.

Invariant: a search visits each pair of an instruction and a position once, and at most STEPS_MAX pairs.
"""

from __future__ import annotations

from bisect import bisect_right
from string import ascii_letters, digits
from typing import NamedTuple

PATTERN_BYTES_MAX = 1024
"""Maximum bytes of a pattern, as in RabbitMQ."""
PROGRAM_MAX = 5000
"""Maximum instructions of a compiled pattern, because counted repetitions multiply instructions."""
STEPS_MAX = 50_000
"""Maximum steps of a search. A search that needs more does not match, as in RabbitMQ (there, calls of PCRE's match)."""
_DEPTH_MAX = 50


class InvalidPattern(ValueError):
    """The text is not a regular expression supported here."""


class _Chars(NamedTuple):
    """Matches a single character that is inside the ranges or, if `negated`, outside of them."""

    bounds: tuple[int, ...]
    """For each range its first code point and the code point after its last, ascending."""
    negated: bool = False

    def has(self, code: int) -> bool:
        return (bisect_right(self.bounds, code) & 1 == 1) != self.negated


class _Anchor(NamedTuple):
    """An assertion about a position: one of A Z z b B."""

    kind: str


class _Look(NamedTuple):
    node: _Node
    negated: bool
    behind: int
    """Number of characters before the position where a look-behind starts; 0 for a look-ahead."""


class _Sequence(NamedTuple):
    nodes: tuple[_Node, ...]


class _Choice(NamedTuple):
    nodes: tuple[_Node, ...]


class _Repeat(NamedTuple):
    node: _Node
    least: int
    most: int | None


_Node = _Chars | _Anchor | _Look | _Sequence | _Choice | _Repeat


class _Split(NamedTuple):
    one: int
    other: int


class _Jump(NamedTuple):
    to: int


class _LookFrom(NamedTuple):
    """Assert that a match (if `negated`: no match) begins at `behind` characters back, at instruction `start`."""

    start: int
    negated: bool
    behind: int


class _Match(NamedTuple):
    pass


_Instruction = _Chars | _Anchor | _Split | _Jump | _LookFrom | _Match


class Pattern:
    """A compiled pattern. Raises InvalidPattern if the text is not a pattern."""

    __slots__ = ("_program", "_start")

    def __init__(self, text: str) -> None:
        if len(text.encode(errors="surrogatepass")) > PATTERN_BYTES_MAX:
            raise InvalidPattern(f"longer than {PATTERN_BYTES_MAX} bytes")
        compiler = _Compiler()
        self._start = compiler.routine(_Parser(text).parse())
        self._program = compiler.program

    def search(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in the text."""
        return self.search_within(text, STEPS_MAX)[0]

    def search_within(self, text: str, steps_max: int) -> tuple[bool, int]:
        """Return whether the pattern matches somewhere in the text within `steps_max` steps, and the steps taken."""
        search = _Search(self._program, text, steps_max)
        starts = 1 if self._program[self._start] == _Anchor("A") else len(text) + 1
        try:
            found = any(search.matches(self._start, at) for at in range(starts))
        except _TooManySteps:
            found = False
        return found, search.steps


class _TooManySteps(Exception):
    pass


class _Search:
    """A search in a text. It remembers the pairs that lead to no match."""

    __slots__ = ("_looks", "_program", "_seen", "_steps_max", "_text", "steps")

    def __init__(self, program: list[_Instruction], text: str, steps_max: int) -> None:
        self._program = program
        self._text = text
        self._steps_max = steps_max
        self._seen: set[int] = set()
        """The visited pairs, as numbers: instruction times the number of positions, plus position."""
        self._looks: dict[tuple[int, int], bool] = {}
        self.steps = 0

    def matches(self, start: int, at: int) -> bool:
        """Return whether a match of the routine at `start` begins at this position.

        Pairs that were seen are not tried again, because a pair that led to a match would have ended the search. So a
        routine may be tried again only after it has failed; the results of look-arounds are cached.
        """
        program, text, end = self._program, self._text, len(self._text)
        seen = self._seen
        pending = [(start, at)]
        while pending:
            where, at = pending.pop()
            while True:
                pair = where * (end + 1) + at
                if pair in seen:
                    break
                seen.add(pair)
                self.steps += 1
                if self.steps > self._steps_max:
                    raise _TooManySteps
                instruction = program[where]
                if type(instruction) is _Chars:
                    if at == end or not instruction.has(ord(text[at])):
                        break
                    where += 1
                    at += 1
                elif type(instruction) is _Split:
                    # The path that leaves a repetition is tried first, because any match is sufficient.
                    pending.append((instruction.one, at))
                    where = instruction.other
                elif type(instruction) is _Jump:
                    where = instruction.to
                elif type(instruction) is _Match:
                    return True
                else:
                    if not self._holds(instruction, at):
                        break
                    where += 1
        return False

    def _holds(self, assertion: _Instruction, at: int) -> bool:
        """Return whether an assertion about the position is true."""
        if isinstance(assertion, _LookFrom):
            return self._look(assertion.start, at - assertion.behind) != assertion.negated
        return isinstance(assertion, _Anchor) and _is_place(assertion.kind, self._text, at)

    def _look(self, start: int, at: int) -> bool:
        if at < 0:
            return False
        found = self._looks.get((start, at))
        if found is None:
            others, self._seen = self._seen, set()
            found = self._looks[start, at] = self.matches(start, at)
            self._seen = others
        return found


_WORD = ascii_letters + digits + "_"


def _is_place(kind: str, text: str, at: int) -> bool:
    match kind:
        case "A":
            return at == 0
        case "z":
            return at == len(text)
        case "Z":
            return at == len(text) or (at == len(text) - 1 and text[at] == "\n")
        case _:
            before = at > 0 and text[at - 1] in _WORD
            after = at < len(text) and text[at] in _WORD
            return (before != after) == (kind == "b")


# --- from nodes to instructions


class _Compiler:
    """Collects routines, each a run of instructions with a `_Match` at its end."""

    def __init__(self) -> None:
        self.program: list[_Instruction] = []
        self._nodes = 0

    def routine(self, node: _Node) -> int:
        """Append the instructions that match the node, and return the first one's address."""
        start = len(self.program)
        self._add(node)
        self.program.append(_Match())
        return start

    def _add(self, node: _Node) -> None:
        # Repetitions multiply nodes, even nodes that become no instruction.
        self._nodes += 1
        if self._nodes > PROGRAM_MAX:
            raise InvalidPattern("regular expression is too large")
        program = self.program
        match node:
            case _Chars() | _Anchor():
                program.append(node)
            case _Sequence(nodes):
                for part in nodes:
                    self._add(part)
            case _Choice(nodes):
                self._add_choice(nodes)
            case _Repeat(part, least, most):
                self._add_repeat(part, least, most)
            case _Look(part, negated, behind):
                look = len(program)
                program += [_LookFrom(look + 2, negated, behind), _Match()]
                self.routine(part)
                program[look + 1] = _Jump(len(program))

    def _add_choice(self, nodes: tuple[_Node, ...]) -> None:
        program = self.program
        jumps: list[int] = []
        for part in nodes[:-1]:
            split = self._reserve()
            self._add(part)
            jumps.append(self._reserve())
            program[split] = _Split(split + 1, len(program))
        self._add(nodes[-1])
        for jump in jumps:
            program[jump] = _Jump(len(program))

    def _add_repeat(self, part: _Node, least: int, most: int | None) -> None:
        program = self.program
        for _ in range(least):
            self._add(part)
        if most is None:
            split = self._reserve()
            self._add(part)
            program.append(_Jump(split))
            program[split] = _Split(split + 1, len(program))
            return
        splits: list[int] = []
        for _ in range(most - least):
            splits.append(self._reserve())
            self._add(part)
        for split in splits:
            program[split] = _Split(split + 1, len(program))

    def _reserve(self) -> int:
        """Reserve the place of an instruction that is set later."""
        self.program.append(_Match())
        return len(self.program) - 1


# --- from text to nodes

_CODE_MAX = 0x10FFFF


def _ranges_of(characters: str) -> tuple[tuple[int, int], ...]:
    return tuple((ord(character), ord(character)) for character in characters)


def _bounds_of(ranges: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    bounds: list[int] = []
    for low, high in sorted(ranges):
        if bounds and low <= bounds[-1]:
            bounds[-1] = max(bounds[-1], high + 1)
        else:
            bounds += low, high + 1
    return tuple(bounds)


def _complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    bounds = (0, *_bounds_of(ranges), _CODE_MAX + 1)
    return tuple((low, high - 1) for low, high in zip(bounds[::2], bounds[1::2], strict=True) if low < high)


_UPPER, _LOWER, _DIGITS = (0x41, 0x5A), (0x61, 0x7A), (0x30, 0x39)
_SPACES = ((0x09, 0x0D), (0x20, 0x20))
_WORDS = (_UPPER, _LOWER, _DIGITS, (0x5F, 0x5F))
_POSIX: dict[str, tuple[tuple[int, int], ...]] = {
    "alpha": (_UPPER, _LOWER),
    "digit": (_DIGITS,),
    "alnum": (_UPPER, _LOWER, _DIGITS),
    "upper": (_UPPER,),
    "lower": (_LOWER,),
    "word": _WORDS,
    "space": _SPACES,
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "xdigit": (_DIGITS, (0x41, 0x46), (0x61, 0x66)),
    "ascii": ((0, 0x7F),),
    "cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "graph": ((0x21, 0x7E),),
    "print": ((0x20, 0x7E),),
}
_CLASSES = {
    "d": (_DIGITS,),
    "w": _WORDS,
    "s": _SPACES,
    "D": _complement((_DIGITS,)),
    "W": _complement(_WORDS),
    "S": _complement(_SPACES),
}
_CONTROLS = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}
_PLACES = "AZzbB"
_HEX = digits + "abcdefABCDEF"
_NOTHING = _Sequence(())


class _Parser:
    """A recursive-descent parser of a pattern; `_at` is the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignore_case = False
        self._dot_all = False

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._error("unmatched parentheses")
        return node

    def _alternatives(self) -> _Node:
        """Read alternatives up to the end of the group; options set in the group end with it."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("parentheses are too deeply nested")
        options = self._ignore_case, self._dot_all
        nodes = [self._sequence()]
        while self._took("|"):
            nodes.append(self._sequence())
        self._ignore_case, self._dot_all = options
        self._depth -= 1
        return nodes[0] if len(nodes) == 1 else _Choice(tuple(nodes))

    def _sequence(self) -> _Node:
        nodes: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            nodes.append(self._quantified(self._atom()))
        return nodes[0] if len(nodes) == 1 else _Sequence(tuple(nodes))

    def _quantified(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        if self._took("+"):
            raise self._error("possessive quantifiers are not supported")
        # Greedy and lazy repetition match the same texts.
        self._took("?")
        return _Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._took(sign):
                return bounds
        start = self._at
        if self._took("{"):
            least = self._while(digits)
            most = self._while(digits) if self._took(",") else least
            if least and self._took("}"):
                if most and int(most) < int(least):
                    raise self._error("numbers out of order in {} quantifier")
                return int(least), int(most) if most else None
        self._at = start
        return None

    def _atom(self) -> _Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _Chars((), negated=True) if self._dot_all else _Chars((0x0A, 0x0B), negated=True)
            case "^":
                return _Anchor("A")
            case "$":
                return _Anchor("Z")
            case "\\":
                return self._escaped()
            case "*" | "+" | "?":
                raise self._error("nothing to repeat")
            case _:
                return self._chars(_ranges_of(character))

    def _escaped(self) -> _Node:
        character = self._peek()
        if character and character in _PLACES:
            self._at += 1
            return _Anchor(character)
        return self._chars(self._escape())

    def _escape(self) -> tuple[tuple[int, int], ...]:
        """Return the character or class that an escape sequence denotes, as ranges."""
        character = self._next("\\ at end of pattern")
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            code = _CONTROLS[character]
        elif character == "x":
            code = self._hexadecimal()
        elif character in ascii_letters or character in digits:
            raise self._error(f"\\{character} is not supported")
        else:
            code = ord(character)
        return ((code, code),)

    def _hexadecimal(self) -> int:
        if self._took("{"):
            number = self._while(_HEX)
            if not self._took("}"):
                raise self._error("missing terminating }")
        else:
            number = self._text[self._at : self._at + 2]
            self._at += len(number)
        if not number or any(digit not in _HEX for digit in number) or int(number, 16) > _CODE_MAX:
            raise self._error("character value in \\x sequence is wrong")
        return int(number, 16)

    def _class(self) -> _Node:
        negated = self._took("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._took("]"):
            ranges += self._class_range()
            first = False
        return self._chars(tuple(ranges), negated=negated)

    def _class_range(self) -> tuple[tuple[int, int], ...]:
        item = self._class_item()
        rest = self._text[self._at : self._at + 2]
        if len(rest) < 2 or rest[0] != "-" or rest[1] == "]" or not _single(item):
            return item
        self._at += 1
        last = self._class_item()
        if not _single(last):
            return (*item, *_ranges_of("-"), *last)
        if last[0][0] < item[0][0]:
            raise self._error("range out of order in character class")
        return ((item[0][0], last[0][0]),)

    def _class_item(self) -> tuple[tuple[int, int], ...]:
        character = self._next("missing terminating ] for character class")
        if character == "\\":
            if self._took("b"):
                return ((8, 8),)
            return self._escape()
        if character == "[" and self._peek() == ":":
            end = self._text.find(":]", self._at)
            if end >= 0:
                return self._posix(self._text[self._at + 1 : end], end + 2)
        return _ranges_of(character)

    def _posix(self, name: str, after: int) -> tuple[tuple[int, int], ...]:
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise self._error("unknown POSIX class name")
        self._at = after
        return _complement(ranges) if name.startswith("^") else ranges

    def _group(self) -> _Node:
        if not self._took("?"):
            return self._closed(self._alternatives())
        if self._took("<=") or self._took("<!"):
            return self._look_behind(negated=self._text[self._at - 1] == "!")
        if self._took("=") or self._took("!"):
            negated = self._text[self._at - 1] == "!"
            return _Look(self._closed(self._alternatives()), negated, 0)
        if self._took("P<") or self._took("<"):
            name = self._while(ascii_letters + digits + "_")
            if not name or not self._took(">"):
                raise self._error("syntax error in subpattern name (missing terminator)")
            return self._closed(self._alternatives())
        return self._options()

    def _options(self) -> _Node:
        """Read options, for the rest of the current group or for a group that begins here."""
        before = self._ignore_case, self._dot_all
        on = True
        while self._peek() and self._peek() not in ":)":
            match self._next():
                case "-":
                    on = False
                case "i":
                    self._ignore_case = on
                case "s":
                    self._dot_all = on
                case _:
                    raise self._error("unrecognized character after (? or (?-")
        if self._took(":"):
            node = self._closed(self._alternatives())
            self._ignore_case, self._dot_all = before
            return node
        return self._closed(_NOTHING)

    def _look_behind(self, *, negated: bool) -> _Node:
        node = self._closed(self._alternatives())
        looks: list[_Node] = []
        for choice in node.nodes if isinstance(node, _Choice) else (node,):
            width = _width(choice)
            if width is None:
                raise self._error("lookbehind assertion is not fixed length")
            looks.append(_Look(choice, negated, width))
        return _Sequence(tuple(looks)) if negated else _Choice(tuple(looks))

    def _chars(self, ranges: tuple[tuple[int, int], ...], *, negated: bool = False) -> _Chars:
        if self._ignore_case:
            ranges += tuple(
                (max(low, first) + shift, min(high, last) + shift)
                for (first, last), shift in ((_UPPER, 32), (_LOWER, -32))
                for low, high in ranges
                if low <= last and first <= high
            )
        return _Chars(_bounds_of(ranges), negated)

    def _closed(self, node: _Node) -> _Node:
        if not self._took(")"):
            raise self._error("missing )")
        return node

    def _took(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._at)
        if found:
            self._at += len(expected)
        return found

    def _while(self, allowed: str) -> str:
        start = self._at
        while self._peek() and self._peek() in allowed:
            self._at += 1
        return self._text[start : self._at]

    def _peek(self) -> str:
        """Return the next character without consuming it; "" at the end."""
        return self._text[self._at : self._at + 1]

    def _next(self, complaint: str = "unexpected end") -> str:
        character = self._peek()
        if not character:
            raise self._error(complaint)
        self._at += 1
        return character

    def _error(self, text: str) -> InvalidPattern:
        return InvalidPattern(f'{{"{text}",{self._at}}}')


def _single(ranges: tuple[tuple[int, int], ...]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _width(node: _Node) -> int | None:
    """Return the number of characters of every match, or None if matches differ in length."""
    match node:
        case _Chars():
            return 1
        case _Anchor() | _Look():
            return 0
        case _Sequence(nodes):
            widths = [_width(part) for part in nodes]
            return None if None in widths else sum(width or 0 for width in widths)
        case _Choice(nodes):
            widths = [_width(part) for part in nodes]
            return widths[0] if widths.count(widths[0]) == len(widths) else None
        case _Repeat(part, least, most):
            width = _width(part)
            return None if width is None or least != most else width * least
