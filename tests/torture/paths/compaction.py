"""Compactions of a context: the flush goes into the ledger, then the summary takes the span's place; resumed after a kill."""

import json
from collections import Counter

from persistence.compaction import compact, plan_compaction, resume_span
from persistence.context import Context
from persistence.ledger import FlushLedger
from persistence.records import AssistantMessage, TextBlock, UserMessage
from persistence.workspace import Lane, parse_channel_id
from tests.torture.paths.texts import text_of

LANE = Lane(parse_channel_id("compacted"))
_KEEP_TOKENS = 300


class CompactionPath:
    WRITERS = 1
    CYCLES = ((0, 0, 1), (3, 3, 1))

    def __init__(self, workspace, writer):
        self._context = Context(workspace, LANE)
        self._ledger = FlushLedger(workspace, LANE)
        self._writer = writer

    def plan(self, number):
        return {"text": text_of(self._writer, number, most_words=200)}

    def do(self, intent):
        block = TextBlock(text=intent["text"])
        self._context.append([UserMessage(content=[block], timestamp=1), AssistantMessage(content=[block], timestamp=1)])
        tree, lookup = self._context.read_tree(), lambda _: None
        span = resume_span(tree, lookup, self._ledger.last())
        if span is None:
            span = plan_compaction(tree, lookup, keep_tokens=_KEEP_TOKENS)
        if span is None:
            return {}
        row = self._ledger.record(span.open_row("threshold"))
        self._ledger.record(row.model_copy(update={"state": "flushed", "summary": "flushed"}))
        return {"entry": compact(self._context, self._ledger, span, summary=f"Summary {intent['text']}"), "flush": span.id}

    @staticmethod
    def check(workspace, stories):
        entries = [each for each in _objects(workspace.root / workspace.context(LANE)) if each.get("type") == "compaction"]
        flushes = Counter(entry["details"]["flush"] for entry in entries)
        rows = {row["id"]: row["state"] for row in _objects(workspace.root / workspace.flush_ledger(LANE))}
        problems = [f"the span {flush} was compacted {times} times" for flush, times in flushes.items() if times > 1]
        problems += [f"the span {flush} was compacted without its flush" for flush in flushes if rows.get(flush) != "flushed"]
        ids = {entry["id"] for entry in entries}
        for deeds in stories.values():
            done = [deed.result for deed in deeds if deed.is_done and deed.result.get("entry")]
            problems += [
                f"compaction {result['entry']} was acknowledged and is lost" for result in done if result["entry"] not in ids
            ]
        return problems


def _objects(path):
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            found = json.loads(line or b"null")
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
