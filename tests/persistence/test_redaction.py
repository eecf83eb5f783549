"""Secrets on their way into logs and contexts: taken out of every text, with retries, ids, signatures and pictures unharmed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.context import Context
from persistence.errors import MessageConflictError
from persistence.log import ChannelLog, NewMessage
from persistence.records import (
    AssistantMessage,
    Attachment,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultMessage,
    UserMessage,
)
from persistence.redaction import redact_fields
from persistence.secrets import redact
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace

C1 = ChannelId("C1")
KEY = "ghp_" + "aB3dE6" * 6
SAID = f"the key is {KEY}, keep it"
KEPT = "the key is [redacted:github_token], keep it"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def as_it_is(text: str) -> str:
    return text


def on_disk(workspace: Workspace) -> bytes:
    return b"".join(path.read_bytes() for path in workspace.root.rglob("*") if path.is_file())


def test_a_message_s_secret_never_reaches_the_disk(workspace: Workspace) -> None:
    log = ChannelLog(workspace, C1)
    appended = log.append(
        NewMessage(SAID, "amy", extra={"metadata": {"note": [SAID]}}, attachments=(Attachment(name="a", local="x/a"),))
    )
    assert appended.record.text == KEPT
    log.edit(appended.record.ts, f"now {KEY}")
    assert KEY.encode() not in on_disk(workspace)
    assert log.page()[0].text == "now [redacted:github_token]"


@pytest.mark.parametrize("same", ["ts", "id"])
def test_a_retry_with_the_secret_is_a_replay(same: str, workspace: Workspace) -> None:
    message = NewMessage(SAID, "amy", ts="100.000000" if same == "ts" else None, id="k1" if same == "id" else None)
    first = ChannelLog(workspace, C1).append(message)
    again = ChannelLog(workspace, C1).append(message)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.record.ts == first.record.ts
    with pytest.raises(MessageConflictError):
        ChannelLog(workspace, C1).append(NewMessage("something else", "amy", ts=first.record.ts, id=message.id))


def test_a_retry_is_a_replay_also_when_redaction_was_turned_on_or_off_in_between(workspace: Workspace) -> None:
    plain, redacting = ChannelLog(workspace, C1, redact=as_it_is), ChannelLog(workspace, C1)
    assert plain.append(NewMessage(SAID, "amy", ts="100.0")).record.text == SAID
    assert redacting.append(NewMessage(SAID, "amy", ts="100.0")).replayed
    redacting.append(NewMessage(SAID, "amy", ts="200.0"))
    assert plain.append(NewMessage(SAID, "amy", ts="200.0")).replayed


def test_with_redaction_off_a_text_stays_as_it_is(workspace: Workspace) -> None:
    assert ChannelLog(workspace, C1, redact=as_it_is).append(NewMessage(SAID, "amy")).record.text == SAID
    context = Context(workspace, Lane(C1), redact=as_it_is)
    context.append([UserMessage(content=SAID, timestamp=1)])
    assert KEY in json.dumps(context.entries(after=None, limit=9)[0].to_json())


def test_a_context_s_secrets_never_reach_the_disk(workspace: Workspace) -> None:
    context = Context(workspace, Lane(C1))
    long = "x" * 51_190 + f" {KEY} more"
    context.append(
        [
            UserMessage(content=SAID, timestamp=1),
            AssistantMessage(
                content=[ThinkingBlock(thinking=SAID), ToolCallBlock(id="c1", name="run", arguments={"command": [SAID], "n": 1})],
                stop_reason="toolUse",
                timestamp=2,
            ),
            ToolResultMessage(tool_call_id="c1", tool_name="run", content=[TextBlock(text=long)], timestamp=3),
        ],
    )
    data = on_disk(workspace)
    assert KEY.encode() not in data
    assert KEY[:20].encode() not in data
    assert data.count(b"[redacted:github_token]") == 3


def test_ids_pictures_and_signatures_are_left_alone() -> None:
    odd = "f8Kq2ZxW9bLmT4vYc7RjH1nPs6Gd3Xae"
    assert redact(odd) != odd
    value = {
        "id": odd,
        "toolCallId": odd,
        "content": [
            {"type": "image", "mimeType": "image/png", "data": odd},
            {"type": "thinking", "thinking": "plain", "thinkingSignature": odd},
            {"type": "text", "text": odd, "n": 1.5, "none": None},
        ],
    }
    clean = redact_fields(value, redact)
    assert clean["content"][:2] == value["content"][:2]  # type: ignore[index] - a JSON list
    assert clean["content"][2] == {"type": "text", "text": "[redacted:random_string]", "n": 1.5, "none": None}  # type: ignore[index]
    assert (clean["id"], clean["toolCallId"]) == (odd, odd)


def test_a_signature_of_words_that_were_changed_goes_with_them() -> None:
    assert redact_fields({"type": "thinking", "thinking": SAID, "thinkingSignature": "s"}, redact) == {
        "type": "thinking",
        "thinking": KEPT,
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.dictionaries(st.text(), JSON))
def test_what_holds_no_secret_comes_back_equal(value: dict[str, object]) -> None:
    assert redact_fields(value, as_it_is) == value  # type: ignore[arg-type, comparison-overlap] - JSON by construction
