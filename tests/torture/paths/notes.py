"""Notes in a channel's MEMORY.md."""

from collections import Counter

from persistence.memory import append_note
from persistence.workspace import parse_channel_id
from tests.torture.paths.texts import count_problems, text_of, whole_texts

CHANNEL = parse_channel_id("notes")


class NotesPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (1, 1, 1))

    def __init__(self, workspace, writer):
        self._workspace = workspace
        self._writer = writer

    def plan(self, number):
        return {"text": text_of(self._writer, number, most_words=40)}

    def do(self, intent):
        return {"line": append_note(self._workspace, CHANNEL, intent["text"]).start_line}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / workspace.memory(CHANNEL)
        text = path.read_text("utf-8") if path.exists() else ""
        return count_problems(Counter(whole_texts(text)), stories)
