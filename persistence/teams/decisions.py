"""Decision records of a team: files that are made once and never changed; their ids, their text, and lenient reading."""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import count
from typing import Final

from persistence.errors import BodyInvalidError, NotFoundError, TooLargeError
from persistence.files import create_bytes, opened_folder, read_text
from persistence.teams.log import flatten
from persistence.versions import Author, recorded_change
from persistence.workspace import Workspace

MAX_BODY_BYTES: Final = 16 * 1024
MAX_TITLE: Final = 120

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", re.ASCII)
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z", re.ASCII)
_MAX_SLUG: Final = 60
_FILE = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})-([A-Za-z0-9][A-Za-z0-9_-]{0,99})\.md\Z", re.ASCII)
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_HEADING = re.compile(r"#+[ \t]+(.+)")
# How a note says that it is a decision.
_MARK = re.compile(r"\s*(?:decision|decided)\s*:\s*(?=\S)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision as recorded; `id` is its file's name without `.md`. `supersedes` is the id of the one that it replaces."""

    id: str
    date: str
    slug: str
    title: str
    status: str
    supersedes: str | None
    role: str | None
    run_id: str | None
    body: str


def record_decision(workspace: Workspace, folder: str, decision: Decision, *, author: Author) -> Decision:
    """Make the file of a new decision, durably and in one piece; returns it with the id that was free.

    The folder's decisions are made under one lock. Raises UnsafeObjectError, StorageFullError, StoreFaultError.
    """
    base = f"{decision.date}-{decision.slug}"
    taken = {name.casefold() for name in _names(workspace, folder)}
    ids = (base if number == 1 else f"{base}-{number}" for number in count(1))
    while True:
        new = replace(decision, id=next(each for each in ids if f"{each}.md".casefold() not in taken))
        name, data = f"{folder}/{new.id}.md", render_decision(new).encode("utf-8")
        with recorded_change(workspace, name, None, data, author=author):
            if create_bytes(workspace.root, name, data):
                return new


def list_decisions(workspace: Workspace, folder: str, *, limit: int) -> list[Decision]:
    """The latest decisions by day and name, newest first. What is no decision by its name is left out."""
    ids = sorted((name.removesuffix(".md") for name in _names(workspace, folder) if _FILE.match(name)), reverse=True)
    found = [_read(workspace, folder, decision_id) for decision_id in ids[:limit]]
    return [decision for decision in found if decision is not None]


def read_decision(workspace: Workspace, folder: str, decision_id: str) -> Decision:
    """One decision. Raises NotFoundError, UnsafeObjectError, TooLargeError."""
    found = _read(workspace, folder, decision_id) if _FILE.match(f"{decision_id}.md") else None
    if found is None:
        raise NotFoundError(f"there is no decision {decision_id[:60]!r}: list the decisions")
    return found


def _read(workspace: Workspace, folder: str, decision_id: str) -> Decision | None:
    file = read_text(workspace.root, f"{folder}/{decision_id}.md")
    return None if file is None else parse_decision(decision_id, file.text)


def _names(workspace: Workspace, folder: str) -> list[str]:
    try:
        with opened_folder(workspace.root, folder) as fd, os.scandir(fd) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def parse_day(text: str) -> date:
    """A day from outside. Raises BodyInvalidError for one that does not exist."""
    try:
        if _DAY.match(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise BodyInvalidError(f"{text[:40]!r} is no day: write YYYY-MM-DD")


def parse_slug(text: str) -> str:
    """A slug from outside. Raises BodyInvalidError."""
    if len(text) > _MAX_SLUG or not _SLUG.match(text):
        raise BodyInvalidError(f"{text[:80]!r} is no slug: use up to {_MAX_SLUG} of a-z 0-9, words joined by single hyphens")
    return text


def slug_of(title: str) -> str:
    """A slug for a title; "decision" when it holds no Latin letter and no digit."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    slug = ""
    for word in words:
        if len(slug) + len(word) + 1 > _MAX_SLUG:
            break
        slug = f"{slug}-{word}" if slug else word
    return slug or "".join(words[:1])[:_MAX_SLUG] or "decision"


def clean_title(text: str) -> str:
    """The title on one line. Raises BodyInvalidError when it is blank or too long."""
    title = flatten(text)
    if not title or len(title) > MAX_TITLE:
        raise BodyInvalidError(f"a decision needs a title of 1-{MAX_TITLE} characters, this one has {len(title)}")
    return title


def clean_body(text: str) -> str:
    """The text of a decision with LF line ends, one at its end. Raises TooLargeError."""
    body = (
        text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip("\n")
    )
    if len(body.encode("utf-8")) > MAX_BODY_BYTES:
        raise TooLargeError(f"the text of a decision may have {MAX_BODY_BYTES} bytes: link a file instead")
    return f"{body}\n" if body else ""


def split_marked(note: str) -> tuple[str, str] | None:
    """(title, body) of a note that says it is a decision ("decision: …"), None for any other note."""
    mark = _MARK.match(note)
    if mark is None:
        return None
    body = note[mark.end() :].strip()
    title = flatten(body.replace("\r", "\n").split("\n")[0])
    return (title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1].rstrip() + "…"), body


def render_decision(decision: Decision) -> str:
    """The file's text. Every text in the front matter is quoted as JSON, which is YAML too."""
    quoted = json.dumps(decision.title, ensure_ascii=False)
    return (
        f"---\nid: {decision.id}\ndate: {decision.date}\nslug: {decision.slug}\ntitle: {quoted}\nstatus: {decision.status}\n"
        f"supersedes: {decision.supersedes or 'null'}\nrole: {decision.role or 'null'}\nrun_id: {decision.run_id or 'null'}\n"
        "---\n\n"
        f"{decision.body}"
    )


def parse_decision(decision_id: str, text: str) -> Decision:
    """A decision of a file, also of one that another tool wrote: what its front matter doesn't say comes from its name."""
    day, slug = decision_id[:10], decision_id[11:]
    text = text.replace("\r\n", "\n")
    front = _FRONT_MATTER.match(text)
    body = text[front.end() :].removeprefix("\n") if front else text
    fields = dict(_parse_field(line) for line in front[1].split("\n") if ":" in line) if front else {}
    heading = _HEADING.match(body.lstrip())
    return Decision(
        id=decision_id,
        date=fields.get("date") or day,
        slug=fields.get("slug") or slug,
        title=fields.get("title") or (heading[1].strip() if heading else slug),
        status=fields.get("status") or "accepted",
        supersedes=fields.get("supersedes"),
        role=fields.get("role"),
        run_id=fields.get("run_id"),
        body=body,
    )


def _parse_field(line: str) -> tuple[str, str | None]:
    name, _, value = line.partition(":")
    return name.strip(), _parse_value(value.strip())


def _parse_value(text: str) -> str | None:
    """What we write (JSON texts, plain words, null) and the simple YAML that people write."""
    if text in ("", "null", "~"):
        return None
    if text.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(text))
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
