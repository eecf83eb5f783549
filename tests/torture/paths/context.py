"""The context of a lane: filled from the log by a sync, appended to by the bot, put away now and then."""

import json
from collections import Counter

from persistence.context import Context
from persistence.log import ChannelLog, NewMessage
from persistence.records import AssistantMessage, TextBlock
from persistence.sync import sync_log_to_context
from persistence.workspace import Lane, parse_channel_id
from tests.torture.paths.texts import text_of, whole_texts

CHANNEL = parse_channel_id("lane")
LANE = Lane(CHANNEL)
_FAR = "9999999999"


class ContextPath:
    WRITERS = 1  # work in a lane is serial
    CYCLES = ((0, 0, 1), (4, 35, 5))

    def __init__(self, workspace, writer):
        self._workspace = workspace
        self._log = ChannelLog(workspace, CHANNEL)
        self._context = Context(workspace, LANE)
        self._writer = writer

    def plan(self, number):
        kind = "archive" if number % 40 == 39 else ("post", "post", "sync", "say")[number % 4]
        return {"kind": kind, "text": text_of(self._writer, number, most_words=60)}

    def do(self, intent):
        match intent["kind"]:
            case "post":
                self._log.append(NewMessage(intent["text"], "amy"))
            case "sync":
                sync_log_to_context(self._log, self._context, self._workspace, current_ts=_FAR)
            case "say":
                self._context.append([AssistantMessage(content=[TextBlock(text=intent["text"])], timestamp=1)])
            case _:
                self._context.archive()
        return {}

    @staticmethod
    def check(workspace, stories):
        name = workspace.context(LANE)
        now, problems = _tokens(workspace.root / name)
        kept = Counter()
        for path in sorted((workspace.root / workspace.version(name, "")).glob("*")):
            if not path.name.endswith(".json"):
                kept |= _tokens(path)[0]
        problems += [f"{each} is in the context {times} times" for each, times in now.items() if times > 1]
        for writer, deeds in stories.items():
            wanted = {f"{writer}:{number}" for number in _must_hold(deeds)}
            problems += [f"{each} was acknowledged and is lost" for each in sorted(wanted - now.keys() - kept.keys())]
        return problems


def _must_hold(deeds):
    """The numbers of what the bot said, and of what a sync brought before a putting away could let it pass."""
    waiting, held = [], []
    for deed in deeds:
        match deed.intent["kind"]:
            case "post" if deed.is_done:
                waiting.append(deed.number)
            case "sync" if deed.is_done:
                held += waiting
                waiting = []
            case "say" if deed.is_done:
                held.append(deed.number)
            case "archive":
                waiting = []
    return held


def _tokens(path):
    """How often each text is in a context file; and what is wrong with its entries."""
    found, problems, ids = Counter(), [], set()
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            entry = json.loads(line or b"null")
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("type") != "session":
            if entry["id"] in ids or (entry["parentId"] is not None and entry["parentId"] not in ids):
                problems.append(f"entry {entry['id']} is a repetition, or has no parent")
            ids.add(entry["id"])
            found.update(whole_texts(json.dumps(entry.get("message", {}))))
    return found, problems
