"""Topics, files with versions, team memory and rules over HTTP."""

import json
import threading
import time

import pytest

from tests.bot.test_api import assert_problem


def put_topic(client, name, content="It is so.", summary="how it is", **fields):
    return client.put(f"/v1/topics/{name}", json={"content": content, "summary": summary, **fields})


def search(client, query, **params):
    return client.get("/v1/search", params={"q": query, "wait": "true", **params}).json()["hits"]


# --- topics ------------------------------------------------------------------------------------------------------------------


def test_a_topic_is_written_listed_read_and_found(client, server):
    written = put_topic(client, "Espresso%20Machine", "Descale it every second Monday.", "how to keep it clean")
    assert written.status_code == 200, written.text
    body = written.json()
    assert (body["created"], body["file"], body["entry"]["name"]) == (True, "espresso-machine.md", "Espresso Machine")
    listed = client.get("/v1/topics", params={"q": "espresso"}).json()
    assert [item["file"] for item in listed["items"]] == ["espresso-machine.md"]
    read = client.get("/v1/topics/espresso-machine.md").json()
    assert "Descale it" in read["text"]
    assert read["etag"] == body["etag"]
    assert any(hit["path"] == "memory/espresso-machine.md" for hit in search(client, "when is the coffee maker descaled?"))
    assert (server.workspace / "memory" / "MEMORY.md").read_text("utf-8").count("(espresso-machine.md)") == 1


def test_a_topic_of_a_channel_stays_in_its_channel(client):
    assert put_topic(client, "Heron%20Plan", "The heron lands at dawn.", "secret", channel="ops").status_code == 200
    assert_problem(client.get("/v1/topics/Heron%20Plan"), 404, "not_found")
    assert client.get("/v1/topics/Heron%20Plan", params={"channel": "ops"}).status_code == 200
    assert_problem(client.get("/v1/topics/Heron%20Plan", params={"channel": "general"}), 404, "not_found")
    assert not any("heron" in hit["text"] for hit in search(client, "heron lands at dawn", channel="general"))


def test_pinned_topics_are_not_removed_and_removed_ones_stay_away(client, server):
    put_topic(client, "Otter", "Otters swim.", "otters", pin=True)
    assert_problem(client.delete("/v1/topics/Otter"), 409, "pinned")
    unpinned = client.post("/v1/topics/Otter/unpin").json()
    assert (unpinned["before"]["pinned"], unpinned["after"]["pinned"]) == (True, False)
    removed = client.delete("/v1/topics/Otter").json()
    assert removed["file_kept"]
    assert (server.workspace / "memory" / "otter.md").is_file()
    assert_problem(client.get("/v1/topics/Otter"), 404, "not_found")
    assert "Otter" not in [entry["name"] for entry in client.post("/v1/topics/repair").json()["added"]]
    assert_problem(client.get("/v1/topics/Otter"), 404, "not_found")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("%20", "topic_blank"),
        ("Bad%5DTopic", "topic_structural"),
        ("two%09parts", "topic_structural"),
        ("!!!", "topic_no_slug"),
        ("MEMORY", "topic_reserved"),
        ("Last%20Session%20Recap", "topic_retired"),
    ],
)
def test_a_bad_topic_name_is_refused_with_its_code(client, name, code):
    assert_problem(put_topic(client, name), 422, code)


def test_a_topic_may_have_a_slash_in_its_name(client):
    assert put_topic(client, "TCP%2FIP", "Layers.", "net").json()["file"] == "tcpip.md"
    assert client.get("/v1/topics/TCP%2FIP").json()["entry"]["name"] == "TCP/IP"
    assert client.post("/v1/topics/TCP%2FIP/pin").json()["after"]["pinned"]


def test_an_ambiguous_name_lists_the_candidates(client):
    put_topic(client, "Zeta%20One")
    put_topic(client, "Zeta%20Two")
    body = assert_problem(client.get("/v1/topics/zeta"), 409, "ambiguous")
    assert {candidate["file"] for candidate in body["candidates"]} == {"zeta-one.md", "zeta-two.md"}


def test_a_stale_etag_is_a_conflict_with_a_diff(client):
    first = put_topic(client, "Raven", "Ravens count.", "birds").json()["etag"]
    put_topic(client, "Raven", "Ravens count to five.", "birds", mode="replace")
    body = assert_problem(
        put_topic(client, "Raven", "Ravens sing.", "birds", mode="replace", expected_etag=first), 412, "precondition_failed"
    )
    assert "Ravens" in body["diff"]
    assert body["etag"] != first


def test_a_secret_is_refused_and_not_echoed(client, server):
    secret = "AKIA" + "IOSFODNN7EXAMPL3"
    body = assert_problem(put_topic(client, "Keys", f"the key is {secret}", "keys"), 422, "secret_detected")
    assert secret not in json.dumps(body)
    assert not (server.workspace / "memory" / "keys.md").exists()
    response = client.post("/v1/files/MEMORY.md/append", json={"text": f"key: {secret}"})
    assert_problem(response, 422, "secret_detected")


def test_the_shared_merge_only_plans_unless_told(client, server):
    plan = client.post("/v1/topics/merge-shared").json()
    assert plan["steps"]
    assert not plan["merged"]
    assert not (server.workspace / ".agents").exists()


def test_rules_and_hand_over_are_readable(client, server):
    (server.workspace / "memory.jsonc").write_text(
        '{\n  // ours\n  "always_ask": ["Salaries"],\n  "max_lines": "many",\n}\n', "utf-8"
    )
    try:
        rules = client.get("/v1/rules").json()
        assert rules["always_ask"] == ["Salaries"]
        assert [(d["key"], d["line"]) for d in rules["diagnostics"]] == [("max_lines", 4)]
        assert rules["values"]["max_lines"] == 300
    finally:
        (server.workspace / "memory.jsonc").unlink()
    assert client.get("/v1/handoff", params={"channel": "general"}).status_code == 200


# --- files -------------------------------------------------------------------------------------------------------------------


def put_file(client, path, text, **headers):
    return client.put(f"/v1/files/{path}", content=text.encode(), headers={"content-type": "text/markdown", **headers})


def test_a_file_is_created_read_by_lines_replaced_and_restored(client):
    path = "memory/lamp.md"
    assert_problem(put_file(client, path, "one\n"), 428, "precondition_required")
    created = put_file(client, path, "one\ntwo\nthree\n", **{"if-none-match": "*"})
    assert created.status_code == 201, created.text
    assert_problem(put_file(client, path, "x\n", **{"if-none-match": "*"}), 412, "precondition_failed")
    read = client.get(f"/v1/files/{path}", params={"start_line": 2, "end_line": 2})
    assert (read.text, read.headers["x-total-lines"]) == ("two\n", "3")
    assert read.headers["etag"] == created.headers["etag"]
    assert put_file(client, path, "changed\n", **{"if-match": read.headers["etag"]}).status_code == 200
    stale = assert_problem(put_file(client, path, "late\n", **{"if-match": read.headers["etag"]}), 412, "precondition_failed")
    assert "+late" in stale["diff"]
    assert "-changed" in stale["diff"]
    versions = client.get(f"/v1/files/{path}/versions").json()["items"]
    assert client.get(f"/v1/files/{path}/versions/{versions[0]['id']}").text == "one\ntwo\nthree\n"
    assert "-one" in client.get(f"/v1/files/{path}/diff", params={"from": versions[0]["id"]}).text
    assert client.post(f"/v1/files/{path}/restore", json={"version": versions[0]["id"]}).status_code == 200
    assert client.get(f"/v1/files/{path}").text == "one\ntwo\nthree\n"
    current = client.get(f"/v1/files/{path}").headers["etag"]
    assert client.delete(f"/v1/files/{path}", headers={"if-match": current}).status_code == 200
    assert_problem(client.get(f"/v1/files/{path}"), 404, "not_found")


def test_appends_of_many_writers_are_all_there(client):
    def append(number):
        response = client.post("/v1/files/memory/tally.md/append", json={"text": f"- entry {number}"})
        assert response.status_code == 200, response.text

    threads = [threading.Thread(target=append, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = client.get("/v1/files/memory/tally.md").text.splitlines()
    assert sorted(lines) == sorted(f"- entry {number}" for number in range(20))


@pytest.mark.parametrize(
    "path", ["general/log.jsonl", "settings.json", "general/context.jsonl", "general/last_prompt.json", "README.md"]
)
def test_machine_files_are_not_writable(client, path):
    assert_problem(put_file(client, path, "x", **{"if-none-match": "*"}), 403, "forbidden")


@pytest.mark.parametrize(
    "path", [".recalld/VERSION", "..%2F..%2Fetc%2Fpasswd", "memory/..%2Fx.md", "memory//x.md", "%2Fetc%2Fpasswd", ".git/x"]
)
def test_paths_outside_are_refused(client, path):
    response = client.get(f"/v1/files/{path}")
    assert response.status_code in (403, 404, 422)
    assert response.json()["code"] in ("forbidden", "not_found", "body_invalid")


def test_files_are_listed_by_glob_page_by_page(client):
    seen, cursor = [], None
    while True:
        params = {"glob": "*.md", "prefix": "memory/", "limit": 4, **({"cursor": cursor} if cursor else {})}
        page = client.get("/v1/files", params=params).json()
        seen += [item["path"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(set(seen))
    assert "memory/deploy-process.md" in seen


def test_a_file_of_more_than_a_mebibyte_may_be_written_and_one_over_four_not(client):
    big = "word " * 300_000
    assert put_file(client, "scratchpad/x", big, **{"if-none-match": "*"}).status_code == 403
    assert put_file(client, "ops/scratch/big.md", big, **{"if-none-match": "*"}).status_code == 201
    assert_problem(put_file(client, "ops/scratch/huge.md", big * 4, **{"if-none-match": "*"}), 413, "too_large")


def test_every_change_is_in_the_audit_without_its_content(client):
    client.post("/v1/files/memory/audited.md/append", json={"text": "a very particular sentence"})
    lines = client.get("/v1/audit", params={"name": "memory/audited.md"}).json()["items"]
    assert lines[0]["by"] == "http"
    assert "particular" not in json.dumps(lines)


def test_an_appended_file_is_searchable_at_once(client):
    client.post("/v1/files/memory/quick.md/append", json={"text": f"The quokka sleeps at {time.time_ns()}."})
    assert search(client, "where does the quokka sleep?")[0]["path"] == "memory/quick.md"


# --- team --------------------------------------------------------------------------------------------------------------------


def test_the_team_s_memory_lives_over_http(client):
    base = "/v1/channels/ops/team"
    assert not any(log["entries"] for log in client.get(f"{base}/status").json()["logs"])
    assert client.post(f"{base}/init").json()["created"]
    assert client.post(f"{base}/init").json()["created"] == []
    noted = client.post(f"{base}/remember", json={"note": "the canary takes ten minutes"}).json()
    assert "canary" in noted["text"]
    decision = client.post(f"{base}/decisions", json={"title": "Use flags", "body": "We use feature flags."}).json()
    assert decision["slug"] == "use-flags"
    assert client.get(f"{base}/decisions").json()["items"][0]["id"] == decision["id"]
    assert client.get(f"{base}/decisions/{decision['id']}").json()["title"] == "Use flags"
    entry = {"role": "dev", "stage": "build", "done": "built it", "next_step": "ship it"}
    assert "built it" in client.post(f"{base}/entries", json=entry).json()["text"]
    assert_problem(client.put(f"{base}/index", json={"text": "# Team\n" + "- line\n" * 61}), 409, "index_full")
    assert_problem(client.put(f"{base}/index", json={"text": "# Team\n", "role": "dev"}), 403, "forbidden")
    assert client.put(f"{base}/index", json={"text": "# Team\n- one fact\n"}).json()["etag"]
    run = client.post(f"{base}/runs", json={"goal": "ship it"}).json()
    event = {"event": {"type": "run.finished", "outcome": "ok"}, "by": "agent:orchestrator"}
    wrong = client.post(f"{base}/runs/{run['run_id']}/events", json={**event, "seq": 5, "prev": run["head"]})
    assert_problem(wrong, 409, "conflict")
    right = client.post(f"{base}/runs/{run['run_id']}/events", json={**event, "seq": 2, "prev": run["head"]})
    assert right.json()["seq"] == 2
    assert client.get(f"{base}/runs/{run['run_id']}").json()["outcome"] == "ok"
    assert client.get(f"{base}/runs").json()["items"][0]["run_id"] == run["run_id"]
    status = client.get(f"{base}/status").json()
    assert status["last_run"] == run["run_id"]
    assert client.post(f"{base}/compact").json()["index"] is not None


def test_a_bad_role_is_refused(client):
    for role, status, code in (("../x", 422, "role_invalid"), ("nobody-knows", 404, "role_unknown")):
        assert_problem(client.post("/v1/channels/ops/team/remember", json={"note": "x", "role": role}), status, code)
