"""Finds what looks like a secret or a raw transcript in a text, and takes secrets out. Pure, and linear in the text's length.

The keys of well-known services are in `key_shapes`, `password: …` and its like in `assignments`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Final

from persistence.assignments import find_assigned, is_masked
from persistence.errors import SecretDetectedError
from persistence.key_shapes import KEY_SHAPES

MIN_RANDOM_LENGTH: Final = 32
MIN_BITS: Final = 4.0
_MAX_RANDOM_LENGTH: Final = 200  # longer ones are files in base64, not keys
_MAX_WORDY_SHARE: Final = 0.4
_TURNS_OF_A_TRANSCRIPT: Final = 3
_OBJECTS_OF_A_TRANSCRIPT: Final = 2
_PASSES: Final = 8
_LOOK_BACK: Final = 2000
_MAX_BLOCK: Final = 64 * 1024

_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}+-----")
_BLOCK_END = re.compile(r"-----END [A-Z0-9 ]{1,60}+-----")
_BLOCK_LINES = re.compile(r"(?:(?:\s|\\[nr]){1,8}+[A-Za-z0-9+/=]{16,200}+(?![^\s\\]))*+")
_URL = re.compile(
    r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,30}+://[^\s/:@?#\"'<>]{0,200}+:(?P<value>[^\s/@?#\"'<>]{1,200}+)@",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"\bauthorization[\"']?[ \t]{0,4}+[:=][ \t]{0,4}+[\"']?(?:bearer|basic|token)[ \t]{1,4}+"
    r"(?P<value>[A-Za-z0-9._~+/=-]{12,4000}+)",
    re.IGNORECASE,
)
_NETRC = re.compile(
    r"\bmachine[ \t]{1,4}+\S{1,200}+\s{1,8}+login[ \t]{1,4}+\S{1,200}+\s{1,8}+password[ \t]{1,4}+(?P<value>\S{4,200}+)"
)
_NAMED: Final = (("url_password", "://", _URL), ("authorization", "", _HEADER), ("netrc_password", "machine", _NETRC))
_TOKEN = re.compile(rf"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{{{MIN_RANDOM_LENGTH},}}+")
_HEX = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}+")
_PUBLIC = re.compile(
    r"(?:sha(?:1|224|256|384|512)[-:=_]|h1:|base64,|ssh-[a-z0-9]{2,10} |ecdsa-[a-z0-9-]{2,30} |SHA256:|md5[-:])\Z", re.IGNORECASE
)
_HASH_HEAD = re.compile(r"(?:sha(?:1|224|256|384|512)|md5)[-=_]", re.IGNORECASE)
_RUN_OF_LETTERS = re.compile(r"[a-z]{3,}")
_PIECE_OF_FILE = re.compile(r"[A-Za-z0-9+/]+=*")
_LINE_OF_FILE = re.compile(r"[A-Za-z0-9+/]{60,}=*")

_ROLE = re.compile(
    r"^[ \t>*#-]{0,8}(user|human|assistant|ai|bot|model|system|agent)\b[*_]{0,3}[ \t]{0,4}:", re.IGNORECASE | re.MULTILINE
)
_ROLE_FIELD = re.compile(r"[\"']role[\"']\s{0,20}:\s{0,20}[\"'](?:user|human|assistant|system|tool|developer|model)[\"']")
_CONTENT_FIELD = re.compile(r"[\"'](?:content|parts)[\"']\s{0,20}:")

REDACTED: Final = "[redacted:"
"""How what stands in a secret's place begins."""


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """What looks like a secret: its kind, and where it is in the text (code points, `end` exclusive)."""

    kind: str
    start: int
    end: int


def find_secrets(text: str) -> list[SecretFinding]:
    """What looks like a secret, in order and without overlaps; what `redact` put there is none."""
    found = [*_blocks(text), *_keys(text), *_named(text)]
    found += [SecretFinding("assignment", start, end) for start, end in find_assigned(text)]
    found += [SecretFinding("random_string", start, end) for start, end in _random_strings(text)]
    return _without_overlaps(found)


def redact(text: str) -> str:
    """The text with each finding replaced by `[redacted:<kind>]`; doing it twice changes nothing more."""
    for _ in range(_PASSES):  # what was glued to a finding may be seen as a key of its own once that is gone
        findings = find_secrets(text)
        if not findings:
            break
        parts, at = [], 0
        for finding in findings:
            parts += [text[at : finding.start], f"{REDACTED}{finding.kind}]"]
            at = finding.end
        text = "".join([*parts, text[at:]])
    return text


def refuse_secrets(text: str, *, where: str) -> None:
    """Raise SecretDetectedError, which says the kind and the place of the first finding and never the value."""
    for finding in find_secrets(text):
        raise _error(text, finding, where)


def refuse_new_secrets(old: str, new: str, *, where: str) -> None:
    """As `refuse_secrets`, but what `old` holds already does not stand in the way of another change of the file."""
    findings = find_secrets(new)
    known = {old[each.start : each.end] for each in find_secrets(old)} if findings and old else set()
    for finding in findings:
        if new[finding.start : finding.end] not in known:
            raise _error(new, finding, where)


def line_of(text: str, finding: SecretFinding) -> int:
    """The 1-based line on which a finding begins."""
    return text.count("\n", 0, finding.start) + 1


def is_transcript(text: str) -> bool:
    """Whether a text is a raw conversation: three turns of lines that begin with a role, or two message objects in JSON."""
    roles = [role.lower() for role in _ROLE.findall(text)]
    turns = sum(1 for one, other in pairwise(roles) if one != other) + bool(roles)
    if turns >= _TURNS_OF_A_TRANSCRIPT:
        return True
    objects = min(len(_ROLE_FIELD.findall(text)), len(_CONTENT_FIELD.findall(text)))
    return objects >= _OBJECTS_OF_A_TRANSCRIPT


def _error(text: str, finding: SecretFinding, where: str) -> SecretDetectedError:
    line = line_of(text, finding)
    return SecretDetectedError(
        f"{where}: line {line} holds what looks like a secret ({finding.kind}, at offset {finding.start}): nothing was written; "
        "take it out, and keep it in a secret store",
        kind=finding.kind,
        offset=finding.start,
    )


def _without_overlaps(found: list[SecretFinding]) -> list[SecretFinding]:
    """Overlapping findings as one, named by the one that begins first (of two that begin together, the longer)."""
    merged: list[SecretFinding] = []
    for each in sorted(found, key=lambda finding: (finding.start, -finding.end)):
        if merged and each.start < merged[-1].end:
            last = merged[-1]
            kind = each.kind if last.kind in ("assignment", "random_string") else last.kind
            merged[-1] = SecretFinding(kind, last.start, max(last.end, each.end))
        else:
            merged.append(each)
    return merged


def _blocks(text: str) -> Iterator[SecretFinding]:
    """PEM blocks, whole where their end is near, else with the lines of base64 that follow."""
    at = 0
    while (begin := _BLOCK.search(text, at)) is not None:
        following = text.find("-----BEGIN ", begin.end(), begin.end() + _MAX_BLOCK)
        end = _BLOCK_END.search(text, begin.end(), following if following >= 0 else begin.end() + _MAX_BLOCK)
        lines = _BLOCK_LINES.match(text, begin.end())
        at = end.end() if end is not None else lines.end() if lines is not None else begin.end()
        yield SecretFinding("private_key" if "PRIVATE KEY" in begin[0] else "pem_block", begin.start(), at)


def _keys(text: str) -> Iterator[SecretFinding]:
    for shape in KEY_SHAPES:
        if any(hint in text for hint in shape.hints):
            group = "value" if "value" in shape.pattern.groupindex else 0
            for match in shape.pattern.finditer(text):
                yield SecretFinding(shape.kind, *match.span(group))


def _named(text: str) -> Iterator[SecretFinding]:
    for kind, hint, pattern in _NAMED:
        for match in pattern.finditer(text) if hint in text else ():
            if not is_masked(match["value"]):
                yield SecretFinding(kind, *match.span("value"))


def _random_strings(text: str) -> Iterator[tuple[int, int]]:
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if end - start <= _MAX_RANDOM_LENGTH and _is_random(match[0]) and not _is_known_harmless(text, start, end):
            yield start, end


def _is_random(token: str) -> bool:
    """Whether a token has the looks of a generated key: no hash, no id, no words; digits among letters; many bits a character."""
    rest = _HEX.sub("", token)
    if len(rest) < MIN_RANDOM_LENGTH or rest.isalpha() or not any(char.isdigit() for char in rest):
        return False
    wordy = sum(len(run) for run in _RUN_OF_LETTERS.findall(rest))
    return wordy / len(rest) < _MAX_WORDY_SHARE and _bits_of(rest) > MIN_BITS


def _bits_of(token: str) -> float:
    """Shannon entropy of the characters, in bits each."""
    size = len(token)
    return -sum(count / size * log2(count / size) for count in Counter(token).values())


def _is_known_harmless(text: str, start: int, end: int) -> bool:
    """A hash that is named as one, a public key, an id in an address, a line of a file in base64."""
    before = text[max(0, start - _LOOK_BACK) : start]
    word = before[max(before.rfind(" "), before.rfind("\n"), before.rfind("\t")) + 1 :]
    named = _PUBLIC.search(before[-40:]) or _HASH_HEAD.match(text, start, end)
    return bool("://" in word or named or _is_line_of_file(text, start, end))


def _is_line_of_file(text: str, start: int, end: int) -> bool:
    line_start, line_end = text.rfind("\n", max(0, start - 80), start) + 1, text.find("\n", end, end + 80)
    if not _PIECE_OF_FILE.fullmatch(text, start, end) or text[line_start:start].strip(" \t>"):
        return False
    after = text[line_end + 1 : line_end + 1 + 200].strip().partition("\n")[0] if line_end >= 0 else ""
    above = text[max(0, line_start - 200) : max(0, line_start - 1)].rpartition("\n")[2].strip(" \t>")
    return any(len(other) >= end - start and _LINE_OF_FILE.fullmatch(other.strip()) for other in (after, above))
