"""Turns a context file of version 1 (no ids) or 2 (`hookMessage`) into version 3. Bytes to bytes: `context` replaces the file."""

from typing import Any

from persistence.contexts.tree import EntryTree
from persistence.records import CONTEXT_VERSION, decode_line, encode_line


def migrate(data: bytes, header: dict[str, Any]) -> bytes:
    """The file as version 3: ids and parents given, roles renamed; unknown fields, bad lines and a torn tail stay as they are.

    `header` (a session line) gives what the file's own header lacks. A line that needs no change keeps its bytes.
    """
    tree = EntryTree()
    lines: list[bytes] = []
    offset = 0
    for raw in data.split(b"\n"):
        lines.append(_migrate_line(tree, offset, raw, header))
        offset += len(raw) + 1
    if not tree.has_header:
        lines.insert(0, _encode(header))
    return b"\n".join(lines)


def _migrate_line(tree: EntryTree, offset: int, raw: bytes, header: dict[str, Any]) -> bytes:
    count, had_header = len(tree.entries), tree.has_header
    if raw.strip():
        tree.add(offset, raw)
    value = decode_line(raw)
    if value is None:
        return raw
    if tree.has_header and not had_header:
        return _encode(header | value | {"version": CONTEXT_VERSION})
    if len(tree.entries) == count:
        return raw
    new = _migrate_entry(tree, value, header["timestamp"])
    return raw if new == value else _encode(new)


def _migrate_entry(tree: EntryTree, value: dict[str, Any], timestamp: str) -> dict[str, Any]:
    at = len(tree.entries) - 1
    entry = tree.entries[at]
    new: dict[str, Any] = {"type": entry.type, "id": entry.id, "parentId": tree.parent_id(at)}
    new["timestamp"] = entry.timestamp or timestamp
    new |= {name: field for name, field in value.items() if name not in new or (name == "parentId" and "id" in value)}
    if "firstKeptEntryIndex" in new and "firstKeptEntryId" not in new:
        del new["firstKeptEntryIndex"]
        new["firstKeptEntryId"] = tree.first_kept_id(at)
    message = new.get("message")
    if isinstance(message, dict) and message.get("role") == "hookMessage":
        new["message"] = message | {"role": "custom"}
    return new


def _encode(value: dict[str, Any]) -> bytes:
    return encode_line(value).rstrip(b"\n")
