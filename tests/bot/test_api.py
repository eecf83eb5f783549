"""The HTTP contract, asked of a real server over a real socket."""

import json
import re
import socket
import threading
import time

import httpx
import pytest

from tests.bot.running import ROOT, post

PROBLEM = "application/problem+json"


def assert_problem(response, status, code):
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith(PROBLEM)
    body = response.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["detail"]
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", response.headers["x-request-id"])
    for leak in ("Traceback", "/tmp", str(ROOT)):
        assert leak not in response.text
    return body


# --- bad input ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_route_is_a_problem(client):
    assert_problem(client.get("/v1/nowhere"), 404, "not_found")


def test_a_wrong_method_is_a_problem(client):
    assert_problem(client.put("/v1/search"), 405, "method_not_allowed")


@pytest.mark.parametrize("body", [b"{", b"", b"[1,2]", b'"text"', b"\xff\xfe", b'{"text": NaN, "user": "a"}', b"[" * 100_000])
def test_bad_json_is_a_problem(client, body):
    response = client.post("/v1/channels/general/messages", content=body, headers={"content-type": "application/json"})
    assert_problem(response, 422, "body_invalid")


def test_a_body_of_another_media_type_is_refused(client):
    response = client.post("/v1/channels/x1/messages", content=b'{"text":"a","user":"b"}', headers={"content-type": "text/plain"})
    assert_problem(response, 422, "body_invalid")
    assert_problem(client.get("/v1/channels/x1"), 404, "not_found")


@pytest.mark.parametrize(
    "channel",
    ["..%2Fx", ".recalld", "%00", "a%00b", "memory", "MEMORY", "skills", "a..b", "-x", "x" * 200, "%2e%2e", "gen%20eral", "a%0A"],
)
def test_a_bad_channel_id_is_refused_by_every_route(client, server, channel):
    before = sorted(path.name for path in server.workspace.iterdir())
    base = f"/v1/channels/{channel}"
    for response in (
        client.post(f"{base}/messages", json={"text": "x", "user": "amy"}),
        client.get(base),
        client.get(f"{base}/messages"),
        client.get(f"{base}/context"),
        client.get(f"{base}/prompt", params={"text": "x"}),
        client.post(f"{base}/stop"),
    ):
        if "%2F" in channel:  # a slash is no part of one path segment: there is no such route
            assert_problem(response, 404, "not_found")
        else:
            assert_problem(response, 422, "channel_invalid")
    assert sorted(path.name for path in server.workspace.iterdir()) == before


def test_an_empty_channel_id_is_no_route(client):
    assert_problem(client.post("/v1/channels//messages", json={"text": "x", "user": "amy"}), 404, "not_found")


def test_a_bad_channel_in_a_search_is_refused(client):
    assert_problem(client.get("/v1/search", params={"q": "x", "channel": "../general"}), 422, "channel_invalid")


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "x" * 40_001])
def test_a_text_that_is_blank_or_too_long_is_refused(client, text):
    assert_problem(post(client, "general", text), 422, "body_invalid")


def test_a_lone_surrogate_is_refused(client):
    body = b'{"text": "bad \\ud800 text", "user": "amy"}'
    response = client.post("/v1/channels/general/messages", content=body, headers={"content-type": "application/json"})
    assert_problem(response, 422, "body_invalid")


def test_a_text_of_a_megabyte_is_refused(client):
    assert_problem(post(client, "general", "x" * 1_000_000), 422, "body_invalid")
    assert_problem(post(client, "general", "x" * 1_100_000), 413, "too_large")


def test_a_body_without_a_declared_length_is_limited_too(client):
    def chunks():
        yield b'{"text": "'
        for _ in range(40):
            yield b"x" * 50_000
        yield b'", "user": "amy"}'

    response = client.post("/v1/channels/general/messages", content=chunks(), headers={"content-type": "application/json"})
    assert_problem(response, 413, "too_large")


@pytest.mark.parametrize(
    "ts", ["", "abc", "1.2.3", "-1.0", "1e9", "99999999999999.0", "1764500000.0001000000000", " 1.0", "１.0"]
)
def test_a_bad_ts_is_refused(client, ts):
    body = assert_problem(post(client, "general", "x", ts=ts), 422, "body_invalid")
    assert body["errors"][0]["loc"][-1] == "ts"


def test_a_ts_in_the_future_is_refused(client):
    assert_problem(post(client, "general", "x", ts=f"{time.time() + 400:.6f}"), 422, "ts_future")


def test_unknown_fields_and_wrong_types_are_refused_with_their_place(client):
    body = assert_problem(post(client, "general", "x", colour="red"), 422, "body_invalid")
    assert body["errors"][0]["loc"] == ["body", "colour"]
    assert_problem(post(client, "general", "x", respond="yes"), 422, "body_invalid")
    assert_problem(client.post("/v1/channels/general/messages", json={"text": 5, "user": "amy"}), 422, "body_invalid")


@pytest.mark.parametrize("time_text", ["2026-11-30", "2026-11-30T12:00:00", "yesterday", "12:00"])
def test_a_time_without_offset_is_refused(client, time_text):
    assert_problem(client.get("/v1/channels/general/messages", params={"before": time_text}), 422, "body_invalid")


def test_a_forged_cursor_is_refused(client):
    for cursor in ("!!!", "AAAA", "x" * 5000):
        assert_problem(client.get("/v1/channels/general/messages", params={"cursor": cursor}), 422, "body_invalid")


def test_another_host_name_is_refused(client):
    assert_problem(client.get("/v1/channels", headers={"host": "evil.example"}), 403, "forbidden")
    assert client.get("/healthz", headers={"host": "localhost:1"}).status_code == 200


def test_a_request_id_is_kept_when_it_is_harmless(client):
    assert client.get("/healthz", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/healthz", headers={"x-request-id": "a b<script>"}).headers["x-request-id"] != "a b<script>"


# --- messages ----------------------------------------------------------------------------------------------------------------


def test_a_posted_message_is_logged_and_answered_with_its_turn(client):
    body = post(client, "round-trip", "hello there", display_name="Amy A.", metadata={"source": "test"}).json()
    assert body["message"]["text"] == "hello there"
    assert body["message"]["metadata"] == {"source": "test"}
    assert body["reply"]["model"] == "builtin/recall"
    assert body["reply"]["stop_reason"] == "stop"
    assert set(body["turn"]) == {"id", "synced", "context_messages", "compacted", "recall", "timings_ms"}
    history = client.get("/v1/channels/round-trip/messages").json()["items"]
    assert [item["is_bot"] for item in history] == [False, True]
    assert history[1]["reply_to"] == history[0]["ts"]


def test_a_fact_is_remembered_and_found_again_with_its_place(client):
    told = post(client, "facts", "remember that the deploy window is Tuesday 14:00 UTC").json()
    assert told["reply"]["citations"] == [{"path": "facts/MEMORY.md", "start_line": 1, "end_line": 1}]
    asked = post(client, "facts", "when can we deploy?", user="tom").json()
    assert "Tuesday 14:00 UTC" in asked["reply"]["text"]
    assert {"path": "facts/MEMORY.md", "start_line": 1, "end_line": 1} in asked["reply"]["citations"]


def test_another_channel_does_not_get_the_fact(client):
    post(client, "secretive", "remember that the codename of the project is Bluebird")
    reply = post(client, "nosy", "what is the codename of the project?").json()["reply"]
    assert "Bluebird" not in reply["text"]
    for params in ({"channel": "nosy"}, {}):
        found = client.get("/v1/search", params={"q": "codename Bluebird", "wait": "true", **params}).json()
        assert not any("Bluebird" in hit["text"] for hit in found["hits"])
    prompt = client.get("/v1/channels/nosy/prompt", params={"text": "codename Bluebird"}).text
    assert prompt.count("Bluebird") == 1  # the question itself


def test_with_respond_false_the_message_is_only_logged(client):
    response = post(client, "quiet", "just so you know", respond=False)
    assert response.status_code == 202
    assert response.json()["reply"] is None
    assert [item["text"] for item in client.get("/v1/channels/quiet/messages").json()["items"]] == ["just so you know"]


def test_a_retry_by_ts_or_key_is_a_replay(client):
    ts = f"{time.time() - 60:.6f}"
    first = post(client, "retry", "hello", ts=ts)
    again = post(client, "retry", "hello", ts=ts)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["reply"] == first.json()["reply"]
    assert_problem(post(client, "retry", "other", ts=ts), 409, "message_conflict")

    body = {"text": "with key", "user": "amy"}
    keyed = [client.post("/v1/channels/retry/messages", json=body, headers={"idempotency-key": "k 1"}) for _ in range(2)]
    assert keyed[0].json()["reply"] == keyed[1].json()["reply"]
    assert keyed[1].headers["idempotent-replayed"] == "true"
    assert len(client.get("/v1/channels/retry/messages").json()["items"]) == 4


def test_events_of_a_turn_stream_in_order(client):
    events = []
    body = {"text": "how do we get back to the old version?", "user": "amy"}
    with client.stream("POST", "/v1/channels/ops/messages", json=body, headers={"accept": "text/event-stream"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("event: "):
                events.append([line[7:], None])
            elif line.startswith("data: "):
                events[-1][1] = json.loads(line[6:])
    names = [name for name, _ in events]
    assert names[:2] == ["accepted", "recall"]
    assert names[-2:] == ["reply", "done"]
    assert {"tool_call", "tool_result", "delta"} <= set(names)
    reply = events[-2][1]["reply"]
    assert "".join(data["text"] for name, data in events if name == "delta").strip() == reply["text"]
    assert reply["citations"]


def test_what_is_refused_before_the_message_is_logged_is_no_stream(client):
    response = client.post("/v1/channels/ops/messages", json={"text": "", "user": "amy"}, headers={"accept": "text/event-stream"})
    assert_problem(response, 422, "body_invalid")


def test_a_streaming_client_that_goes_away_does_not_stop_the_turn(client, server):
    body = json.dumps({"text": "remember that the cat is called Miso", "user": "amy"}).encode()
    host, port = server.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/channels/leaving/messages HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            b"Content-Type: application/json\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body,
        )
        while b"accepted" not in connection.recv(4096):
            pass
    for _ in range(100):
        if len(client.get("/v1/channels/leaving/messages").json()["items"]) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("the turn did not end")


def test_edits_and_deletions_show_in_the_history(client):
    first = post(client, "editing", "the port is 8080", respond=False).json()["message"]["ts"]
    second = post(client, "editing", "this was a mistake", respond=False).json()["message"]["ts"]
    edited = client.patch(f"/v1/channels/editing/messages/{first}", json={"text": "the port is 8443"})
    assert edited.json()["text"] == "the port is 8443"
    assert edited.json()["edited"]
    assert client.delete(f"/v1/channels/editing/messages/{second}").json()["text"] == ""
    assert [item["text"] for item in client.get("/v1/channels/editing/messages").json()["items"]] == ["the port is 8443"]
    assert_problem(client.patch("/v1/channels/editing/messages/1.0", json={"text": "x"}), 404, "not_found")


def test_threads_have_their_own_lane_and_show_in_the_history(client):
    root = post(client, "threads-1", "a root", respond=False).json()["message"]["ts"]
    reply = post(client, "threads-1", "what is this thread about?", thread_ts=root).json()
    assert reply["message"]["thread_ts"] == root
    items = client.get("/v1/channels/threads-1/messages", params={"thread_ts": root}).json()["items"]
    assert [item["text"] for item in items][:2] == ["a root", "what is this thread about?"]
    assert items[-1]["is_bot"]
    entries = client.get("/v1/channels/threads-1/context", params={"thread_ts": root}).json()["items"]
    assert entries[0]["type"] == "message"
    assert client.get("/v1/channels/threads-1/context").json()["items"] == []


def test_history_pages_from_the_newest_to_the_oldest(client):
    for number in range(7):
        post(client, "paging", f"message {number}", respond=False)
    seen, cursor = [], None
    while True:
        params = {"limit": 3, "order": "desc", **({"cursor": cursor} if cursor else {})}
        page = client.get("/v1/channels/paging/messages", params=params).json()
        seen += [item["text"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"message {number}" for number in reversed(range(7))]
    newest = client.get("/v1/channels/paging/messages", params={"limit": 2}).json()["items"]
    assert [item["text"] for item in newest] == ["message 5", "message 6"]


def test_history_is_filtered_by_user_and_time(client):
    post(client, "filters", "from amy", respond=False)
    middle = post(client, "filters", "from tom", user="tom", respond=False).json()["message"]
    post(client, "filters", "from amy again", respond=False)
    texts = lambda **params: [item["text"] for item in client.get("/v1/channels/filters/messages", params=params).json()["items"]]
    assert texts(user="tom") == ["from tom"]
    assert texts(before=middle["ts"]) == ["from amy"]
    assert texts(after=middle["ts"]) == ["from amy again"]
    assert texts(after="2020-01-01T00:00:00+01:00", before="2020-01-02T00:00:00Z") == []


def test_a_channel_that_does_not_exist_is_not_found(client):
    for path in ("", "/messages"):
        assert_problem(client.get(f"/v1/channels/nobody-here{path}"), 404, "not_found")


def test_channels_are_listed_page_by_page(client):
    names, cursor = [], None
    while True:
        page = client.get("/v1/channels", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        names += [item["channel"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == sorted(set(names))
    assert {"general", "ops"} <= set(names)


def test_a_context_can_be_put_aside(client, server):
    post(client, "fresh-start", "remember that we like tea")
    report = client.delete("/v1/channels/fresh-start/context").json()
    assert report["status"] == "archived"
    assert (server.workspace / report["kept_as"]).is_file()
    items = client.get("/v1/channels/fresh-start/context").json()["items"]
    assert not [item for item in items if item["type"] == "message"]
    body = post(client, "fresh-start", "hello").json()
    assert body["turn"]["context_messages"] <= 2


# --- prompt ------------------------------------------------------------------------------------------------------------------


def test_the_prompt_preview_changes_nothing_and_names_its_sources(client, server):
    post(client, "preview", "remember that the printer is on floor 3", respond=True)
    files = lambda: {str(path): path.read_bytes() for path in (server.workspace / "preview").rglob("*") if path.is_file()}
    before = files()
    one = client.get("/v1/channels/preview/prompt", params={"text": "where is the printer?"}).json()
    two = client.get("/v1/channels/preview/prompt", params={"text": "where is the printer?"}).json()
    assert files() == before
    assert one["fingerprint"] == two["fingerprint"]
    assert one["system"] == two["system"]
    sections = {section["name"]: section for section in one["sections"]}
    assert "preview/MEMORY.md" in sections["memory"]["sources"]
    assert "floor 3" in one["system"]
    assert one["messages"][-1]["role"] == "user"
    assert "where is the printer?" in one["messages"][-1]["text"]
    assert one["tokens"] > 0


def test_the_preview_shows_what_the_turn_then_sends(client, server):
    post(client, "foreseen", "good morning", respond=False)
    preview = client.get("/v1/channels/foreseen/prompt", params={"text": "hello bot"}).json()
    assert any("good morning" in message["text"] for message in preview["messages"])
    post(client, "foreseen", "hello bot")
    sent = json.loads((server.workspace / "foreseen" / "last_prompt.json").read_text("utf-8"))
    assert sent["system"] == preview["system"]


# --- search and index --------------------------------------------------------------------------------------------------------


def test_search_finds_by_meaning_with_exact_lines(client, server):
    found = client.get("/v1/search", params={"q": "how do we get back to the old version?", "channel": "ops"}).json()
    assert found["hits"]
    best = found["hits"][0]
    lines = (server.workspace / best["path"]).read_text("utf-8").split("\n")
    assert "\n".join(lines[best["start_line"] - 1 : best["end_line"]]) == best["text"]
    assert not best["outdated"]
    assert found["index"]["degraded"] == []
    assert found["index"]["pending"] == 0
    assert found["index"]["stale"] is False


def test_a_file_changed_by_an_editor_is_found_within_seconds(client, server):
    path = server.workspace / "memory" / "coffee.md"
    path.write_text("# Kitchen\n\nThe espresso machine is descaled every second Monday, code ZX-4471.\n", "utf-8")
    try:
        for query, line in (("who cleans the coffee maker?", 3), ("ZX-4471", 3)):
            until = time.monotonic() + 15
            while True:
                hits = client.get("/v1/search", params={"q": query}).json()["hits"]
                found = [hit for hit in hits if hit["path"] == "memory/coffee.md"]
                if found:
                    break
                assert time.monotonic() < until, "not found in time"
                time.sleep(0.1)
            assert found[0]["start_line"] <= line <= found[0]["end_line"]
    finally:
        path.unlink()
    until = time.monotonic() + 15
    while any(hit["path"] == "memory/coffee.md" for hit in client.get("/v1/search", params={"q": "ZX-4471"}).json()["hits"]):
        assert time.monotonic() < until, "still found"
        time.sleep(0.1)


def test_search_with_wait_sees_every_earlier_write(client, server):
    for number in range(3):
        (server.workspace / "memory" / f"wait-{number}.md").write_text(f"The unlocking word is xylograph{number}.\n", "utf-8")
        found = client.get("/v1/search", params={"q": f"xylograph{number}", "wait": "true", "mode": "text"}).json()
        assert found["hits"][0]["path"] == f"memory/wait-{number}.md"
        assert found["index"]["stale"] is False


@pytest.mark.parametrize(
    "query",
    ['"', "'; DROP TABLE chunks; --", "(((", "a AND OR NOT", "title:x", "*", "???", "🙂", "x" * 10_000, "\\", "NEAR/3", "\u202e"],
)
def test_any_text_is_a_legal_query(client, query):
    response = client.post("/v1/search", json={"q": query, "scope": "all"})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("query", ["", "   ", "\n"])
def test_an_empty_query_is_refused(client, query):
    assert_problem(client.get("/v1/search", params={"q": query}), 422, "query_empty")


def test_search_bounds_are_checked(client):
    for params in ({"limit": 0}, {"limit": 201}, {"mode": "magic"}, {"collection": "files"}, {"min_score": 2}, {"scope": "x"}):
        assert_problem(client.get("/v1/search", params={"q": "x", **params}), 422, "body_invalid")
    assert_problem(client.post("/v1/search", json={"q": "x", "surprise": 1}), 422, "body_invalid")


def test_collections_and_modes_narrow_a_search(client):
    for mode in ("hybrid", "vector", "text"):
        hits = client.get("/v1/search", params={"q": "deploy", "mode": mode, "collection": "skills"}).json()["hits"]
        assert {hit["collection"] for hit in hits} <= {"skills"}


def test_the_index_reports_its_state(client):
    index = client.post("/v1/index/update", params={"wait": "true"}).json()
    assert index["done"]
    assert index["index"]["collections"]["memory"]["documents"] > 5
    assert client.get("/v1/index").json()["state"] in ("idle", "indexing")


def test_a_broken_document_is_reported_and_hides_no_other(client, server):
    path = server.workspace / "memory" / "latin.md"
    path.write_bytes(b"caf\xe9 opens at nine\n")
    try:
        index = client.post("/v1/index/update", params={"wait": "true"}).json()["index"]
        assert [failure["path"] for failure in index["failed"]] == ["memory/latin.md"]
        assert client.get("/v1/search", params={"q": "opens at nine"}).json()["hits"]
    finally:
        path.unlink()


# --- settings, skills, health, pages -------------------------------------------------------------------------------------------


def test_settings_are_patched_with_etag_and_origin(client):
    before = client.get("/v1/settings")
    patched = client.patch(
        "/v1/settings",
        content=json.dumps({"run_timeout_s": 121}),
        headers={"content-type": "application/merge-patch+json", "if-match": before.headers["etag"]},
    )
    assert patched.status_code == 200, patched.text
    assert patched.json()["values"]["run_timeout_s"] == 121
    assert patched.json()["origins"]["run_timeout_s"] == "file"
    stale = client.patch(
        "/v1/settings",
        content=json.dumps({"run_timeout_s": 130}),
        headers={"content-type": "application/merge-patch+json", "if-match": before.headers["etag"]},
    )
    assert_problem(stale, 412, "precondition_failed")
    removed = client.patch(
        "/v1/settings", content=b'{"run_timeout_s": null}', headers={"content-type": "application/merge-patch+json"}
    )
    assert removed.json()["values"]["run_timeout_s"] == 360


def test_bad_settings_are_refused_all_at_once(client):
    response = client.patch(
        "/v1/settings",
        content=json.dumps({"run_timeout_s": True, "recall": {"limit": "many"}}),
        headers={"content-type": "application/merge-patch+json"},
    )
    body = assert_problem(response, 422, "body_invalid")
    assert {error["loc"][1] for error in body["errors"]} == {"run_timeout_s", "recall.limit"}


def test_skills_are_listed(client):
    skills = client.get("/v1/skills", params={"channel": "ops"}).json()
    assert len(skills["items"]) >= 2
    assert skills["diagnostics"] == []


def test_readiness_names_every_check(client):
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ok",
        "checks": {"volume": "ok", "settings": "ok", "disk": "ok", "index": "ok", "embedder": "ok"},
    }


def test_the_start_page_links_to_what_answers(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http" not in re.sub(r"curl.*?</pre>", "", page.text, flags=re.DOTALL).replace("http-equiv", "")
    for link in re.findall(r'href="([^"]+)"', page.text):
        assert client.get(link.replace("&amp;", "&")).status_code == 200, link


def test_the_openapi_document_names_every_route_and_its_problems(client):
    document = client.get("/openapi.json").json()
    assert {"/v1/channels", "/v1/channels/{channel}/messages", "/v1/search", "/v1/index", "/v1/settings"} <= set(
        document["paths"]
    )
    operation = document["paths"]["/v1/channels/{channel}/messages"]["post"]
    assert {"200", "202", "409", "413", "422", "423", "429", "502", "504", "507"} <= set(operation["responses"])
    for path, operations in document["paths"].items():
        for method, described in operations.items():
            assert described.get("summary") or described.get("description"), f"{method} {path}"


def test_slow_requests_do_not_hold_up_others(client, server):
    """A connection that sends its body byte by byte is one connection's problem."""
    host, port = server.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /v1/channels/slow/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        done = threading.Event()

        def ask():
            assert httpx.get(server.base + "/healthz", timeout=10).status_code == 200
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(10)
