"""Finds `password: …` and `API_KEY=…` in a text, and tells a value from a placeholder, code or prose. Pure; used by `secrets`."""

import re
from collections.abc import Iterator
from typing import Final

_MIN_LENGTH: Final = 6
_CJK_START: Final = "\u2e80"

_KEY = re.compile(
    r"(?P<key>password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key|credential)"
    r"(?P<tail>(?:[_-]?(?:access|key|value)|[_-][a-z0-9]{1,20}+){0,3}+)[\"'`*]{0,3}+"
    r"[ \t]{0,8}+(?P<sign>:=|=>|=|:)(?![:=])[ \t*]{0,8}+",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"(?P<quote>[\"'`])(?P<value>[^\"'`\n]{6,400}+)(?P=quote)")
_BARE = re.compile(r"(?P<value>[^\s\"'`]{6,400}+)")
_NEXT_PARAMETER = re.compile(r"&[A-Za-z_][A-Za-z0-9_.-]{0,40}=")
_AFTER_VALUE: Final = ",;)]}>*."

_MASKED = re.compile(
    r"[\[{<(\\]*(?:\*{2,}|•{2,}|…|\.{3,}|<|\$\{|\$\(|\$[A-Z_][A-Z0-9_]*(?![A-Za-z0-9])|\$env:|\$[a-z_]+\Z|%[A-Za-z_]+%|\{|"
    r"\[redacted|x{4,}|_{3,}|-{3,}|#{3,})",
    re.IGNORECASE,
)
_SAID_TO_BE_NONE = re.compile(
    r"your[-_ ]|.{0,60}?(?:example|placeholder|change[-_]?me|redacted)|(?:insert|enter|replace)[-_]|"
    r"(?:test|fake|dummy|sample|some|the|my)[-_](?:api[-_]?)?(?:key|token|secret|password|value)\Z|"
    r"(?:password|secret|secretstr|string|required|optional|undefined|boolean|integer|hidden|masked|unknown|(.)\1{3,})\Z",
    re.IGNORECASE,
)
_CALL = re.compile(r"[A-Za-z_]{1,60}+(?:(?:\.|::|->)[A-Za-z_]{1,60}+){0,8}+[(\[]")
_DOTTED = re.compile(r"[A-Za-z_]{1,60}+(?:\.[A-Za-z_]{1,60}+){1,8}+\Z")
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*\Z")
_MORE_WORDS = re.compile(r"[.,;:!?)]{0,3}[ \t]+[(\"']?[A-Za-z]")


def find_assigned(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each value that is said to be a password, token, key or the like, and is not one of the exempt kinds."""
    at = 0
    while (key := _KEY.search(text, at)) is not None:
        at = key.end()
        value = _QUOTED.match(text, at) or _BARE.match(text, at)
        if value is None:
            continue
        start, end = value.span("value")
        if value.re is _BARE:
            end = _end_of_bare(text, start, end)
        if end - start >= _MIN_LENGTH and not _is_exempt(text, key, start, end):
            yield start, end
            at = end


def is_masked(value: str) -> bool:
    """Whether a value stands for one that is not shown: asterisks, a variable, angle brackets, an earlier redaction."""
    return _MASKED.match(value) is not None


def _end_of_bare(text: str, start: int, end: int) -> int:
    parameter = _NEXT_PARAMETER.search(text, start, end)
    if parameter is not None:
        end = parameter.start()
    while end > start and text[end - 1] in _AFTER_VALUE:
        end -= 1
    return end


def _is_exempt(text: str, key: re.Match[str], start: int, end: int) -> bool:
    value = text[start:end]
    if is_masked(value) or _SAID_TO_BE_NONE.match(value) or any(char >= _CJK_START for char in value):
        return True
    return _is_code(key["key"].lower(), value) or _is_count(key, value) or _is_prose(text, key["sign"], value, end)


def _is_code(key: str, value: str) -> bool:
    """A call, an attribute, or a variable that is named as the key is: `password=db_password`."""
    named_alike = value.lower().endswith(f"_{key}") and value.replace("_", "").isalpha()
    return named_alike or bool(_CALL.match(value) or _DOTTED.match(value))


def _is_count(key: re.Match[str], value: str) -> bool:
    """`token_limit: 200000` counts tokens."""
    return key["key"].lower() == "token" and bool(key["tail"]) and value.replace("_", "").replace(",", "").isdigit()


def _is_prose(text: str, sign: str, value: str, end: int) -> bool:
    """`Secret: remember to breathe` goes on in words."""
    return sign == ":" and bool(_WORD.match(value) and _MORE_WORDS.match(text, end))
