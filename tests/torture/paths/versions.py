"""A file of memory that is edited in place: each acknowledged edit leaves a version of the bytes before it, and an audit line."""

from collections import Counter

from persistence.audit import read_audit
from persistence.files import etag_of
from persistence.versions import MAX_VERSIONS, Author, edit_text, list_versions, read_version
from tests.torture.paths.texts import count_problems, text_of, whole_texts

NAME = "SYSTEM.md"


class VersionsPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (2, 2, 1))

    def __init__(self, workspace, writer):
        self._workspace = workspace
        self._writer = writer

    def plan(self, number):
        return {"text": text_of(self._writer, number, most_words=30)}

    def do(self, intent):
        before = ""

        def change(old):
            nonlocal before
            before = old
            return f"{old}- {intent['text']}\n"

        file = edit_text(self._workspace, NAME, change, author=Author(f"user:{self._writer}", "torture"))
        return {"before": etag_of(before.encode()) if before else None, "after": file.etag}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / NAME
        text = path.read_text("utf-8") if path.exists() else ""
        problems = count_problems(Counter(whole_texts(text)), stories)
        results = [deed.result for deeds in stories.values() for deed in deeds if deed.is_done]
        all_kept = sum(map(len, stories.values())) < MAX_VERSIONS  # later the oldest are rightly gone
        return problems + _check_versions(workspace, results if all_kept else []) + _check_audit(workspace, results)


def _check_versions(workspace, results):
    versions = list_versions(workspace, NAME)
    etags = {version.etag for version in versions}
    problems = [f"version {v.id} is torn" for v in versions if etag_of(read_version(workspace, NAME, v.id)[1]) != v.etag]
    lost = {result["before"] for result in results} - etags - {None}
    return problems + [f"the version {etag[:12]} before an acknowledged edit is lost" for etag in lost]


def _check_audit(workspace, results):
    lines = read_audit(workspace, name=NAME, limit=1_000_000).items
    lost = {result["after"] for result in results} - {line.new_etag for line in lines}
    return [f"no audit line of the acknowledged edit to {etag[:12]}" for etag in lost]
