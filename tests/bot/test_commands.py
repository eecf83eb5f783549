"""Slash commands, asked of a real server like any message."""

import pytest

from bot.commands import parse_command
from tests.bot.running import post


def say(client, channel, text, **fields):
    response = post(client, channel, text, **fields)
    assert response.status_code == 200, response.text
    return response.json()["reply"]["text"]


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/memory", "memory", ""),
        ("  /memory pin  Deploy process ", "memory", "pin  Deploy process"),
        ("/remember\nline one\nline two", "remember", "line one\nline two"),
        ("/help", "help", ""),
    ],
)
def test_a_command_is_its_name_and_the_rest(text, name, argument):
    command = parse_command(text)
    assert (command.name, command.argument) == (name, argument)


@pytest.mark.parametrize("text", ["/etc/hosts is broken", "/memoryhole", "see /memory", "//help", "/unknown x", ""])
def test_other_texts_are_no_command(text):
    assert parse_command(text) is None


@pytest.mark.parametrize(
    "text",
    ["/remember", "/forget  ", "/search", "/memory pin", "/memory unpin ", "/memory remove", "/memory search", "/memory show"],
)
def test_a_missing_argument_is_a_usage_message_and_stores_nothing(client, server, text):
    before = {path: path.read_bytes() for path in (server.workspace / "memory").rglob("*") if path.is_file()}
    assert say(client, "usage", text).startswith("usage: /")
    assert {path: path.read_bytes() for path in (server.workspace / "memory").rglob("*") if path.is_file()} == before
    assert not (server.workspace / "usage" / "MEMORY.md").exists()
    assert not (server.workspace / "usage" / "memory").exists()


def test_an_unknown_word_is_answered_with_the_usage(client):
    assert "/memory frobnicate is no command" in say(client, "usage", "/memory frobnicate")


def test_a_note_is_remembered_and_found(client):
    assert say(client, "notes", "/remember the printer jams on Fridays") == "noted in notes/MEMORY.md#L1-L1"
    assert "notes/MEMORY.md#L1" in say(client, "notes", "/search when does the printer jam?")
    assert "Fridays" in say(client, "notes", "when does the printer jam?")


def test_a_secret_is_refused_by_a_command(client, server):
    secret = "ghp_" + "wJ4rT9xQ2mL7vB3nK8" + "pZ5sD1fG6hY0cU9eR2"
    answer = say(client, "notes", f"/remember the token is {secret}")
    assert "secret_detected" in answer
    assert secret not in answer


def test_topics_are_shown_pinned_and_removed(client):
    client.put("/v1/topics/Gulls", json={"content": "Gulls steal chips.", "summary": "birds", "channel": "birds"})
    assert "Gulls: birds" in say(client, "birds", "/memory list")
    assert "Gulls steal chips." in say(client, "birds", "/memory show gulls")
    assert "Gulls" in say(client, "birds", "/memory search chips")
    assert say(client, "birds", "/memory pin Gulls") == "Gulls is now pinned"
    assert say(client, "birds", "/memory pin Gulls") == "Gulls is already pinned"
    assert "[pinned]" in say(client, "birds", "/forget Gulls")
    say(client, "birds", "/memory unpin Gulls")
    assert "no longer a topic" in say(client, "birds", "/forget Gulls")
    assert "steal chips" not in say(client, "birds", "/search what do gulls steal?")
    assert "[not_found]" in say(client, "birds", "/forget Gulls")


def test_the_status_tells_of_both_scopes_and_the_index(client):
    status = say(client, "general", "/memory")
    assert "this channel: " in status
    assert "global: " in status
    assert "index: " in status


def test_the_team_s_memory_is_made_and_used(client):
    assert "files made" in say(client, "crew", "/memory init")
    assert "there already" in say(client, "crew", "/memory init")
    assert ".team/memory/log/orchestrator.md" in say(client, "crew", "/remember decision: we use flags")
    assert "entries archived" in say(client, "crew", "/memory compact")
    assert "team: " in say(client, "crew", "/memory status")


def test_a_new_conversation_begins_and_the_old_one_is_kept(client):
    say(client, "talk", "remember that the owl is called Nyx")
    assert "The old one is kept as .recalld/versions/" in say(client, "talk", "/new")
    entries = client.get("/v1/channels/talk/context").json()["items"]
    assert not [entry for entry in entries if entry["type"] == "message"]
    assert "Nyx" in say(client, "talk", "what is the owl called?")


def test_what_was_only_logged_before_new_does_not_come_back(client):
    say(client, "fresh", "hello")
    post(client, "fresh", "just so you know: the lift is broken", respond=False)
    say(client, "fresh", "/new")
    prompt = client.get("/v1/channels/fresh/prompt", params={"text": "and?"}).json()
    assert "the lift is broken" not in str(prompt["messages"])


def test_a_short_conversation_has_nothing_to_sum_up(client):
    assert "nothing to sum up" in say(client, "brief", "/compact")


def test_a_long_conversation_is_summed_up_and_goes_on(client):
    for number in range(12):
        post(client, "long-talk", f"{number}: " + "a long story " * 200)
    answer = say(client, "long-talk", "/compact")
    assert answer.startswith("Summed up: "), answer
    entries = client.get("/v1/channels/long-talk/context", params={"limit": 200}).json()["items"]
    assert [entry["type"] for entry in entries].count("compaction") == 1
    prompt = client.get("/v1/channels/long-talk/prompt", params={"text": "and now?"}).json()
    assert "11: a long story" in str(prompt["messages"])
    assert say(client, "long-talk", "help").startswith("I am builtin/recall")


def test_commands_beside_a_question_are_both_answered(client):
    assert say(client, "general", "/help").startswith("/memory")


def test_stop_without_a_running_turn_says_so(client):
    assert say(client, "general", "/stop") == "Nothing runs here now."
