"""What `memory.jsonc` may hold, and how its bytes become rules with a diagnostic for each fault. Opens no file."""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

import json5
from pydantic import JsonValue

from persistence.settings_values import Diagnostic

MAX_BYTES: Final = 64 * 1024
"""Parsing takes about 7 ms a KB, so there is a limit."""

_MAX_DEPTH: Final = 8  # the file has two levels; the parser is recursive and gives up at some 50
_NEAR: Final = 0.75
_ERROR: Final = re.compile(r"<string>:(?P<line>\d+) (?P<reason>.*)", re.DOTALL)
# An unclosed text or comment goes on to the end, so that the scan stays linear.
_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|(?P<key>"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|[\w$]++)|(?P<mark>[{}\[\]:,])""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of memory, and its limits. The three lists are for the prompt, the rest never goes there."""

    always_persist: tuple[str, ...] = ()
    never_persist: tuple[str, ...] = ()
    always_ask: tuple[str, ...] = ()
    max_lines: int = 300
    stale_after_days: int = 180
    inject_every_n_turns: int = 5
    handoff_keep: int = 3
    auto_resume_after_threshold_compaction: bool = False
    consolidate_on_compact: bool = False
    shared_dir: bool = False


BUILT_IN: Final = Rules(
    always_persist=(
        "Decisions, and the reasons for them",
        "What people say they prefer",
        "How systems are set up, and what changed about that",
        "Problems that were solved, with what solved them",
        "Commands and procedures that will be needed again",
    ),
    never_persist=(
        "Passwords, keys, tokens and other secrets",
        "What can be looked up in the code or its history",
        "The state of a task that ends with this conversation",
        "What is in memory already",
        "Long pieces of code: write down where they are",
    ),
    always_ask=(
        "Anything about how to sign in somewhere",
        "Personal data",
        "What somebody called private, or said in passing only",
    ),
)
"""In force where there is no file, and where a broken one has never been read."""

_KEYS: Final = tuple(item.name for item in fields(Rules))


def _template() -> str:
    def rules(name: str, items: tuple[str, ...]) -> str:
        return f'  "{name}": [\n' + ",\n".join(f'    "{item}"' for item in items) + "\n  ],\n"

    return (
        "{\n"
        "  // What the bot writes down, what it doesn't, and what it asks about first. The bot is given these three lists.\n"
        + rules("always_persist", BUILT_IN.always_persist)
        + rules("never_persist", BUILT_IN.never_persist)
        + rules("always_ask", BUILT_IN.always_ask)
        + "  // How many lines of a topic index the bot is given: 50 to 1000.\n"
        '  "max_lines": 300,\n'
        "  // After how many days a topic that isn't pinned is marked as stale; 0: never.\n"
        '  "stale_after_days": 180,\n'
        "  // The bot is given a changed index at every turn of this number, and after it wrote something itself.\n"
        '  "inject_every_n_turns": 5,\n'
        "  // How many sections HANDOFF.md keeps; 0: none is written.\n"
        '  "handoff_keep": 3,\n'
        "  // After a compaction, go on with unfinished work without being asked.\n"
        '  "auto_resume_after_threshold_compaction": false,\n'
        "  // After a compaction, tidy up what is in memory.\n"
        '  "consolidate_on_compact": false,\n'
        "  // Keep topics in the directory that several tools share.\n"
        '  "shared_dir": false\n'
        "}\n"
    )


DEFAULT_TEXT: Final = _template()


@dataclass(frozen=True, slots=True)
class Broken:
    """Why the file as a whole can't be read."""

    reason: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ParsedRules:
    """The rules of a readable file, and what in it is not in force."""

    rules: Rules
    diagnostics: tuple[Diagnostic, ...]


def parse_rules(data: bytes, good: Rules) -> ParsedRules | Broken:
    """Read the bytes of a file. A list or a directory switch that is there but not sound stays as it is in `good`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Broken("it is not UTF-8")
    keys, depth = _locate_keys(text)
    if depth > _MAX_DEPTH:
        return Broken("it is nested too deeply")
    try:
        values: JsonValue = json5.loads(text)
    except (ValueError, RecursionError) as err:
        return _explain(str(err))
    if not isinstance(values, dict):
        return Broken("it is no JSON object")
    reader = _Reader(values, dict(keys), good)
    rules = reader.read()
    return ParsedRules(rules, (*_repetitions(keys), *reader.diagnostics))


def _explain(message: str) -> Broken:
    match = _ERROR.fullmatch(message)
    if match is None:
        return Broken(f"it is no JSON: {message[:200]}")
    return Broken(f"it is no JSON: {' '.join(match['reason'].split())[:200]}", int(match["line"]))


def _locate_keys(text: str) -> tuple[list[tuple[str, int]], int]:
    """(the outermost keys with their lines in order, how deeply the text is nested); right where the text is valid."""
    keys: list[tuple[str, int]] = []
    depth = deepest = counted = 0
    line, last = 1, ""
    for token in _TOKEN.finditer(text):
        mark = token["mark"]
        if mark == ":" and depth == 1:
            line, counted = line + text.count("\n", counted, token.start()), token.start()
            keys.append((last, line))
        elif mark is not None:
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark, 0)
            deepest = max(deepest, depth)
        elif token["key"] is not None:
            last = token["key"].strip("\"'")
    return keys, deepest


def _repetitions(keys: list[tuple[str, int]]) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for key, line in keys:
        if key in seen:
            yield Diagnostic(key, "the key is there more than once; the last one counts", line)
        seen.add(key)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one file's values; what is wrong with them is collected on the way."""

    values: Mapping[str, JsonValue]
    lines: Mapping[str, int]
    good: Rules
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def read(self) -> Rules:
        misspelt = set(self._report_unknown())
        return Rules(
            always_persist=self._texts("always_persist", self.good.always_persist, misspelt),
            never_persist=self._texts("never_persist", self.good.never_persist, misspelt),
            always_ask=self._texts("always_ask", self.good.always_ask, misspelt),
            max_lines=self._number("max_lines", default=300, low=50, high=1000),
            stale_after_days=self._number("stale_after_days", default=180, low=0),
            inject_every_n_turns=self._number("inject_every_n_turns", default=5, low=1),
            handoff_keep=self._number("handoff_keep", default=3, low=0),
            auto_resume_after_threshold_compaction=self._switch("auto_resume_after_threshold_compaction"),
            consolidate_on_compact=self._switch("consolidate_on_compact"),
            shared_dir=self._switch("shared_dir", good=self.good.shared_dir, misspelt=misspelt),
        )

    def _report_unknown(self) -> Iterator[str]:
        """The known keys that are absent while an unknown one looks like them."""
        absent = [key for key in _KEYS if key not in self.values]
        for key in self.values:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, absent, n=1, cutoff=_NEAR)
                hint = f"; write {near[0]} if you mean that" if near else ""
                self._note(key, f"unknown key, it is ignored{hint}")
                yield from near

    def _note(self, key: str, reason: str) -> None:
        self.diagnostics.append(Diagnostic(key, reason, self.lines.get(key)))

    def _texts(self, key: str, good: tuple[str, ...], misspelt: set[str]) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if key in misspelt:
            return good
        if not isinstance(value, list):
            self._note(key, f"must be a list of texts, {_shown(value)} is not; what was in force before stays")
            return good
        for item in value:
            if not isinstance(item, str) or not item.strip():
                self._note(key, f"{_shown(item)} is no text, it is left out")
        return tuple(_whole(item) for item in value if isinstance(item, str) and item.strip())

    def _number(self, key: str, *, default: int, low: int, high: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._note(key, f"must be a whole number, {_shown(value)} is not; {default} is used")
            return default
        fitting = max(low, value if high is None else min(value, high))
        if fitting != value:
            self._note(key, f"{_shown(value)} is out of range, {fitting} is used")
        return fitting

    def _switch(self, key: str, *, good: bool = False, misspelt: set[str] | None = None) -> bool:
        if key not in self.values:
            return good and key in (misspelt or ())
        value = self.values[key]
        if isinstance(value, bool):
            return value
        self._note(key, f"must be true or false, {_shown(value)} is neither; it stays {str(good).lower()}")
        return good


def _whole(text: str) -> str:
    """The text with escaped surrogate pairs put together, which the parser leaves as two halves; a lone half is replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _shown(value: JsonValue) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    return repr(value)[:60]


def render_rules(rules: Rules) -> str:
    """The three lists as Markdown for a prompt, one level below its sections; "" when all are empty.

    What guards privacy comes first: a prompt that has too little room is cut at its end.
    """
    lists = (
        ("Never write down", rules.never_persist),
        ("Ask before", rules.always_ask),
        ("Always write down", rules.always_persist),
    )
    parts = [f"### {title}\n" + "\n".join(f"- {' '.join(item.split())}" for item in items) for title, items in lists if items]
    return "\n\n".join(parts)
