"""The memory layers: `MEMORY.md` at the workspace's root and in a channel, read whole and appended to under their lock.

Topics are in `topic_store`; what of a layer fits into a prompt is decided by the caller.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from persistence.errors import BodyInvalidError, NotFoundError, SecretDetectedError
from persistence.files import read_text
from persistence.secrets import REDACTED
from persistence.versions import Author, edit_text
from persistence.workspace import ChannelId, Workspace

# A line that already is Markdown structure (list item, heading, quote, table, fence) is written as it is.
_STRUCTURE: Final = re.compile(r"[-*+][ \t]|[0-9]{1,9}[.)][ \t]|#{1,6}[ \t]|[>|]|```|~~~", re.ASCII)
_BULLET: Final = re.compile(r"[-*+][ \t]")
_BOT: Final = Author("bot", "noted")


@dataclass(frozen=True, slots=True)
class MemoryLayer:
    """One `MEMORY.md` as read; `path` is workspace-relative, `utf8` False when bad bytes were replaced."""

    scope: Literal["global", "channel"]
    path: str
    text: str
    etag: str
    utf8: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Where a note stands: lines are 1-based, inclusive and without its heading; `etag` is the file's."""

    path: str
    start_line: int
    end_line: int
    etag: str


def load_memory_layers(workspace: Workspace, channel: ChannelId | None) -> list[MemoryLayer]:
    """The global layer and then the channel's; absent and blank ones are left out. Raises UnsafeObjectError, TooLargeError."""
    owners = [None] if channel is None else [None, channel]
    return [layer for owner in owners if (layer := load_memory_layer(workspace, owner)) is not None]


def load_memory_layer(workspace: Workspace, channel: ChannelId | None) -> MemoryLayer | None:
    """The global layer (`channel` None) or a channel's own; None when it is absent or blank. Raises as above."""
    path = Workspace.memory(channel)
    file = read_text(workspace.root, path)
    if file is None or not file.text.strip():
        return None
    scope: Literal["global", "channel"] = "global" if channel is None else "channel"
    return MemoryLayer(scope, path, file.text.replace("\r\n", "\n"), file.etag, file.utf8)


def append_note(
    workspace: Workspace,
    channel: ChannelId | None,
    text: str,
    *,
    heading: str | None = None,
    author: Author = _BOT,
) -> Note:
    """Append `text` to a memory layer as a line of its own, under the file's lock; an absent file is created.

    One plain line becomes a `- ` bullet; a bullet that is there already is not written again, its place is returned.
    `heading` becomes a `## ` line before the text. Raises BodyInvalidError for a blank text, SecretDetectedError, NotUtf8Error,
    UnsafeObjectError, TooLargeError and StoreBusyError; the file is unchanged then.
    """
    path = Workspace.memory(channel)
    if REDACTED in text:  # it came from a logged message
        raise SecretDetectedError("the note held a secret, which was taken out of the message: write it down without the secret")
    body = _note_body(text)
    title = " ".join((heading or "").split())
    start_line = 0

    def change(old: str) -> str:
        nonlocal start_line
        new, start_line = _place(old, body, title)
        return new

    file = edit_text(workspace, path, change, author=author)
    return Note(path, start_line, start_line + body.count("\n"), file.etag)


def remove_note(workspace: Workspace, channel: ChannelId | None, text: str, *, start_line: int, author: Author = _BOT) -> Note:
    """Remove the lines `text` from a memory layer: where they stood when they were read, else the only place where they stand.

    The file's earlier bytes are kept as a version. Raises NotFoundError when the lines are not there, or in several places.
    """
    path = Workspace.memory(channel)
    wanted = text.split("\n")
    found = start_line

    def change(old: str) -> str:
        nonlocal found
        lines = old.split("\n")
        places = [at for at in range(len(lines) - len(wanted) + 1) if lines[at : at + len(wanted)] == wanted]
        if start_line - 1 not in places and len(places) != 1:
            raise NotFoundError(f"{path!r} does not hold these lines {'just once' if places else 'any more'}: read it again")
        at = start_line - 1 if start_line - 1 in places else places[0]
        found = at + 1
        return "\n".join(lines[:at] + lines[at + len(wanted) :])

    file = edit_text(workspace, path, change, author=author)
    return Note(path, found, found + len(wanted) - 1, file.etag)


def _note_body(text: str) -> str:
    clean = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    lines = clean.rstrip().split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    if not lines:
        raise BodyInvalidError("the note is blank: give it some text")
    if len(lines) > 1:
        return "\n".join(lines)
    line = lines[0].strip()
    return line if _STRUCTURE.match(line) else f"- {line}"


def _place(old: str, body: str, title: str) -> tuple[str, int]:
    """The new text of the file and the line on which `body` starts."""
    if "\n" not in body and _BULLET.match(body):
        for number, line in enumerate(old.split("\n"), start=1):
            if line.rstrip() == body:
                return old, number
    base = old if not old or old.endswith("\n") else f"{old}\n"
    last = base.removesuffix("\n").rpartition("\n")[2]
    goes_on = bool(_BULLET.match(last) and _BULLET.match(body) and not title)
    gap = "\n" if last.strip() and not goes_on else ""
    before = f"{base}{gap}## {title}\n\n" if title else f"{base}{gap}"
    return f"{before}{body}\n", before.count("\n") + 1
