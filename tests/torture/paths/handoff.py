"""HANDOFF.md: a section for each compaction, of which the newest five stay."""

import re
from datetime import UTC, datetime

from persistence.handoff import CompactionMark, HandoffOf, write_handoff
from persistence.records import AssistantMessage, TextBlock
from persistence.versions import Author
from persistence.workspace import parse_channel_id
from tests.torture.paths.texts import text_of, whole_texts

CHANNEL = parse_channel_id("handoff")
_KEEP = 5
_SECTION = re.compile(r"^## ", re.MULTILINE)


class HandoffPath:
    WRITERS = 1
    CYCLES = ((0, 0, 1), (5, 5, 1))

    def __init__(self, workspace, writer):
        self._workspace = workspace
        self._writer = writer

    def plan(self, number):
        return {"text": text_of(self._writer, number, most_words=60)}

    def do(self, intent):
        number = int(intent["text"].split(":")[1].split("]")[0])
        of = HandoffOf("manual", CompactionMark(f"{number:08x}"), _KEEP, datetime.now(UTC), Author("bot"))
        said = [AssistantMessage(content=[TextBlock(text=intent["text"])], timestamp=1)]
        return {"status": write_handoff(self._workspace, CHANNEL, said, of=of)}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / workspace.handoff(CHANNEL)
        text = path.read_text("utf-8") if path.exists() else ""
        found = whole_texts(text)
        problems = [] if len(_SECTION.findall(text)) <= _KEEP else ["more sections than are kept"]
        problems += ["a section is there twice"] if len(found) > len(set(found)) else []
        for writer, deeds in stories.items():
            done = [place for place, deed in enumerate(deeds) if deed.is_done]
            later = [f"{writer}:{deed.number}" for deed in deeds[done[-1] :]] if done else []
            # A section that was cut short may stand after the last acknowledged one; five of them may have pushed it out.
            if done and later[0] not in found and len(set(found) & set(later)) < _KEEP:
                problems.append(f"the section {later[0]} was acknowledged and is lost")
        return problems
