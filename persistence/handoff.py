"""HANDOFF.md: what the bot was about when a context was compacted, a section for each compaction, the newest last.

What is compacted and when is `compaction`'s business.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from persistence.files import create_bytes, read_bytes, read_text
from persistence.records import AssistantMessage, Message, TextBlock
from persistence.rules_values import Rules
from persistence.secrets import redact
from persistence.versions import Author, edit_text
from persistence.workspace import HANDOFF_TAKEN_OVER, LEGACY_HANDOFF, ChannelId, Workspace, is_ts

CompactionReason: TypeAlias = Literal["manual", "threshold", "overflow"]
HandoffStatus: TypeAlias = Literal["disabled", "empty", "written"]

MAX_SECTION_BYTES: Final = 12_288
MAX_BULLETS: Final = 15
LAST_MESSAGES: Final = 3
_MAX_BULLET_CHARS: Final = 500
_MAX_LINE_CHARS: Final = 2 * _MAX_BULLET_CHARS  # of what is cut anyway no more is looked at

_HEADING: Final = re.compile(r"## (?P<stamp>\S+)(?P<consolidated> Consolidation)? \((?P<reason>\w+)\)\s*\Z")
_MARK: Final = re.compile(r"<!-- compaction (?P<id>[0-9a-f]+)(?: thread (?P<thread>[0-9.]+))?(?P<done> nothing-left)? -->\Z")
_NEXT_STEP: Final = re.compile(r"- Next step: (?P<step>.+)\Z")
_FENCE: Final = re.compile(r"\s*(?:[-*+]\s+)?(?P<fence>`{3,}|~{3,})")
_TITLE: Final = re.compile(r"\s*#{1,6}(?:\s|\Z)")
_LIST_MARK: Final = re.compile(r"\A(?:[-*+]|[0-9]{1,3}[.)])\s+")
_EMPHASIS: Final = re.compile(r"(\*{1,3})(\S(?:.*?\S)?)\1")
_UNFINISHED: Final = re.compile(
    r"\b(?:needs? to|waiting for|(?<!no )next step|(?<!no )(?<!nothing )pending|not done|incomplete|unfinished)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class CompactionMark:
    """Which compaction a section belongs to: its id, and the thread whose context it was (None: the channel's)."""

    id: str
    thread_ts: str | None = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """One section. `text` is its body; `next_step` "" says that nothing is left to do, None that nobody said.

    `consolidated`: the body is the summary that the context itself begins with.
    """

    path: str
    stamp: str
    reason: str
    text: str
    mark: CompactionMark | None
    next_step: str | None
    consolidated: bool

    @property
    def is_unfinished(self) -> bool:
        """Whether there is work to go on with: as was said, else by its words."""
        return bool(self.next_step) if self.next_step is not None else _UNFINISHED.search(self.text) is not None


@dataclass(frozen=True, slots=True)
class HandoffOf:
    """The compaction that a section is of, and how it is written: at most `keep` sections stay (0: none is written)."""

    reason: CompactionReason
    mark: CompactionMark
    keep: int
    now: datetime
    author: Author


def write_handoff(
    workspace: Workspace,
    channel: ChannelId | None,
    messages: Iterable[Message],
    *,
    of: HandoffOf,
    next_step: str | None = None,
) -> HandoffStatus:
    """Write what the last assistant messages say as a section; one of the same compaction is replaced.

    `next_step`: what is to be done next, "" when nothing is, None when unknown. Raises StoreBusyError, StorageFullError,
    StoreFaultError, NotUtf8Error, UnsafeObjectError.
    """
    if of.keep == 0:
        return "disabled"
    bullets = extract_bullets(_last_texts(messages))
    if next_step:
        bullets = [*bullets[1 - MAX_BULLETS :], f"- Next step: {_shorten(redact(' '.join(next_step.split())))}"]
    if not bullets:
        return "empty"
    _put(workspace, channel, _render(of, "", _fit_bullets(bullets), nothing_left=next_step == ""), of=of)
    return "written"


def write_consolidation(workspace: Workspace, channel: ChannelId | None, summary: str, *, of: HandoffOf) -> HandoffStatus:
    """Put a compaction's summary in the place of its own section, never in that of another compaction. Raises as above."""
    if of.keep == 0:
        return "disabled"
    body = cap_section(_demote(redact(summary)))
    if not body:
        return "empty"
    _put(workspace, channel, _render(of, " Consolidation", body, nothing_left=False), of=of)
    return "written"


def read_handoff(workspace: Workspace, channel: ChannelId | None, *, compaction_id: str | None = None) -> Handoff | None:
    """The newest section (or the one of that compaction), None when there is none; changes nothing on disk."""
    path = Workspace.handoff(channel)
    file = read_text(workspace.root, path)
    text = file.text if file is not None else _legacy_text(workspace, channel)
    for section in reversed(_split(text)[1]):
        handoff = _parse(path, section)
        if compaction_id is None or (handoff.mark is not None and handoff.mark.id == compaction_id):
            return handoff
    return None


def decide_after_compaction(
    rules: Rules, *, reason: CompactionReason, handoff: Handoff | None
) -> Literal["consolidate", "resume", "none"]:
    """What follows a compaction: only one that nobody asked for, and that no model call waits for, is followed by anything."""
    if reason != "threshold":
        return "none"
    if rules.consolidate_on_compact:
        return "consolidate"
    is_unfinished = handoff is not None and handoff.is_unfinished
    return "resume" if rules.auto_resume_after_threshold_compaction or is_unfinished else "none"


def extract_bullets(texts: Sequence[str]) -> list[str]:
    """One bullet for each line that says something, without headings and code; of too many the newest stay."""
    bullets = []
    for text in texts:
        for line in _lines_outside_fences(redact(text)):
            said = _EMPHASIS.sub(r"\2", _LIST_MARK.sub("", line.strip()[:_MAX_LINE_CHARS])).strip()
            if said and not _TITLE.match(line):
                bullets.append(f"- {_shorten(said)}")
    return bullets[-MAX_BULLETS:]


def _last_texts(messages: Iterable[Message]) -> list[str]:
    texts = [
        "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
        for message in messages
        if isinstance(message, AssistantMessage)
    ]
    return [text for text in texts if text.strip()][-LAST_MESSAGES:]


def _lines_outside_fences(text: str) -> Iterable[str]:
    fence = ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        match = _FENCE.match(line)
        if fence:
            if match and match["fence"].startswith(fence):
                fence = ""
        elif match:
            fence = match["fence"]
        else:
            yield line


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_BULLET_CHARS else f"{text[:_MAX_BULLET_CHARS]} […]"


def _fit_bullets(bullets: Sequence[str]) -> str:
    """The newest bullets within a section's size, with a line that says how many were left out."""
    kept = list(bullets)
    while len("\n".join(kept).encode("utf-8", "surrogatepass")) > MAX_SECTION_BYTES - 80:
        del kept[0]
    left_out = len(bullets) - len(kept)
    return "\n".join([*([f"<!-- cut: {left_out} older lines left out -->"] if left_out else []), *kept])


def cap_section(text: str) -> str:
    """The beginning of a text within a section's size, cut at a line end, with a line that states the cut."""
    data = text.strip().encode("utf-8", "replace")
    if len(data) <= MAX_SECTION_BYTES:
        return text.strip()
    shown = data[: MAX_SECTION_BYTES - 80].decode("utf-8", "ignore")
    shown = shown.rpartition("\n")[0].rstrip() or shown
    return f"{shown}\n<!-- cut: {len(shown.encode())} of {len(data)} bytes shown -->"


def _demote(text: str) -> str:
    """No line of a body may begin a section."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(f"#{line}" if line.startswith("## ") else line for line in lines)


def _render(of: HandoffOf, kind: str, body: str, *, nothing_left: bool) -> str:
    thread = f" thread {of.mark.thread_ts}" if of.mark.thread_ts else ""
    done = " nothing-left" if nothing_left else ""
    title = f"## {of.now.isoformat(timespec='seconds')}{kind} ({of.reason})"
    return f"{title}\n\n<!-- compaction {of.mark.id}{thread}{done} -->\n{body}\n"


def _put(workspace: Workspace, channel: ChannelId | None, section: str, *, of: HandoffOf) -> None:
    path = Workspace.handoff(channel)

    def change(old: str) -> str:
        preamble, sections = _split(old or _legacy_text(workspace, channel))
        marks = [_parse(path, each).mark for each in sections]
        at = next((at for at, each in enumerate(marks) if each is not None and each.id == of.mark.id), None)
        sections = [*sections, section] if at is None else [*sections[:at], section, *sections[at + 1 :]]
        parts = [preamble, *sections[-of.keep :]]
        return "\n".join(f"{part.rstrip()}\n" for part in parts if part.strip())

    edit_text(workspace, path, change, author=of.author)
    if channel is None:
        create_bytes(workspace.root, HANDOFF_TAKEN_OVER, b"")


def _legacy_text(workspace: Workspace, channel: ChannelId | None) -> str:
    """What stands where earlier versions kept the file, until it has been taken over once."""
    if channel is not None or read_bytes(workspace.root, HANDOFF_TAKEN_OVER) is not None:
        return ""
    file = read_text(workspace.root, LEGACY_HANDOFF)
    return "" if file is None else file.text


def _split(text: str) -> tuple[str, list[str]]:
    """(what stands before the first section, the sections)."""
    parts = re.split(r"^(?=## )", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return ("", parts) if parts[0].startswith("## ") else (parts[0], parts[1:])


def _parse(path: str, section: str) -> Handoff:
    title, _, rest = section.partition("\n")
    heading = _HEADING.match(title)
    first, _, body = rest.strip().partition("\n")
    found = _MARK.match(first)
    text = (body if found else rest).strip()
    steps = [match["step"] for line in text.split("\n") if (match := _NEXT_STEP.match(line))]
    return Handoff(
        path=path,
        stamp=heading["stamp"] if heading else "",
        reason=heading["reason"] if heading else "",
        text=text,
        mark=CompactionMark(found["id"], found["thread"] if is_ts(found["thread"]) else None) if found else None,
        next_step="" if found and found["done"] else steps[-1] if steps else None,
        consolidated=heading is not None and heading["consolidated"] is not None,
    )
