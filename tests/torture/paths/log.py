"""Messages of a channel: appended, edited, deleted."""

import json
from collections import Counter

from persistence.log import ChannelLog, NewMessage
from persistence.workspace import parse_channel_id
from tests.torture.paths.texts import text_of

CHANNEL = parse_channel_id("ops")


class LogPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (2, 5, 5))

    def __init__(self, workspace, writer):
        self._log = ChannelLog(workspace, CHANNEL)
        self._writer = writer
        self._mine = []  # the ts of messages that can be edited or deleted

    def plan(self, number):
        kind = {3: "edit", 4: "delete"}.get(number % 5, "append") if self._mine else "append"
        if kind == "append":
            return {"kind": kind, "id": f"{self._writer}:{number}", "text": text_of(self._writer, number)}
        if kind == "edit":
            return {"kind": kind, "ts": self._mine[-1], "text": text_of(self._writer, number)}
        return {"kind": kind, "ts": self._mine.pop()}

    def do(self, intent):
        match intent["kind"]:
            case "append":
                record = self._log.append(NewMessage(intent["text"], self._writer, id=intent["id"])).record
                self._mine.append(record.ts)
                return {"ts": record.ts}
            case "edit":
                return {"ts": self._log.edit(intent["ts"], intent["text"]).ts}
            case _:
                return {"ts": self._log.delete(intent["ts"]).ts}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / workspace.log(CHANNEL)
        lines = [line for line in map(_parse, path.read_bytes().split(b"\n")) if line] if path.exists() else []
        firsts = [line for line in lines if "edited" not in line and "deleted" not in line]
        problems = [f"ts {ts} was given {n} times" for ts, n in Counter(line["ts"] for line in firsts).items() if n > 1]
        by_id = Counter(line.get("id") for line in firsts)
        log = ChannelLog(workspace, CHANNEL)
        for deeds in stories.values():
            problems += _check_story(log, deeds, by_id)
        return problems


def _parse(line):
    try:
        return json.loads(line) if line.strip() else None
    except ValueError:
        return None


def _check_story(log, deeds, by_id):
    """Each message as the last acknowledged deed left it, or as one that was cut short after it would have."""
    problems = []
    states = {}
    for deed in deeds:
        intent = deed.intent
        if intent["kind"] == "append":
            if by_id[intent["id"]] > 1 or (deed.is_done and by_id[intent["id"]] == 0):
                problems.append(f"message {intent['id']} is there {by_id[intent['id']]} times")
            if deed.is_done:
                states[deed.result["ts"]] = {intent["text"]}
            continue
        after = intent["text"] if intent["kind"] == "edit" else None
        states[intent["ts"]] = {after} if deed.is_done else states[intent["ts"]] | {after}
    for ts, allowed in states.items():
        record = log.get(ts)
        now = None if record is None or record.deleted else record.text
        if now not in allowed or record is None:
            problems.append(f"message {ts} reads {str(now)[:60]!r}, allowed {[str(text)[:60] for text in allowed]}")
    return problems
