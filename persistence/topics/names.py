"""What a topic may be called, the file name made of it, and the one line that sums it up. Pure."""

import re
import unicodedata
from typing import Final

from persistence.errors import (
    TooLargeError,
    TopicBlankError,
    TopicNoSlugError,
    TopicReservedError,
    TopicRetiredError,
    TopicStructuralError,
)

MAX_NAME: Final = 120
MAX_SUMMARY: Final = 500
MAX_SLUG_BYTES: Final = 80

_STRUCTURAL: Final = frozenset("[]()")
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format and bidi characters, line separators
_RETIRED: Final = frozenset({"last-session-recap"})
_RESERVED: Final = frozenset({"memory", "handoff", "index", "system", "log"})  # files that mean something else beside a topic
_DEVICES: Final = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


def key_of(name: str) -> str:
    """What names are compared by: one spelling for every Unicode form and case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_topic_name(name: str) -> str:
    """The name as it is stored (NFC, trimmed); raises the error of the rule that it breaks."""
    checked = unicodedata.normalize("NFC", name).strip()
    if not checked:
        raise TopicBlankError("the topic has no name: say what it is about in a few words")
    bad = sorted({char for char in checked if char in _STRUCTURAL or unicodedata.category(char) in _HIDDEN})
    if bad:
        raise TopicStructuralError(
            f"{checked[:MAX_NAME]!r} can't name a topic because of {', '.join(map(ascii, bad))}: "
            "leave out brackets, parentheses, line breaks and invisible characters",
        )
    if len(checked) > MAX_NAME:
        raise TooLargeError(
            f"a topic's name has at most {MAX_NAME} characters, this one has {len(checked)}: put the rest in the summary"
        )
    slug_of(checked)
    return checked


def slug_of(name: str) -> str:
    """The stem of a topic's file: ASCII letters and digits, or those of another script where there are none.

    Raises TopicNoSlugError, TopicReservedError, TopicRetiredError.
    """
    slug = _ascii_slug(name) or _script_slug(name)
    if not slug:
        raise TopicNoSlugError(f"{name!r} can't name a topic: it needs at least one letter or digit")
    if slug in _RETIRED:
        raise TopicRetiredError(
            f"{name!r} can't name a topic: session recaps are no longer kept, write the durable facts themselves"
        )
    if slug in _RESERVED or slug in _DEVICES:
        raise TopicReservedError(f"{name!r} can't name a topic: a file {slug}.md has another meaning, choose a longer name")
    return slug


def _ascii_slug(name: str) -> str:
    slug = _joined(re.sub(r"[^a-z0-9\s-]", "", name.lower()))
    return slug if re.search(r"[a-z0-9]", slug) else ""


def _script_slug(name: str) -> str:
    kept = "".join(
        char if char.isspace() or char == "-" or unicodedata.category(char)[0] in "LNM" else "" for char in name.lower()
    )
    slug = _joined(unicodedata.normalize("NFC", kept))
    return slug if any(unicodedata.category(char)[0] in "LN" for char in slug) else ""


def _joined(text: str) -> str:
    """Blanks become hyphens, runs of them one; cut to the size that every file system takes."""
    slug = re.sub(r"-+", "-", re.sub(r"\s+", "-", text.strip()))
    cut = slug.strip("-").encode()[:MAX_SLUG_BYTES].decode("utf-8", "ignore")
    return cut.strip("-")


def clean_summary(text: str) -> str:
    """One line of at most 500 code points: whatever breaks a line is a blank, and it can't hide anything in the line."""
    visible = "".join(
        " " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") else char for char in text.replace("\ufeff", " ")
    )
    return " ".join(visible.split())[:MAX_SUMMARY].rstrip()


def recovered_name(wanted: str, stem: str) -> str:
    """The name for a topic that is known only from its file: `wanted` without what could act in an index line, or the stem."""
    kept = "".join(char for char in wanted if char not in _STRUCTURAL and unicodedata.category(char) not in _HIDDEN)
    return unicodedata.normalize("NFC", " ".join(kept.split()))[:MAX_NAME].strip() or stem
