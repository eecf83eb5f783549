"""Builds a volume as a pi-digby bot leaves it, by the format page: every file it knows, with fields and types unknown to us."""

import json
from pathlib import Path
from typing import Any, Final

CHANNEL: Final = "C0TEAM"
LINEAR: Final = "linear:4f1c-9"
ROOT_TS: Final = "1700000100.000100"
TORN_LOG: Final = '{"date":"2023-11-14T22:16:00.000Z","ts":"1700000160.000100","user":"U1","te'
TORN_CONTEXT: Final = '{"type":"message","id":"deadbeef","parentId":"0000000a","timest'
STAMP: Final = "2023-11-14T22:15:00.000Z"


def make_digby_volume(root: Path) -> None:
    """Fill the empty folder `root`. Lines are spaced as JavaScript's JSON.stringify writes them: without blanks, not escaped."""
    _put(root, "MEMORY.md", "# Team\n\nWe deploy on Tuesdays.\r\n")
    _put(root, "SYSTEM.md", "- installed jq\n")
    _put(
        root,
        "settings.json",
        '{\n  "model": "anthropic/claude",\n  "slack": {"replyBehaviour": {"C0TEAM": "thread"}},\n  "mine": [1]\n}',
    )
    _put(root, ".gitconfig", "[user]\n\tname = digby\n")
    _put(
        root,
        "events/standup.json",
        '{"type":"periodic","channelId":"C0TEAM","text":"hi","schedule":"0 9 * * 1","timezone":"UTC","x":1}',
    )
    _put(
        root,
        "skills/deploy/SKILL.md",
        "---\nname: deploy\ndescription: How we deploy\nvendor: {a: 1}\n---\nRun {baseDir}/go.sh\n",
    )
    _put(root, "skills/deploy/go.sh", "#!/bin/sh\n")
    _put(root, "skills/broken/SKILL.md", "---\nname: [not closed\n---\nLost?\n")
    _put(root, f"{CHANNEL}/MEMORY.md", "The release train leaves at 14:00.\n")
    _put(root, f"{CHANNEL}/log.jsonl", _lines(_channel_log()) + TORN_LOG)
    _put(root, f"{CHANNEL}/context.jsonl", _lines(_channel_context()) + TORN_CONTEXT)
    _put(root, f"{CHANNEL}/threads/{ROOT_TS}/context.jsonl", _lines(_thread_context()))
    _put(root, f"{CHANNEL}/last_prompt.jsonl", '{"prompt":"?"}\n')
    _put(root, f"{CHANNEL}/attachments/1700000010_plan.pdf", "%PDF")
    _put(root, f"{CHANNEL}/scratch/notes.txt", "scratch\n")
    _put(root, f"{LINEAR}/log.jsonl", _lines(_linear_log()))
    _put(root, f"{LINEAR}/context.jsonl", _lines(_linear_context()))


def _put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _lines(values: list[dict[str, Any] | str]) -> str:
    """JSON lines; a text stands for itself: a line that is no JSON object."""
    compact = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in values]
    return "".join(f"{each}\n" for each in compact)


def _said(ts: str, user: str, text: str, **more: object) -> dict[str, Any]:
    return {
        "date": STAMP,
        "ts": ts,
        "user": user,
        "userName": user.lower(),
        "text": text,
        "attachments": [],
        "isBot": False,
        **more,
    }


def _bot(ts: str, text: str, **more: object) -> dict[str, Any]:
    return _said(ts, "bot", text, isBot=True, **more)


def _channel_log() -> list[dict[str, Any] | str]:
    return [
        _said(
            "1700000010.000100",
            "U1",
            "hällo 👋 team",
            displayName="Amy",
            attachments=[{"name": "plan.pdf", "local": "x/plan.pdf"}],
        ),
        _bot("1700000020.000100", "hello"),
        _said("1700000100.000100", "U2", "when do we deploy?", reactions=["eyes"]),
        _said("1700000110.000100", "U3", "line\u2028separator", threadTs=ROOT_TS, blocks={"a": [None, 1.5]}),
        "this line was written by hand",
        _bot("1700000120.000100", "on Tuesdays", threadTs=ROOT_TS),
        {"ts": "no ts", "text": "unusable"},
        _said("1700000130.000100", "U1", "in another thread", threadTs="1700000010.000100"),
        _said("1700000140.000100", "U2", "thanks"),
        _said("1700000150.000100", "U2", "thanks"),
    ]


def _linear_log() -> list[dict[str, Any] | str]:
    return [_said("1700000200.000000", "L1", "please look at this issue"), _bot("1700000210.000000", "done")]


def _header(version: int = 3) -> dict[str, Any]:
    return {"type": "session", "version": version, "id": "3f0c", "timestamp": STAMP, "cwd": "/data/C0TEAM", "parentSession": None}


def _entry(entry_id: str, parent: str | None, kind: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": STAMP, **more}


def _message(entry_id: str, parent: str | None, **message: object) -> dict[str, Any]:
    return _entry(entry_id, parent, "message", message={"timestamp": 1700000020000, **message})


def _text(text: str, **more: object) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, **more}]


def _assistant(entry_id: str, parent: str, content: list[dict[str, Any]], stop: str = "stop") -> dict[str, Any]:
    usage = {
        "input": 9,
        "output": 4,
        "cacheRead": 2,
        "cacheWrite": 1,
        "totalTokens": 16,
        "cost": {"total": 0.01, "tax": 0},
        "tier": "x",
    }
    source = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude"}
    return _message(entry_id, parent, role="assistant", content=content, usage=usage, stopReason=stop, **source)


def _channel_context() -> list[dict[str, Any] | str]:
    """Tool calls, a compaction, a branch that was left, a call that was never finished, entries of types yet unknown."""
    wrapped = '<slack_message ts="1700000010.000100" user="amy">\n[amy]: hällo 👋 team\n</slack_message>'
    thinking = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig=="}
    call = {"type": "toolCall", "id": "call_1", "name": "bash", "arguments": {"cmd": "ls", "n": None}}
    return [
        _header(),
        _entry("00000001", None, "model_change", provider="anthropic", modelId="claude"),
        _message("00000002", "00000001", role="user", content="a message that was compacted"),
        _assistant("00000003", "00000002", _text("an old answer")),
        _message("00000004", "00000003", role="user", content=_text(wrapped)),
        _entry("00000005", "00000004", "telemetry", payload={"of": "the future"}),
        _assistant("00000006", "00000005", [thinking, call], "toolUse"),
        _message(
            "00000007", "00000006", role="toolResult", toolCallId="call_1", toolName="bash", content=_text("a.txt"), isError=False
        )
        | {"details": {"kept": True}},
        _entry(
            "00000008",
            "00000007",
            "compaction",
            summary="They said hello.",
            firstKeptEntryId="00000004",
            tokensBefore=9,
            fromHook=False,
        ),
        "{torn in the middle",
        _message("00000009", "00000003", role="user", content="a branch that was left"),
        _assistant("0000000a", "00000008", [{"type": "toolCall", "id": "call_2", "name": "bash", "arguments": {}}], "aborted"),
    ]


def _thread_context() -> list[dict[str, Any] | str]:
    return [
        _header(),
        _message("0000000b", None, role="user", content="in the thread"),
        _assistant("0000000c", "0000000b", _text("yes")),
    ]


def _linear_context() -> list[dict[str, Any] | str]:
    """Version 1: no ids, no parents."""
    header = {key: value for key, value in _header().items() if key != "version"}
    return [
        header,
        {"type": "message", "timestamp": STAMP, "message": {"role": "user", "content": "from version 1", "timestamp": 1}},
    ]
