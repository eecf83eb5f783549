"""Several processes change one topic directory, and some are killed: nothing acknowledged is lost, nothing is there twice."""

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from persistence.topic_store import TopicStore
from persistence.topics.file import parse_topic_file
from persistence.topics.index import parse_topic_index
from persistence.workspace import Workspace, open_workspace
from tests.persistence.topic_samples import AMY, leftovers

WRITER = """
import json, random, sys
from pathlib import Path
from persistence.audit import Author
from persistence.errors import AmbiguousError, NotFoundError, PinnedError, StoreBusyError
from persistence.topic_store import TopicStore
from persistence.workspace import Workspace

root, shared, seed, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
store = TopicStore(Workspace(root), None, shared=Path(shared) if shared else None)
rng = random.Random(seed)
author = Author("cli")
def say(*event): print(json.dumps(event), flush=True)
for n in range(count):
    name = f"Topic {seed} {rng.randrange(4)}"
    kind = rng.choices(["append", "replace", "remove", "pin", "unpin"], [6, 3, 1, 1, 1])[0] if n % 6 else "append"
    token = f"<{seed}.{n}>"
    say("try", kind, name, token)
    while True:
        try:
            if kind in ("append", "replace"):
                store.write(name, token + " body" * 400 + " end" + token, "summary " + token, author=author, mode=kind)
            elif kind == "remove":
                store.remove(name, author=author)
            else:
                store.pin(name, pinned=kind == "pin", author=author)
        except StoreBusyError:
            continue
        except (NotFoundError, PinnedError, AmbiguousError):
            say("no", kind, name, token)
        else:
            say("ok", kind, name, token)
        break
"""

TOOL = r"""
import os, random, sys, time
from pathlib import Path
folder, seed, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for n in range(count):
    while True:
        try:
            fd = os.open(folder / ".lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            break
        except FileExistsError:
            time.sleep(random.uniform(0.01, 0.03))
    token = f"{os.getpid()}\t{int(time.time() * 1000)}\t{random.random()}"
    os.write(fd, token.encode()); os.close(fd)
    def publish(file, text):
        temp = folder / f"{file}.tmp-{os.getpid()}-x{n}"
        temp.write_text(text); temp.replace(folder / file)
    index = folder / "MEMORY.md"
    text = index.read_text() if index.exists() else "# Memory Index\n\n"
    file = f"tool-{seed}-{n}.md"
    publish(file, f'---\nname: "Tool {seed} {n}"\ndescription: "t"\n---\n\nby another tool\n')
    publish("MEMORY.md", text.rstrip("\n") + f"\n- [Tool {seed} {n}]({file}) 2026-08-01T00:00:00+00:00 -- t\n")
    assert (folder / ".lock").read_text() == token, "the lock was stolen"
    os.unlink(folder / ".lock")
    time.sleep(random.uniform(0, 0.02))
"""


def start(root: Path, seed: str, count: int, shared: Path | None = None) -> subprocess.Popen[str]:
    arguments = [str(root), str(shared or ""), seed, str(count)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True)


def events_of(process: subprocess.Popen[str]) -> list[list[str]]:
    assert process.stdout is not None
    return [json.loads(line) for line in process.stdout if line.endswith("\n")]


class Expected:
    """What the acknowledged changes of a writer leave: contents and pin of each listed topic; the last try may have happened."""

    def __init__(self) -> None:
        self.contents: dict[str, list[str]] = {}
        self.pinned: dict[str, bool] = {}
        self.unsure: set[str] = set()

    def follow(self, events: list[list[str]]) -> None:
        tried = None
        for state, kind, name, token in events:
            tried = name if state == "try" else None
            if state != "ok":
                continue
            if kind == "remove":
                self.contents.pop(name)
                self.pinned.pop(name, None)
            elif kind in ("pin", "unpin"):
                self.pinned[name] = kind == "pin"
            else:
                # what was appended to a removed topic's file before stays in it, but is not asked for
                self.contents[name] = [*self.contents.get(name, []), token] if kind == "append" else [token]
        self.unsure = {tried} if tried else set()


def check(folder: Path, store: TopicStore, expected: Expected) -> None:
    entries = {entry.name: entry for entry in store.list()}
    for name, tokens in expected.contents.items():
        if name in expected.unsure:
            continue
        text = store.read(name).text
        assert all(f"{token} body" in text and f"end{token}" in text for token in tokens), (name, tokens)
        assert entries[name].summary == f"summary {tokens[-1]}"
        assert entries[name].pinned == expected.pinned.get(name, False)
    known = expected.contents.keys() | expected.unsure
    assert not {name for name in entries if not name.startswith(("Next", "Tool"))} - known
    for path in folder.glob("topic-*.md"):
        whole = path.read_text()
        assert parse_topic_file(whole).name
        assert len(re.findall(r"^<.*> body", whole, re.MULTILINE)) == len(re.findall(r"end<.*>$", whole, re.MULTILINE))


def test_a_writer_killed_at_any_point_loses_no_acknowledged_topic(tmp_path: Path):
    workspace = open_workspace(tmp_path)
    rng = random.Random(7)
    acknowledged = 0
    for round_number in range(10):
        expected = Expected()
        with start(workspace.root, f"k{round_number}", 10_000) as process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            time.sleep(rng.uniform(0.01, 0.5))
            process.kill()
            events = [first, *events_of(process)]
        expected.follow(events)
        acknowledged += sum(event[0] == "ok" for event in events)
        store = TopicStore(workspace, None)
        store.write(f"Next {round_number}", "n", "n", author=AMY)
        assert leftovers(workspace.root / "memory") == []
        store.repair(author=AMY)
        assert not store.status().needs_repair
        assert not store.repair(author=AMY).changed
        for name in [entry.name for entry in store.list() if not entry.name.startswith(("Next", f"Topic k{round_number} "))]:
            store.pin(name, pinned=False, author=AMY)
            store.remove(name, author=AMY)
        check(workspace.root / "memory", store, expected)
    assert acknowledged > 30


def test_concurrent_writers_lose_nothing_and_write_nothing_twice(tmp_path: Path):
    workspace = open_workspace(tmp_path)
    expected = Expected()
    processes = [start(workspace.root, f"c{number}", 15) for number in range(3)]
    for process in processes:
        with process:
            expected.follow(events_of(process))
        assert process.returncode == 0
    store = TopicStore(workspace, None)
    check(workspace.root / "memory", store, expected)
    assert not store.repair(author=AMY).changed
    assert leftovers(workspace.root / "memory") == []


@pytest.mark.timeout(120)
def test_two_workspaces_and_another_tool_share_a_directory_and_nothing_is_lost(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    workspaces = [open_workspace(tmp_path / name) for name in ("one", "two")]
    writers = [start(workspaces[number % 2].root, f"s{number}", 10, shared) for number in range(3)]
    tools = [subprocess.Popen([sys.executable, "-c", TOOL, str(shared), str(number), "8"]) for number in range(1)]
    expected = Expected()
    for process in writers:
        with process:
            expected.follow(events_of(process))
        assert process.returncode == 0
    for tool in tools:
        assert tool.wait() == 0
    for workspace in workspaces:
        check(shared, TopicStore(workspace, None, shared=shared), expected)
    entries = parse_topic_index((shared / "MEMORY.md").read_text()).entries
    assert max(Counter(entry.file for entry in entries).values()) == 1
    assert {entry.file for entry in entries if entry.file.startswith("tool-")} == {f"tool-0-{n}.md" for n in range(8)}
    assert leftovers(shared) == []
    assert not (tmp_path / "one/memory").exists()


def test_a_killed_writer_of_a_shared_directory_does_not_block_the_next(tmp_path: Path):
    workspace = open_workspace(tmp_path)
    shared = tmp_path / ".agents/memory"
    store = TopicStore(Workspace(tmp_path), None, shared=shared)
    for round_number in range(4):
        with start(workspace.root, f"d{round_number}", 10_000, shared) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(200):
                if (shared / ".lock").exists():
                    break
                time.sleep(0.002)
            process.kill()
        started = time.monotonic()
        store.write(f"Next {round_number}", "n", "n", author=AMY)
        assert time.monotonic() - started < 3
    assert leftovers(shared) == []
    store.repair(author=AMY)
    assert not store.status().needs_repair
