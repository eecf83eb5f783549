"""Forgetting: afterwards the words are nowhere on the volume, the receipt says where they were, and nothing else is gone."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.audit import read_audit
from persistence.context import Context
from persistence.doctor import examine
from persistence.errors import BodyInvalidError, ForbiddenError, NotFoundError, PreconditionFailedError
from persistence.forget import ChannelTarget, DocumentTarget, LinesTarget, MessageTarget, Target, forget, plan_forget
from persistence.forgetting.words import Words, words_of
from persistence.log import ChannelLog, NewMessage
from persistence.memory import append_note
from persistence.records import AssistantMessage, Attachment, TextBlock, ToolCallBlock, ToolResultMessage, UserMessage
from persistence.topic_store import TopicStore
from persistence.versions import Author, edit_text, list_versions
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace
from persistence.wrapper import wrap_message

AMY = Author("user:amy", "asked to")
OPS, ART = ChannelId("ops"), ChannelId("art")
FACT = "The vault of the Zürich office opens with the number 4711-0815."
OTHER = "The coffee machine is on the second floor."


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """The fact is in a topic (and in older versions of it); everything that a bot makes of it has a copy."""
    workspace = open_workspace(tmp_path)
    topics = TopicStore(workspace, None)
    topics.write("Vault", f"# Vault\n\n- {FACT}\n- {OTHER}", f"Access. {FACT}", author=AMY)
    topics.write("Vault", "More about the vault, which nobody copied.", f"Access. {FACT}", author=AMY)
    topics.write("Coffee", OTHER, "where the coffee is", author=AMY)
    log = ChannelLog(workspace, OPS)
    asked = log.append(NewMessage("how do I open the vault?", "amy", ts="100.000000")).record
    log.append(NewMessage(f"I know: {FACT}", "bot", is_bot=True, ts="101.000000", reply_to="100.000000"))
    fill_context(workspace, Lane(OPS), [wrap_message(asked)])
    fill_context(workspace, Lane(ART, "90.000000"), ["<message>"])
    Context(workspace, Lane(OPS)).archive()
    fill_context(workspace, Lane(OPS), ["again"])
    put(workspace, "ops/last_prompt.json", json.dumps({"system": f"memory/vault.md#L3: {FACT}"}))
    put(workspace, ".recalld/flushes/ops/channel.jsonl", json.dumps({"id": "f1", "summary": f"- {FACT}"}) + "\n")
    put(workspace, ".recalld/quarantine/ops%2Flog.jsonl.12.abc", json.dumps({"text": FACT})[:-2])
    put(workspace, "ops/HANDOFF.md", f"## 2026-01-01T00:00:00+00:00 (manual)\n\n- {FACT}\n- go on\n")
    put(workspace, "memory/.vault.md.tmp-1-ff", f"half of it: {FACT}")
    return workspace


def fill_context(workspace: Workspace, lane: Lane, texts: list[str]) -> None:
    call = ToolCallBlock(id="c1", name="memory_write", arguments={"content": f"Noted: {FACT}", "raw": json.dumps({"x": FACT})})
    Context(workspace, lane).append(
        [
            *(UserMessage(content=text, timestamp=1) for text in texts),
            AssistantMessage(content=[call], stop_reason="toolUse", timestamp=2),
            ToolResultMessage(
                tool_call_id="c1",
                tool_name="search",
                content=[TextBlock(text=f"memory/vault.md#L9-L10\n- {FACT}\n- {OTHER}")],
                timestamp=3,
            ),
            AssistantMessage(content=[TextBlock(text=f"Sure. {FACT} Anything else?")], timestamp=4),
        ],
    )


def put(workspace: Workspace, name: str, text: str) -> Path:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def grep(workspace: Workspace, words: str) -> list[str]:
    """Where the bytes are, as they are and as JSON escapes them, once or twice."""
    once = json.dumps(words)[1:-1]
    forms = {words.encode(), once.encode(), json.dumps(once)[1:-1].encode()}
    files = [path for path in workspace.root.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(workspace.root)) for path in files if any(form in path.read_bytes() for form in forms))


VAULT = DocumentTarget("memory/vault.md")


def test_afterwards_the_words_are_nowhere_but_where_they_were_left_on_purpose(workspace: Workspace) -> None:
    assert len(grep(workspace, FACT)) > 10
    receipt = forget(workspace, [VAULT], author=AMY)
    assert grep(workspace, FACT) == ["ops/log.jsonl"]
    assert [(each.path, each.line) for each in receipt.remaining] == [("memory/coffee.md", 10), ("ops/log.jsonl", 2)]
    assert not (workspace.root / "memory/vault.md").exists()
    assert list_versions(workspace, "memory/vault.md") == []
    assert [entry.name for entry in TopicStore(workspace, None).list()] == ["Coffee"]


def test_with_the_log_asked_for_they_are_nowhere_at_all(workspace: Workspace) -> None:
    receipt = forget(workspace, [VAULT], include_log=True, author=AMY)
    assert grep(workspace, FACT) == []
    assert [each.path for each in receipt.remaining] == ["memory/coffee.md"]
    assert [record.text for record in ChannelLog(workspace, OPS).page()] == ["how do I open the vault?", "I know: [forgotten]"]


def test_what_was_not_to_be_forgotten_is_still_there(workspace: Workspace) -> None:
    forget(workspace, [VAULT], include_log=True, author=AMY)
    assert OTHER in (workspace.root / "memory/coffee.md").read_text()
    assert (workspace.root / "ops/HANDOFF.md").read_text().endswith("- [forgotten]\n- go on\n")
    context = Context(workspace, Lane(OPS))
    context.append([UserMessage(content="next", timestamp=9)])
    messages = context.build_messages(budget_tokens=9999, lookup=lambda _: None).messages
    assert [message.role for message in messages] == ["user", "assistant", "toolResult", "assistant", "user"]
    assert "Sure. [forgotten] Anything else?" in json.dumps(context.entries(after=None, limit=9)[-2].to_json())
    assert [each for each in examine(workspace) if each.code != "leftover_temp"] == []


def test_the_plan_says_what_forgetting_does_and_changes_nothing(workspace: Workspace) -> None:
    before = {path: path.read_bytes() for path in workspace.root.rglob("*") if path.is_file() and "locks" not in path.parts}
    for include_log in (False, True):
        planned = plan_forget(workspace, [VAULT], include_log=include_log)
        assert planned.dry_run
        assert {path: path.read_bytes() for path in before} == before
    done = forget(workspace, [VAULT], include_log=True, author=AMY)
    assert not done.dry_run
    assert planned.removed == done.removed
    assert planned.remaining == done.remaining


def test_the_receipt_names_every_place_and_what_the_index_must_drop(workspace: Workspace) -> None:
    receipt = forget(workspace, [VAULT], include_log=True, author=AMY)
    removed = {(each.kind, each.path): each.count for each in receipt.removed}
    assert removed[("document", "memory/vault.md")] == 1
    assert removed[("version", "memory/vault.md")] == 1
    assert removed[("index_line", "memory/MEMORY.md")] == 1
    assert removed[("context", "ops/context.jsonl")] == 3
    assert removed[("context", "art/threads/90.000000/context.jsonl")] == 3
    assert removed[("log", "ops/log.jsonl")] == 1
    kinds = {kind for kind, _ in removed}
    assert kinds >= {"last_prompt", "ledger", "quarantine", "handoff", "temp", "version"}
    assert (receipt.documents, receipt.messages, receipt.channels) == (("memory/vault.md",), (), ())
    assert FACT not in str(receipt)


def test_the_audit_says_that_it_was_forgotten_and_not_what(workspace: Workspace) -> None:
    forget(workspace, [VAULT], author=AMY)
    lines = read_audit(workspace, limit=99).items
    assert ("forget", "memory/vault.md", "user:amy", None) in [(each.action, each.name, each.by, each.new_etag) for each in lines]
    assert FACT not in (workspace.root / ".recalld/audit.jsonl").read_text()


def test_forgetting_again_after_a_kill_finishes_the_work(workspace: Workspace) -> None:
    before = (workspace.root / "ops/context.jsonl").read_bytes()
    topic = (workspace.root / "memory/vault.md").read_bytes()
    forget(workspace, [VAULT], author=AMY)
    (workspace.root / "ops/context.jsonl").write_bytes(before)  # as if it had been killed before
    (workspace.root / "memory/vault.md").write_bytes(topic)
    forget(workspace, [VAULT], include_log=True, author=AMY)
    assert grep(workspace, FACT) == []
    with pytest.raises(NotFoundError):
        forget(workspace, [VAULT], author=AMY)


def test_a_removed_document_s_versions_can_still_be_forgotten(workspace: Workspace) -> None:
    edit_text(workspace, "memory/notes/x.md", lambda _: "A fact that was taken out of the file.\n", author=AMY)
    edit_text(workspace, "memory/notes/x.md", lambda _: "Nothing.\n", author=AMY)
    (workspace.root / "memory/notes/x.md").unlink()
    forget(workspace, [DocumentTarget("memory/notes/x.md")], author=AMY)
    assert grep(workspace, "A fact that was taken out of the file.") == []
    assert not (workspace.root / workspace.version("memory/notes/x.md", "")).exists()


def test_a_memory_layer_can_be_forgotten(workspace: Workspace) -> None:
    append_note(workspace, OPS, "The deploy window is Tuesday, from two to four.", author=AMY)
    append_note(workspace, OPS, "A second note of no account.", author=AMY)
    forget(workspace, [DocumentTarget("ops/MEMORY.md")], author=AMY)
    assert grep(workspace, "deploy window") == []
    assert grep(workspace, "second note") == []


def test_lines_of_a_document_go_with_their_copies_and_the_others_stay(workspace: Workspace) -> None:
    text = (workspace.root / "memory/vault.md").read_text("utf-8")
    line = text.split("\n").index(f"- {FACT}") + 1
    receipt = forget(workspace, [LinesTarget("memory/vault.md", line, line)], include_log=True, author=AMY)
    left = (workspace.root / "memory/vault.md").read_text("utf-8")
    assert left == text.replace(f"- {FACT}\n", "")
    assert [each.path for each in receipt.remaining] == ["memory/MEMORY.md", "memory/vault.md"]  # the summary says it too
    assert grep(workspace, FACT) == ["memory/MEMORY.md", "memory/vault.md"]
    assert receipt.documents == ("memory/vault.md",)


def test_several_lines_of_one_document_go_by_their_old_numbers(workspace: Workspace) -> None:
    put(workspace, "memory/list.md", "".join(f"line number {n} of the list\n" for n in range(1, 8)))
    targets: list[Target] = [LinesTarget("memory/list.md", 2, 3), LinesTarget("memory/list.md", 6, 6)]
    assert [each.count for each in plan_forget(workspace, targets).removed] == [3]
    forget(workspace, targets, author=AMY)
    assert (workspace.root / "memory/list.md").read_text() == "".join(f"line number {n} of the list\n" for n in (1, 4, 5, 7))


def test_lines_of_a_document_that_changed_since_are_not_touched(workspace: Workspace) -> None:
    before = (workspace.root / "memory/vault.md").read_bytes()
    with pytest.raises(PreconditionFailedError):
        forget(workspace, [LinesTarget("memory/vault.md", 1, 2, etag="0" * 64)], author=AMY)
    with pytest.raises(BodyInvalidError):
        forget(workspace, [LinesTarget("memory/vault.md", 3, 2)], author=AMY)
    assert (workspace.root / "memory/vault.md").read_bytes() == before


def test_a_message_goes_from_the_log_the_contexts_and_the_attachments(workspace: Workspace) -> None:
    log = ChannelLog(workspace, ART)
    put(workspace, "art/attachments/plan.pdf", "%PDF the plan itself")
    said = log.append(
        NewMessage(
            "My number is 555-123.",
            "ivy",
            ts="50.000000",
            id="k1",
            attachments=(Attachment(name="plan", local="attachments/plan.pdf"),),
        )
    ).record
    log.edit("50.000000", "My number is 555-124.")
    log.append(NewMessage("ok", "bot", is_bot=True, ts="51.000000"))
    Context(workspace, Lane(ART)).append(
        [UserMessage(content=wrap_message(said), timestamp=1), UserMessage(content="ok", timestamp=2)]
    )
    target = MessageTarget(ART, "50.0")
    kept = forget(workspace, [target], author=AMY)
    assert [(each.path, each.line) for each in kept.remaining] == [("art/log.jsonl", 1)]
    assert grep(workspace, "555-12") == ["art/log.jsonl"]
    gone = forget(workspace, [target], include_log=True, author=AMY)
    assert grep(workspace, "555-12") == []
    assert grep(workspace, "%PDF the plan") == []
    assert gone.messages == ((ART, "50.0"),)
    assert [record.text for record in ChannelLog(workspace, ART).page()] == ["ok"]
    messages = Context(workspace, Lane(ART)).build_messages(budget_tokens=999, lookup=lambda _: None).messages
    assert 'ts="50.000000" deleted="true"' in str(messages[0].content)
    assert ChannelLog(workspace, ART).append(NewMessage("new", "ivy", ts="52.000000")).replayed is False


def test_an_unknown_message_or_document_is_not_found(workspace: Workspace) -> None:
    for target in (MessageTarget(OPS, "99.0"), MessageTarget(ChannelId("none"), "1.0"), DocumentTarget("memory/none.md")):
        with pytest.raises(NotFoundError):
            plan_forget(workspace, [target])
    with pytest.raises(NotFoundError):
        plan_forget(workspace, [ChannelTarget(ChannelId("none"))])


@pytest.mark.parametrize("path", ["ops/log.jsonl", "ops/context.jsonl", "settings.json", ".recalld/audit.jsonl"])
def test_logs_contexts_settings_and_state_are_no_documents(path: str, workspace: Workspace) -> None:
    put(workspace, "settings.json", "{}")
    with pytest.raises(ForbiddenError):
        forget(workspace, [DocumentTarget(path)], author=AMY)


def fill_channel(workspace: Workspace) -> None:
    log = ChannelLog(workspace, ART)
    log.append(NewMessage("a picture of the moon", "ivy", ts="50.000000"))
    append_note(workspace, ART, "Ivy paints the moon in oil on canvas.", author=AMY)
    append_note(workspace, ART, "Ivy paints at night, as a rule.", author=AMY)
    TopicStore(workspace, ART).write("Moon", "The moon is the motif of the year.", "motif", author=AMY)
    put(workspace, "art/attachments/moon.png", "PNG of the moon")
    put(workspace, "art/.team/memory/log/dev.md", "# Log: dev\n")
    put(workspace, "events/art.json", json.dumps({"type": "immediate", "channelId": "art", "text": "paint the moon"}))
    put(workspace, ".recalld/cache/sync/art/channel.json", "{}")
    put(workspace, ".recalld/flushes/art/channel.jsonl", '{"summary":"the moon"}\n')
    put(workspace, "memory/own.md", "A global note.\nIvy paints the moon in oil on canvas.\n")


def test_a_channel_goes_whole_when_its_log_is_asked_for(workspace: Workspace) -> None:
    others = {path: path.read_bytes() for path in (workspace.root / "ops").rglob("*") if path.is_file()}
    fill_channel(workspace)
    planned = plan_forget(workspace, [ChannelTarget(ART)], include_log=True)
    receipt = forget(workspace, [ChannelTarget(ART)], include_log=True, author=AMY)
    assert planned.removed == receipt.removed
    assert not (workspace.root / "art").exists()
    assert [str(path) for path in workspace.root.rglob("*art*") if "locks" not in path.parts] == []
    assert grep(workspace, "the moon") == ["memory/own.md"]
    assert [(each.path, each.line) for each in receipt.remaining] == [("memory/own.md", 2)]
    assert receipt.channels == (ART,)
    assert {path: path.read_bytes() for path in others} == others


def test_a_channel_keeps_its_log_and_attachments_unless_they_are_asked_for(workspace: Workspace) -> None:
    fill_channel(workspace)
    receipt = forget(workspace, [ChannelTarget(ART)], author=AMY)
    left = sorted(str(path.relative_to(workspace.root)) for path in (workspace.root / "art").rglob("*") if path.is_file())
    assert left == ["art/attachments/moon.png", "art/log.jsonl"]
    assert ("art/log.jsonl", None) in [(each.path, each.line) for each in receipt.remaining]
    assert [record.text for record in ChannelLog(workspace, ART).page()] == ["a picture of the moon"]


def test_a_message_that_comes_after_a_channel_was_forgotten_starts_it_anew(workspace: Workspace) -> None:
    fill_channel(workspace)
    log = ChannelLog(workspace, ART)
    assert len(log.page()) == 1
    forget(workspace, [ChannelTarget(ART)], include_log=True, author=AMY)
    log.append(NewMessage("hello again", "ivy"))
    assert [record.text for record in log.page()] == ["hello again"]


def test_short_words_that_others_say_too_are_not_taken_out_of_everything(workspace: Workspace) -> None:
    put(workspace, "memory/a.md", "# Contacts\n\nyes\n\nIvy sits in room 12 on the left side.\n")
    put(workspace, "memory/b.md", "# Contacts\n\nTom sits in room 13.\n")
    Context(workspace, Lane(ART)).append([UserMessage(content="Contacts of the team, yes", timestamp=1)])
    forget(workspace, [DocumentTarget("memory/a.md")], author=AMY)
    assert b"Contacts of the team, yes" in (workspace.root / "art/context.jsonl").read_bytes()


def test_words_are_lines_without_markup_their_sentences_and_the_description() -> None:
    front = '---\nname: "Vault"\ndescription: "How the vault is opened"\ncreated: 2026-01-01\n---\n\n'
    text = f"{front}# Title line\n- [ ] One long sentence here. Another long one there!\n| cell of the table one | x |\nno\n"
    assert set(words_of(text)) == {
        "How the vault is opened",
        "Title line",
        "One long sentence here. Another long one there!",
        "One long sentence here.",
        "Another long one there!",
        "| cell of the table one | x |",
        "cell of the table one",
    }


@given(st.lists(st.text(max_size=60), max_size=4), st.text(max_size=60))
def test_what_was_taken_out_of_a_text_is_not_in_it_any_more(texts: list[str], around: str) -> None:
    words = Words.of(texts)
    held = f"{around} {' '.join(words.needles)} {around}"
    assert words.take_out(words.take_out(held)) == words.take_out(held)
    assert all(f" {needle} " not in words.take_out(held) for needle in words.needles)


def test_a_line_is_recognised_inside_a_quoted_json_text():
    words = Words.of(["The zyzzogeton is a leafhopper."])
    quoted = r'{"user": "notes:\nThe zyzzogeton is a leafhopper.\nmore"}'
    assert words.take_out(quoted) == r'{"user": "notes:\n[forgotten]\nmore"}'
    assert words.take_out("AThe zyzzogeton is a leafhopper.") == "AThe zyzzogeton is a leafhopper."
