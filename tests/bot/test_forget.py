"""Forgetting over HTTP is complete: a search over every byte of the volume finds nothing; the doctor finds what is wrong."""

import json
import shutil

import pytest

from tests.bot.running import ROOT, RunningServer, post
from tests.bot.test_api import assert_problem
from tests.bot.test_serving import run_command

WORD = "zyzzogeton"  # a word that nothing else on the volume holds


@pytest.fixture
def own(tmp_path):
    shutil.copytree(ROOT / "examples" / "workspace", tmp_path / "workspace")
    with RunningServer(tmp_path / "workspace", sweep_s=1) as server:
        yield server.wait_until_warm()


def places_with(workspace, word):
    needle = word.encode()
    return sorted(
        str(path.relative_to(workspace)) for path in workspace.rglob("*") if path.is_file() and needle in path.read_bytes()
    )


def test_a_forgotten_file_is_nowhere_on_the_volume_any_more(own):
    with own.client() as client:
        client.post("/v1/files/memory/bugs.md/append", json={"text": f"The {WORD} is a leafhopper."})
        client.post("/v1/files/memory/bugs.md/append", json={"text": "It lives in South America."})
        assert WORD in post(client, "general", f"what is a {WORD}?").json()["reply"]["text"]
        hits = client.get("/v1/search", params={"q": "leafhopper", "wait": "true"}).json()["hits"]
        assert hits[0]["path"] == "memory/bugs.md"
        assert any(".recalld/index" in place for place in places_with(own.workspace, "leafhopper"))

        plan = client.post("/v1/forget", json={"path": "memory/bugs.md"}).json()
        assert plan["receipt"]["dry_run"]
        assert (own.workspace / "memory" / "bugs.md").exists()

        body = {"path": "memory/bugs.md", "include_log": True, "dry_run": False}
        done = client.post("/v1/forget", json=body).json()
        assert done["index"] == "purged"
        assert done["receipt"]["documents"] == ["memory/bugs.md"]
        assert {removed["kind"] for removed in done["receipt"]["removed"]} >= {"document", "version"}
        found = client.get("/v1/search", params={"q": "leafhopper", "wait": "true"}).json()["hits"]
        assert not any("leafhopper" in hit["text"] for hit in found)
    assert places_with(own.workspace, "leafhopper") == []


def test_forgetting_a_channel_with_its_log_leaves_nothing_of_it(own):
    with own.client() as client:
        post(client, "doomed", f"remember that the {WORD} is blue")
        post(client, "doomed", "what colour is it?")
        done = client.post("/v1/forget", json={"channel": "doomed", "include_log": True, "dry_run": False}).json()
        assert done["index"] == "purged"
        assert "doomed" in done["receipt"]["channels"]
    assert places_with(own.workspace, WORD) == []


def test_passages_are_forgotten_by_a_query_and_the_rest_of_the_file_stays(own):
    with own.client() as client:
        client.post("/v1/files/memory/pets.md/append", json={"text": "# Cats\n\nThe cat is called Miso."})
        client.post("/v1/files/memory/pets.md/append", json={"text": f"# Secret\n\nThe {WORD} password hint is lemon."})
        done = client.post("/v1/forget", json={"query": f"{WORD} password hint", "dry_run": False}).json()
        assert done["receipt"]["removed"]
    assert places_with(own.workspace, WORD) == []
    assert "Miso" in (own.workspace / "memory" / "pets.md").read_text("utf-8")


@pytest.mark.parametrize("body", [{}, {"path": "a.md", "channel": "b"}, {"path": ""}, {"query": "x", "path": "y"}, {"colour": 1}])
def test_a_forget_that_is_not_plain_is_refused(client, body):
    assert_problem(client.post("/v1/forget", json=body), 422, "body_invalid")


def test_forgetting_what_is_not_there_says_so(client):
    assert_problem(client.post("/v1/forget", json={"path": "memory/never-was.md", "dry_run": False}), 404, "not_found")


def test_the_doctor_finds_repairs_and_then_finds_nothing(tmp_path):
    workspace = tmp_path / "workspace"
    shutil.copytree(ROOT / "examples" / "workspace", workspace)
    assert run_command("doctor", "-w", str(workspace)).returncode == 0
    index = workspace / "memory" / "MEMORY.md"
    index.write_text(index.read_text("utf-8") + "- [Ghost](ghost.md) 2026-01-01 -- gone\n", "utf-8")
    log = workspace / "ops" / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"ts": "1796000000.0')
    found = json.loads(run_command("doctor", "-w", str(workspace), "--json").stdout)["left"]
    assert {(each["path"], each["fixable"]) for each in found} >= {("memory/MEMORY.md", True), ("ops/log.jsonl", True)}
    assert all(each["line"] for each in found)
    fixed = run_command("doctor", "--fix", "-w", str(workspace))
    assert "repaired" in fixed.stdout
    again = json.loads(run_command("doctor", "--json", "-w", str(workspace)).stdout)["left"]
    assert [each for each in again if each["fixable"]] == []


def test_the_doctor_takes_old_secrets_out(tmp_path):
    workspace = tmp_path / "workspace"
    shutil.copytree(ROOT / "examples" / "workspace", workspace)
    secret = "ghp_" + "wJ4rT9xQ2mL7vB3nK8" + "pZ5sD1fG6hY0cU9eR2"
    log = workspace / "ops" / "log.jsonl"
    line = json.dumps({"ts": "1795999999.000001", "user": "amy", "text": f"the token is {secret}"})
    log.write_text(log.read_text("utf-8") + line + "\n", "utf-8")
    found = run_command("doctor", "--secrets", "-w", str(workspace))
    assert found.returncode == 1
    assert "ops/log.jsonl" in found.stdout
    assert secret not in found.stdout
    assert run_command("doctor", "--secrets", "--fix", "-w", str(workspace)).returncode == 0
    assert places_with(workspace, secret) == []
