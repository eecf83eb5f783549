"""Scanning a workspace and reading its documents: what counts, what is never followed, what is kept."""

import os
import socket
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semantic.errors import DocumentChangedError, DocumentUnreadableError, IndexFaultError
from semantic.scanner import classify, load_document, may_hold_documents, read_document, scan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, ".recalld/VERSION", "1\n")
    return tmp_path


def write(root: Path, name: str, text: str = "text\n") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("MEMORY.md", ("memory", None)),
        ("SYSTEM.md", ("memory", None)),
        ("memory/MEMORY.md", ("memory", None)),
        ("memory/deep/er/topic.md", ("memory", None)),
        ("memory/LOUD.MD", ("memory", None)),
        ("memory/你好.md", ("memory", None)),
        ("memory/with space.md", ("memory", None)),
        ("memory/a..b.md", ("memory", None)),
        ("skills/deploy/SKILL.md", ("skills", None)),
        ("skills/a/b/reference.md", ("skills", None)),
        ("C1/MEMORY.md", ("channels", "C1")),
        ("C1/memory/topic.md", ("channels", "C1")),
        ("linear:ab-12/memory/x/topic.md", ("channels", "linear:ab-12")),
        ("C1/skills/x/SKILL.md", ("skills", "C1")),
        ("README.md", None),
        ("memory.md", None),
        ("HANDOFF.md", None),
        ("C1/HANDOFF.md", None),
        ("C1/SYSTEM.md", None),
        ("C1/notes.md", None),
        ("C1/scratch/a.md", None),
        ("C1/attachments/a.md", None),
        ("attachments/MEMORY.md", None),
        ("Events/MEMORY.md", None),
        ("scratch/memory/a.md", None),
        ("Memory/a.md", None),
        ("memory/notes.txt", None),
        ("memory/.md", None),
        ("memory/.hidden.md", None),
        ("memory/.git/a.md", None),
        (".recalld/memory/a.md", None),
        ("C1/.team/memory/a.md", None),
        ("-bad/MEMORY.md", None),
        ("a..b/MEMORY.md", None),
        ("ünicode/MEMORY.md", None),
        ("x" * 129 + "/MEMORY.md", None),
        ("", None),
        ("/memory/a.md", None),
        ("memory//a.md", None),
        ("C1\n/MEMORY.md", None),
    ],
)
def test_which_files_are_documents(path, expected):
    assert classify(path) == expected


@given(st.text(max_size=40), st.text(alphabet="./CMmemory", max_size=30))
def test_any_path_can_be_asked_about_and_hidden_parts_never_count(one: str, other: str):
    for path in (one, other, f"memory/{one}.md", f"{other}/MEMORY.md"):
        found = classify(path)
        if any(part.startswith(".") for part in path.split("/")):
            assert found is None


def test_a_scan_finds_the_documents_with_their_stat(root):
    path = write(root, "memory/topic.md", "hello\n")
    for name in (
        "MEMORY.md",
        "SYSTEM.md",
        "C1/MEMORY.md",
        "C1/skills/x/SKILL.md",
        "C1/log.jsonl",
        "C1/scratch/a.md",
        "README.md",
    ):
        write(root, name)
    found = scan(root)
    assert sorted(found.documents) == ["C1/MEMORY.md", "C1/skills/x/SKILL.md", "MEMORY.md", "SYSTEM.md", "memory/topic.md"]
    seen, real = found.documents["memory/topic.md"], path.stat()
    assert (seen.size_bytes, seen.mtime_ns, seen.ctime_ns, seen.inode) == (6, real.st_mtime_ns, real.st_ctime_ns, real.st_ino)
    assert (found.unreadable, found.problems) == ((), ())
    assert {"", "memory", "C1", "C1/skills", "C1/skills/x"} <= found.folders
    assert not {"C1/scratch", ".recalld"} & found.folders


def test_links_are_not_followed_at_any_level_and_are_reported(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write(outside, "secret.md")
    write(outside, "memory/secret.md")
    write(root, "memory/real.md")
    (root / "memory" / "link.md").symlink_to(outside / "secret.md")
    (root / "memory" / "folder").symlink_to(outside)
    (root / "skills").symlink_to(outside)
    (root / "C9").symlink_to(outside)
    (root / "settings.json").symlink_to(outside / "secret.md")
    found = scan(root)
    assert list(found.documents) == ["memory/real.md"]
    assert sorted(problem.path for problem in found.problems) == ["C9", "memory/folder", "memory/link.md", "skills"]
    for path in ("memory/link.md", "memory/folder/secret.md", "skills/secret.md", "C9/memory/secret.md"):
        with pytest.raises(DocumentUnreadableError):
            read_document(root, path)


def test_the_root_itself_may_be_a_link(root, tmp_path_factory):
    write(root, "MEMORY.md", "hello")
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(root)
    assert list(scan(link).documents) == ["MEMORY.md"]
    assert read_document(link, "MEMORY.md") == b"hello"


def test_pipes_and_sockets_are_reported_and_never_waited_for(root):
    (root / "memory").mkdir()
    os.mkfifo(root / "memory" / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "memory" / "socket.md"))
        found = scan(root)
        assert found.documents == {}
        assert sorted(problem.path for problem in found.problems) == ["memory/pipe.md", "memory/socket.md"]
        for name in ("memory/pipe.md", "memory/socket.md"):
            with pytest.raises(DocumentUnreadableError):
                read_document(root, name)


def test_a_folder_with_a_document_s_name_is_a_folder(root):
    write(root, "memory/odd.md/inside.md")
    found = scan(root)
    assert list(found.documents) == ["memory/odd.md/inside.md"]
    with pytest.raises(DocumentUnreadableError):
        read_document(root, "memory/odd.md")


def test_without_a_workspace_nothing_is_said_to_be_gone(tmp_path):
    write(tmp_path, "memory/a.md")
    for missing in (tmp_path, tmp_path / "absent", tmp_path / "memory" / "a.md"):
        with pytest.raises(IndexFaultError):
            scan(missing)


AS_SOMEBODY = """
import os, sys, pathlib
from semantic.scanner import scan, read_document
from semantic.errors import DocumentUnreadableError
os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
found = scan(pathlib.Path())
try:
    read_document(pathlib.Path(), "memory/closed.md")
except DocumentUnreadableError as err:
    print(sorted(found.documents), found.unreadable, [problem.path for problem in found.problems], err, sep="|")
"""


def test_a_folder_that_can_t_be_listed_keeps_its_documents_and_is_reported(root):
    for name in ("memory/open.md", "memory/closed.md", "memory/closed/a.md", "C1/memory/a.md"):
        write(root, name)
    for name in ("memory/closed", "memory/closed.md", "C1/memory"):
        (root / name).chmod(0)
    root.chmod(0o755)
    try:
        done = subprocess.run([sys.executable, "-c", AS_SOMEBODY, str(root)], capture_output=True, text=True, check=True)
    finally:
        for name in ("memory/closed", "C1/memory"):
            (root / name).chmod(0o755)
    documents, unreadable, problems, error = done.stdout.strip().split("|")
    assert documents == "['memory/closed.md', 'memory/open.md']"
    assert unreadable == "('C1/memory', 'memory/closed')"
    assert problems == "['C1/memory', 'memory/closed']"
    assert "memory/closed.md" in error


def test_names_in_another_unicode_form_are_one_document_and_can_be_read(root):
    name = "memory/café/naïve.md"
    write(root, unicodedata.normalize("NFD", name), "hello")
    assert list(scan(root).documents) == [unicodedata.normalize("NFC", name)]
    assert read_document(root, unicodedata.normalize("NFC", name)) == b"hello"


def test_two_files_with_one_name_in_two_unicode_forms_are_reported(root):
    write(root, unicodedata.normalize("NFD", "memory/café.md"), "decomposed")
    write(root, "memory/café.md", "composed")
    found = scan(root)
    assert list(found.documents) == ["memory/café.md"]
    assert [problem.path for problem in found.problems] == ["memory/café.md"]
    assert read_document(root, "memory/café.md") == b"composed"


def test_a_name_that_is_not_utf8_is_reported_and_hides_no_other(root):
    write(root, "memory/good.md")
    with open(os.fsencode(root / "memory") + b"/bad\xff.md", "w") as file:  # noqa: PTH123 - a path can't hold such a name
        file.write("text")
    found = scan(root)
    assert list(found.documents) == ["memory/good.md"]
    assert [problem.path for problem in found.problems] == ["memory/bad\ufffd.md"]


def test_a_very_deep_folder_is_kept_out_and_reported(root):
    deep = "memory/" + "/".join("d" * 40)
    write(root, f"{deep}/a.md")
    write(root, "memory/a.md")
    found = scan(root)
    assert list(found.documents) == ["memory/a.md"]
    assert len(found.unreadable) == len(found.problems) == 1


def test_a_document_over_the_limit_is_refused_before_it_is_read(root):
    write(root, "memory/big.md", "x" * 101)
    with pytest.raises(DocumentUnreadableError, match="over 100 bytes"):
        read_document(root, "memory/big.md", limit_bytes=100)
    assert len(read_document(root, "memory/big.md", limit_bytes=101)) == 101


def test_a_document_that_is_gone_is_no_failure_of_its_own(root):
    with pytest.raises(DocumentChangedError):
        read_document(root, "memory/gone.md")


APPEND = """
import sys, time
end = time.monotonic() + 5
with open(sys.argv[1], "ab", buffering=0) as file:
    print("go", flush=True)
    while time.monotonic() < end:
        file.write(b"x" * 64)
"""


def test_a_document_that_is_written_while_it_is_read_is_not_taken_half(root):
    path = write(root, "memory/busy.md", "x" * 2_000_000)
    writer = subprocess.Popen([sys.executable, "-c", APPEND, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    try:
        outcomes = set()
        for _ in range(200):
            try:
                read = load_document(root, "memory/busy.md", limit_bytes=1 << 30)
                outcomes.add(len(read.data) == read.size_bytes)
            except DocumentChangedError:
                outcomes.add("changed")
            if "changed" in outcomes:
                break
    finally:
        writer.kill()
        writer.communicate()
    assert "changed" in outcomes
    assert False not in outcomes


def test_ten_thousand_files_are_looked_at_in_well_under_a_second(root):
    for channel in range(100):
        folder = root / f"C{channel}" / "memory"
        folder.mkdir(parents=True)
        for number in range(100):
            (folder / f"topic-{number}.md").touch()
    scan(root)
    started = time.process_time()
    assert len(scan(root).documents) == 10_000
    assert time.process_time() - started < 0.8


def test_which_folders_can_hold_documents():
    assert all(map(may_hold_documents, ["memory", "memory/x", "skills/a/b", "C1", "C1/memory", "C1/skills/x"]))
    assert not any(map(may_hold_documents, ["C1/scratch", "attachments", ".recalld", "memory/.git", "C1/attachments/memory"]))


def test_a_removed_topic_is_no_document_until_it_is_written_again(root):
    write(root, "memory/kept.md")
    write(root, "memory/gone.md")
    write(root, "general/memory/gone.md")
    (root / "memory" / ".ocl-removed").write_text("gone.md\r\nother.md\n", "utf-8")
    assert set(scan(root).documents) == {"memory/kept.md", "general/memory/gone.md"}
    (root / "memory" / ".ocl-removed").write_text("", "utf-8")
    assert "memory/gone.md" in scan(root).documents


def test_a_list_of_removed_topics_that_is_no_file_is_ignored(root):
    write(root, "memory/kept.md")
    os.mkfifo(root / "memory" / ".ocl-removed")
    assert set(scan(root).documents) == {"memory/kept.md"}


def test_shared_topics_are_documents_only_where_that_is_turned_on(root):
    write(root, ".agents/memory/docker.md")
    write(root, ".agents/memory/.hidden.md")
    write(root, ".agents/other/secret.md")
    (root / ".agents" / "memory" / ".ocl-removed").write_text("gone.md\n")
    write(root, ".agents/memory/gone.md")
    assert scan(root).documents == {}
    found = scan(root, shared=True).documents
    assert {path: (stat.collection, stat.channel) for path, stat in found.items()} == {
        ".agents/memory/docker.md": ("memory", None)
    }
    assert classify(".agents/memory/docker.md") == ("memory", None)
    assert classify(".agents/other/secret.md") is None


def test_without_shared_topics_there_is_nothing_to_look_at(root, tmp_path_factory):
    assert scan(root, shared=True).problems == ()
    (root / ".agents").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert scan(root, shared=True).documents == {}
