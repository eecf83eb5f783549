"""A topic's own file (formats: topics.md): its front matter, of which recalld manages a few keys, and its body. Pure.

Every other line of the front matter stays as it is; what the fields mean for the index is decided in `topic_store`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from persistence.topics.index import TopicEntry, instant
from persistence.topics.names import clean_summary

Mode = Literal["append", "replace"]

_FENCE: Final = "---"
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+(.*))?\Z", re.DOTALL)
_BLOCK = re.compile(r"[|>][0-9+-]{0,2}(?:[ \t]+#.*)?\Z")
_NEW: Final = (("metadata", "metadata:\n  node_type: memory\n"),)


@dataclass(frozen=True, slots=True)
class TopicFile:
    """A topic's text in two parts. `fields` are (key, raw lines) in order, key "" for what is none; None: no front matter."""

    fields: tuple[tuple[str, str], ...] | None
    body: str

    @property
    def name(self) -> str | None:
        return self._value("name")

    @property
    def description(self) -> str | None:
        return self._value("description")

    @property
    def created(self) -> str | None:
        return self._value("created")

    @property
    def last_updated(self) -> str | None:
        return self._value("last_updated")

    @property
    def pinned(self) -> bool:
        return self._value("pinned") == "true"

    @property
    def removed_at(self) -> str | None:
        """When the topic was removed; None when it was not, or was written again since by a tool that leaves the key alone."""
        removed = self._value("removed_at")
        when, written = instant(removed), instant(self.last_updated)
        return None if when is not None and written is not None and written > when else removed

    def _value(self, key: str) -> str | None:
        return next((_scalar(raw) for found, raw in self.fields or () if found == key), None)


def parse_topic_file(text: str) -> TopicFile:
    """Split a topic's text; never refuses one. Front matter counts only at the very start and when it is closed."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0] != _FENCE or _FENCE not in lines[1:]:
        return TopicFile(None, "\n".join(lines))
    end = lines.index(_FENCE, 1)
    return TopicFile(tuple(_split_fields(lines[1:end])), "\n".join(lines[end + 1 :]))


def _split_fields(lines: list[str]) -> list[tuple[str, str]]:
    """A key owns the indented lines that follow it (blank ones between them too), so that a block scalar stays whole."""
    fields: list[tuple[str, str]] = []
    blanks = ""
    for line in lines:
        if not line.strip():
            blanks += f"{line}\n"
            continue
        if line[0] in " \t" and fields:
            key, raw = fields[-1]
            fields[-1] = (key, f"{raw}{blanks}{line}\n")
        else:
            fields += [("", blanks)] if blanks else []
            found = _KEY.match(line)
            fields.append((found[1] if found else "", f"{line}\n"))
        blanks = ""
    return [*fields, ("", blanks)] if blanks else fields


def _scalar(raw: str) -> str:
    """The value of a field as one line: JSON string, YAML quotes, block scalar, or plain text up to the end of the line."""
    first, *rest = raw.rstrip("\n").split("\n")
    found = _KEY.match(first)
    value = (found[2] or "").strip() if found else ""
    if _BLOCK.match(value):
        value = ""
    text = " ".join([value, *rest]).strip()
    if text.startswith('"'):
        text = _unquoted(text)
    elif text.startswith("'") and text.endswith("'") and len(text) > 1:
        text = text[1:-1].replace("''", "'")
    return " ".join(text.split())


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return text.strip('"')
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else text


def render_topic_file(file: TopicFile) -> str:
    """The text of a file; for text that recalld wrote the inverse of `parse_topic_file`."""
    if file.fields is None:
        return file.body
    return f"{_FENCE}\n{''.join(raw for _, raw in file.fields)}{_FENCE}\n{file.body}"


def with_fields(file: TopicFile, values: Mapping[str, str | None]) -> TopicFile:
    """The file with these keys set to raw values, each once and where it was (new ones at the end); None takes a key out."""
    fields: list[tuple[str, str]] = []
    for key, raw in _NEW if file.fields is None else file.fields:
        if key not in values:
            fields.append((key, raw))
        elif (value := values[key]) is not None and all(known != key for known, _ in fields):
            fields.append((key, f"{key}: {value}\n"))
    there = {key for key, _ in fields}
    fields += [(key, f"{key}: {value}\n") for key, value in values.items() if value is not None and key not in there]
    return TopicFile(tuple(fields), file.body if file.fields is not None else f"\n{file.body}")


def write_topic(
    old: TopicFile | None, content: str, *, name: str, summary: str, stamp: str, mode: Mode, pinned: bool
) -> TopicFile:
    """The file after a write: managed keys refreshed, `created` kept, the content appended under its stamp or in place of all."""
    known = old or TopicFile(None, "")
    text = content.replace("\r\n", "\n").strip("\n")
    marked = with_fields(
        known,
        {
            "name": json.dumps(name, ensure_ascii=False),
            "description": json.dumps(summary, ensure_ascii=False),
            "last_updated": stamp,
            **({} if known.created else {"created": stamp}),
            "pinned": "true" if pinned else None,
            "removed_at": None,
        },
    )
    kept = marked.body.rstrip("\n") if old is not None and mode == "append" else None
    return replace(marked, body=f"\n{text}\n" if kept is None else f"{kept}\n\n## {stamp}\n\n{text}\n")


def mark_pinned(file: TopicFile, entry: TopicEntry, *, pinned: bool) -> TopicFile:
    """The file with its pin, from which a lost index gets it back."""
    if file.fields is None and not pinned:
        return file
    return with_fields(file, {**_known(file, entry), "pinned": "true" if pinned else None})


def mark_removed(file: TopicFile, entry: TopicEntry | None, *, stamp: str) -> TopicFile:
    """The file with the time of its removal, which is never before its last write, whatever the clocks say."""
    when, written = instant(stamp), instant(file.last_updated)
    last = file.last_updated if when is not None and written is not None and written > when else stamp
    return with_fields(file, {**_known(file, entry), "pinned": None, "removed_at": last})


def marked_as(file: TopicFile, entry: TopicEntry | None, *, stamp: str) -> TopicFile:
    """The file with the marks that fit the index: the pin of its entry, or (None: its topic was removed) a removal."""
    if entry is None:
        return file if file.fields is None or file.removed_at is not None else mark_removed(file, None, stamp=stamp)
    listed = with_fields(file, {"removed_at": None}) if file.removed_at is not None else file
    return listed if listed.pinned == entry.pinned else mark_pinned(listed, entry, pinned=entry.pinned)


def newer_entry(file: TopicFile, entry: TopicEntry) -> TopicEntry | None:
    """The entry with what its file says since the line was written (a kill between the two); None when it is up to date."""
    written, listed = instant(file.last_updated), instant(entry.stamp)
    if written is None or listed is None or written <= listed:
        return None
    return replace(entry, stamp=file.last_updated, summary=clean_summary(file.description or ""))


def _known(file: TopicFile, entry: TopicEntry | None) -> dict[str, str]:
    """What new front matter must say besides, so that a repair finds the topic under its name."""
    if file.fields is not None or entry is None:
        return {}
    values = {"name": json.dumps(entry.name, ensure_ascii=False), "description": json.dumps(entry.summary, ensure_ascii=False)}
    return values if entry.stamp is None else {**values, "last_updated": entry.stamp}
