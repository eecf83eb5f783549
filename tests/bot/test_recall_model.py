"""`builtin/recall`: what it understands, which tools it calls, and that every fact in its answer is a quote."""

import json

import pytest

from bot.models.quoting import best_quotes
from bot.models.recall import HELP, LOGGED, NOTHING, Request, classify_request, compose, next_calls


def found(*passages, degraded=()):
    return {"passages": [{"source": s, "score": score, "text": t} for s, score, t in passages], "degraded": list(degraded)}


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("remember that the deploy window is Tuesday 14:00 UTC", "remember", "the deploy window is Tuesday 14:00 UTC"),
        ("Please remember: use port 8443", "remember", "use port 8443"),
        ("<@U123ABC> remember that we use uv", "remember", "we use uv"),
        ("don't forget the retro on Friday", "remember", "the retro on Friday"),
        ("forget about the old VPN", "forget", "the old VPN"),
        ("who said the build is flaky?", "who", "the build is flaky?"),
        ("what do you know about postgres", "about", "postgres"),
        ("when can we deploy?", "about", "when can we deploy?"),
        ("help", "help", "help"),
    ],
)
def test_a_message_is_understood_by_how_it_begins(text, kind, wanted):
    request = classify_request("1.0", text)
    assert (request.kind, request.text) == (kind, wanted)


def test_a_statement_is_no_question():
    assert not classify_request("1.0", "the build is green again").is_question
    assert classify_request("1.0", "is the build green again").is_question


def test_remember_calls_one_tool_with_the_note():
    calls = next_calls([classify_request("7.5", "remember that x is y")], {})
    assert [(call.tool, call.arguments) for call in calls] == [("memory_append", {"text": "x is y"})]
    assert calls[0].id == "recall-7.5-note"


def test_several_messages_are_served_in_one_round():
    requests = [classify_request("1.0", "remember that a is b"), classify_request("2.0", "when is the retro?")]
    assert [call.tool for call in next_calls(requests, {})] == ["memory_append", "memory_search"]


def test_a_question_that_memory_does_not_answer_is_looked_up_in_the_history():
    request = classify_request("1.0", "when is the retro?")
    results = {"recall-1.0-search": found()}
    assert [call.tool for call in next_calls([request], results)] == ["history_search"]
    results["recall-1.0-history"] = {"messages": []}
    assert next_calls([request], results) == []
    assert compose([request], results) == NOTHING


def test_an_answer_quotes_the_line_that_shares_the_question_s_words_and_names_its_place():
    text = "# Notes\n\n- the retro is on Friday\n- the deploy window is Tuesday 14:00 UTC\n- lunch at noon"
    request = classify_request("1.0", "when can we deploy?")
    answer = compose([request], {"recall-1.0-search": found(("general/MEMORY.md#L1-L5", 0.8, text))})
    assert answer == "> - the deploy window is Tuesday 14:00 UTC\n(general/MEMORY.md#L4-L4)"


def test_weak_hits_are_not_quoted():
    assert best_quotes(found(("a.md#L1-L1", 0.05, "unrelated words")), "when can we deploy?") == []


def test_a_hit_far_behind_the_best_is_not_quoted():
    quotes = best_quotes(found(("a.md#L1-L1", 0.9, "deploy on Tuesday"), ("b.md#L1-L1", 0.4, "other words")), "deploy")
    assert [quote.source for quote in quotes] == ["a.md#L1-L1"]


def test_the_same_quote_is_given_once():
    quotes = best_quotes(found(("a.md#L1-L1", 0.9, "deploy on Tuesday"), ("b.md#L1-L1", 0.89, "deploy on Tuesday")), "deploy")
    assert len(quotes) == 1


def test_who_said_names_the_speaker_and_the_time():
    request = classify_request("9.0", "who said the build is flaky?")
    message = {"ts": "5.0", "date": "2026-11-03T10:00:00Z", "name": "Tom", "text": "the build is flaky again"}
    answer = compose([request], {"recall-9.0-history": {"messages": [message]}})
    assert answer == "> the build is flaky again\n(Tom, 2026-11-03T10:00, ts 5.0)"


def test_a_failed_note_is_reported_and_not_claimed():
    request = classify_request("1.0", "remember that x is y")
    answer = compose([request], {"recall-1.0-note": {"error": "the volume is full"}})
    assert "could not" in answer
    assert "the volume is full" in answer
    assert "Noted" not in answer


def test_a_plain_statement_is_answered_honestly():
    request = classify_request("1.0", "the build is green again")
    assert compose([request], {"recall-1.0-search": found()}) == LOGGED


def test_what_was_off_while_looking_is_said():
    request = classify_request("1.0", "when is the retro?")
    results = {"recall-1.0-search": found(degraded=["vector"]), "recall-1.0-history": {"messages": []}}
    assert "vector" in compose([request], results)


def test_help_says_what_it_is():
    assert "not a language model" in compose([Request("1.0", "help", "help", is_question=False)], {})
    assert HELP in compose([], {})


def test_hostile_tool_results_do_not_break_the_answer():
    request = classify_request("1.0", "when is the retro?")
    for passages in (None, "x", [{}], [{"source": "no place", "score": 0.9, "text": "t"}], [{"score": 1, "text": ""}]):
        results = {"recall-1.0-search": {"passages": passages}, "recall-1.0-history": {"messages": [{}]}}
        assert isinstance(compose([request], json.loads(json.dumps(results))), str)


def test_an_earlier_question_is_no_answer():
    request = classify_request("9.0", "when is the next full moon?")
    message = {"ts": "5.0", "date": "2026-11-03T10:00:00Z", "name": "Tom", "text": "when is the next full moon?"}
    results = {"recall-9.0-search": found(), "recall-9.0-history": {"messages": [message]}}
    assert compose([request], results) == NOTHING


def test_forget_removes_the_one_note_that_is_plainly_meant():
    request = classify_request("9.0", "forget the deploy window")
    results = {"recall-9.0-search": found(("ops/MEMORY.md#L1-L2", 0.8, "- lunch at noon\n- the deploy window is Tuesday"))}
    calls = next_calls([request], results)
    assert [(call.tool, call.arguments) for call in calls] == [
        ("memory_forget", {"text": "- the deploy window is Tuesday", "line": 2}),
    ]
    results[calls[0].id] = {"path": "ops/MEMORY.md", "line": 2, "removed": "- the deploy window is Tuesday"}
    assert compose([request], results).startswith("Forgotten: - the deploy window is Tuesday")


@pytest.mark.parametrize(
    "passages",
    [
        [("ops/MEMORY.md#L1-L2", 0.8, "- the deploy window is Tuesday\n- the deploy window was Monday")],
        [("memory/deploy.md#L1-L1", 0.8, "the deploy window is Tuesday")],
        [("ops/MEMORY.md#L1-L1", 0.8, "- something about windows")],
    ],
)
def test_forget_removes_nothing_when_it_could_mean_several_things(passages):
    request = classify_request("9.0", "forget the deploy window")
    results = {"recall-9.0-search": found(*passages)}
    assert next_calls([request], results) == []
    assert "removed nothing" in compose([request], results)


def test_a_failed_removal_is_not_claimed():
    request = classify_request("9.0", "forget the deploy window")
    results = {
        "recall-9.0-search": found(("ops/MEMORY.md#L1-L1", 0.8, "- the deploy window is Tuesday")),
        "recall-9.0-forget": {"error": "it changed"},
    }
    assert "Forgotten" not in compose([request], results)
