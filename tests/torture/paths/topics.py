"""Topics: written, pinned, removed, written again. After a repair, index and files agree on what was acknowledged."""

from dataclasses import dataclass, replace

from persistence.audit import Author
from persistence.errors import NotFoundError, PinnedError
from persistence.topic_store import TopicStore
from persistence.topics.file import parse_topic_file
from persistence.topics.lock import LockWaits
from tests.torture.paths.texts import text_of, whole_texts

_AUTHOR = Author("bot", "torture")
_PATIENT = LockWaits(own_s=5.0)


@dataclass(frozen=True, slots=True)
class _State:
    """What can be seen of a topic: its texts, and its line in the index if it has one."""

    texts: tuple[str, ...] = ()
    listed: bool = False
    pinned: bool = False
    summary: str = ""


class TopicsPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (1, 1, 1), (3, 3, 1), (4, 4, 1), (6, 6, 1), (7, 7, 1), (8, 16, 1))

    def __init__(self, workspace, writer):
        self._store = TopicStore(workspace, None, waits=_PATIENT)
        self._writer = writer

    def plan(self, number):
        kind = ("append", "append", "append", "replace", "pin", "remove", "unpin", "remove")[number % 8]
        return {"kind": kind, "name": f"Topic {number // 8 % 2} of {self._writer}", "text": text_of(self._writer, number)}

    def do(self, intent):
        name = intent["name"]
        try:
            match intent["kind"]:
                case "append" | "replace" as mode:
                    self._store.write(name, intent["text"], intent["text"][:40], mode=mode, author=_AUTHOR)
                case "remove":
                    self._store.remove(name, author=_AUTHOR)
                case kind:
                    self._store.pin(name, pinned=kind == "pin", author=_AUTHOR)
        except (NotFoundError, PinnedError) as err:
            return {"refused": err.code}
        return {}

    @staticmethod
    def check(workspace, stories):
        store = TopicStore(workspace, None)
        store.repair(author=_AUTHOR)
        status = store.status()
        again = store.repair(author=_AUTHOR)
        problems = [f"after a repair: {status}"] if status.needs_repair or status.unmarked or status.leftovers else []
        problems += [f"a second repair found something: {again}"] if again.changed else []
        entries = {entry.name: entry for entry in store.list()}
        for writer, deeds in stories.items():
            for name in {deed.intent["name"] for deed in deeds}:
                allowed = _allowed(writer, [deed for deed in deeds if deed.intent["name"] == name])
                seen = _seen(workspace, name, entries.get(name))
                if seen not in allowed:
                    problems.append(f"{name}: {seen} is none of {sorted(map(str, allowed))}")
        return problems


def _allowed(writer, deeds):
    """The states that the acknowledged deeds, and the ones that were cut short, allow."""
    states = {_State()}
    for deed in deeds:
        if deed.is_done and "refused" in deed.result:
            continue
        after = {_after(state, writer, deed) for state in states}
        states = after if deed.is_done else states | after | {_removed_still(before, writer, deed) for before in states}
    return states


def _removed_still(state, writer, deed):
    """A write to a removed topic may have been cut short between its file and its line: what was removed does not come back."""
    return state if state.listed else _State(texts=_after(state, writer, deed).texts)


def _after(state, writer, deed):
    kind = deed.intent["kind"]
    if kind in ("append", "replace"):
        texts = (*(state.texts if kind == "append" else ()), f"{writer}:{deed.number}")
        return replace(state, texts=texts, listed=True, summary=deed.intent["text"][:40].strip())
    if not state.listed or (kind == "remove" and state.pinned):
        return state
    if kind == "remove":
        return _State(texts=state.texts)
    return replace(state, pinned=kind == "pin")


def _seen(workspace, name, entry):
    path = workspace.root / "memory" / f"{name.lower().replace(' ', '-')}.md"
    body = parse_topic_file(path.read_text("utf-8")).body if path.exists() else ""
    if entry is None:
        return _State(tuple(whole_texts(body)))
    return _State(tuple(whole_texts(body)), listed=True, pinned=entry.pinned, summary=entry.summary)
