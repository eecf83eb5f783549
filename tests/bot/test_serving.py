"""Servers of their own: starting, stopping, being killed, many clients at once, damaged volumes."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal

import httpx
import pytest

from tests.bot.running import ROOT, RunningServer, post
from tests.bot.test_api import assert_problem


@pytest.fixture
def workspace(tmp_path):
    shutil.copytree(ROOT / "examples" / "workspace", tmp_path / "workspace")
    return tmp_path / "workspace"


def log_lines(workspace, channel):
    return [json.loads(line) for line in (workspace / channel / "log.jsonl").read_bytes().split(b"\n") if line]


def test_a_fact_is_remembered_by_another_process_after_a_restart(workspace):
    with RunningServer(workspace) as server, server.client() as client:
        told = post(client, "general", "remember that the deploy window is Tuesday 14:00 UTC").json()
        place = told["reply"]["citations"][0]
        assert server.stop() == 0
    with RunningServer(workspace) as server, server.client() as client:
        reply = post(client, "general", "when can we deploy?", user="tom").json()["reply"]
    assert "Tuesday 14:00 UTC" in reply["text"]
    assert place in reply["citations"]
    line = (workspace / place["path"]).read_text("utf-8").split("\n")[place["start_line"] - 1]
    assert "Tuesday 14:00 UTC" in line


def test_what_was_acknowledged_survives_a_kill(workspace):
    server = RunningServer(workspace).start()
    with server.client() as client:
        acknowledged = [
            post(client, "killed", f"message {number}", respond=False).json()["message"]["ts"] for number in range(20)
        ]
        server.kill()
    with RunningServer(workspace) as again, again.client() as client:
        items = client.get("/v1/channels/killed/messages").json()["items"]
        assert [item["ts"] for item in items] == acknowledged
        assert post(client, "killed", "and on it goes", respond=False).status_code == 202


def test_five_hundred_posts_at_once_over_twenty_channels_are_each_logged_once_and_in_order(workspace):
    channels = [f"load-{number}" for number in range(20)]

    async def run(base):
        limits = httpx.Limits(max_connections=500)
        async with httpx.AsyncClient(base_url=base, timeout=240, limits=limits) as client:
            return await asyncio.gather(*(one(client, number) for number in range(500)))

    async def one(client, number):
        channel = channels[number % 20]
        body = {"text": f"message {number} of the load", "user": f"user-{number % 7}", "respond": number % 5 == 0}
        response = await client.post(f"/v1/channels/{channel}/messages", json=body)
        return channel, response

    with RunningServer(workspace) as server:
        server.wait_until_warm()
        results = asyncio.run(run(server.base))
    assert Counter(response.status_code for _, response in results) == {202: 400, 200: 100}
    for channel in channels:
        bodies = [response.json() for name, response in results if name == channel]
        acknowledged = {body["message"]["ts"]: body["message"]["text"] for body in bodies}
        logged = [line for line in log_lines(workspace, channel) if not line["isBot"]]
        assert {line["ts"]: line["text"] for line in logged} == acknowledged
        assert len(logged) == 25
        stamps = [Decimal(line["ts"]) for line in log_lines(workspace, channel)]
        assert stamps == sorted(stamps)
        answered = [ts for line in log_lines(workspace, channel) if line["isBot"] for ts in line["answers"]]
        assert Counter(answered) == Counter(body["message"]["ts"] for body in bodies if body["reply"] is not None)


def test_the_first_search_is_answered_though_the_model_still_loads(workspace):
    with RunningServer(workspace) as server:
        server.wait_until_warm()
    with RunningServer(workspace) as server, server.client() as client:
        found = client.get("/v1/search", params={"q": "descaling postgres connections", "scope": "all"}).json()
        assert any(hit["path"] == "memory/postgres-runbook.md" for hit in found["hits"])
        assert set(found["index"]["degraded"]) <= {"vector"}
        server.wait_until_warm()
        later = client.get("/v1/search", params={"q": "descaling postgres connections", "scope": "all"}).json()
        assert later["index"]["degraded"] == []


def test_a_broken_settings_file_is_reported_and_left_alone(workspace):
    (workspace / "settings.json").write_text('{"model": "builtin/recall", ', "utf-8")
    before = (workspace / "settings.json").read_bytes()
    with RunningServer(workspace) as server, server.client() as client:
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert "broken" in ready.json()["checks"]["settings"]
        settings = client.get("/v1/settings").json()
        assert settings["diagnostics"][0]["line"] == 1
        assert settings["values"]["model"] == "builtin/recall"
        refused = client.patch(
            "/v1/settings", content=b'{"run_timeout_s": 9}', headers={"content-type": "application/merge-patch+json"}
        )
        assert_problem(refused, 503, "degraded")
        assert post(client, "general", "still here?").status_code == 200
    assert (workspace / "settings.json").read_bytes() == before


def test_a_torn_last_line_is_kept_aside_and_the_log_goes_on(workspace):
    log = workspace / "general" / "log.jsonl"
    torn = b'{"ts": "1796000000.000001", "user": "amy", "text": "half a'
    log.write_bytes(log.read_bytes() + torn)
    before = log.read_bytes()
    with RunningServer(workspace) as server, server.client() as client:
        assert post(client, "general", "after the crash", respond=False).status_code == 202
        items = client.get("/v1/channels/general/messages", params={"limit": 200}).json()["items"]
        assert items[-1]["text"] == "after the crash"
        assert not any("half a" in item["text"] for item in items)
        assert client.get("/v1/channels/general").json()["bad_lines"] == 1
    assert log.read_bytes().startswith(before + b"\n")
    assert [path.read_bytes() for path in (workspace / ".recalld" / "quarantine").iterdir()] == [torn]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_an_unsafe_log_is_refused_at_once_and_others_go_on(workspace, kind):
    (workspace / "trap").mkdir()
    log = workspace / "trap" / "log.jsonl"
    outside = workspace.parent / "outside.txt"
    outside.write_text("", "utf-8")
    {"link": lambda: log.symlink_to(outside), "fifo": lambda: os.mkfifo(log), "folder": log.mkdir}[kind]()
    with RunningServer(workspace) as server, server.client() as client:
        assert_problem(post(client, "trap", "x"), 409, "unsafe_object")
        assert post(client, "general", "hello").status_code == 200
    assert outside.read_text("utf-8") == ""


def test_a_link_in_place_of_a_channel_folder_is_refused(workspace):
    (workspace.parent / "elsewhere").mkdir()
    (workspace / "linked").symlink_to(workspace.parent / "elsewhere")
    with RunningServer(workspace) as server, server.client() as client:
        assert_problem(post(client, "linked", "x"), 409, "unsafe_object")
    assert list((workspace.parent / "elsewhere").iterdir()) == []


def run_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "bot", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["serve", "--workspace", "/nonexistent/ws"], {}, "does not exist: create the folder or mount the volume"),
        (["serve", "--workspace", __file__], {}, "is not a folder"),
        (["serve", "--host", "0.0.0.0"], {}, "not a loopback address"),  # noqa: S104 - it is refused
        (["serve"], {"RECALLD_PORT": "many"}, "RECALLD_PORT"),
        (["search", "  ", "--workspace", "{workspace}"], {}, "query"),
        (["chat", "../x", "hello", "--workspace", "{workspace}"], {}, "is not a channel id"),
    ],
)
def test_a_refusal_is_one_clear_sentence_and_exit_code_1(workspace, arguments, environment, says):
    done = run_command(*(argument.format(workspace=workspace) for argument in arguments), **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("recalld: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1


def test_a_workspace_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".recalld").write_text("a file where a folder must be", "utf-8")
    done = run_command("serve", "--workspace", str(tmp_path / "ws"))
    assert done.returncode == 1
    assert "can't be used" in done.stderr


def test_a_newer_layout_is_refused(workspace):
    (workspace / ".recalld").mkdir()
    (workspace / ".recalld" / "VERSION").write_text("99\n", "utf-8")
    done = run_command("index", "status", "--workspace", str(workspace))
    assert done.returncode == 1
    assert "newer recalld" in done.stderr


def test_a_taken_port_is_a_clear_refusal(workspace):
    with RunningServer(workspace) as server:
        port = server.base.rpartition(":")[2]
        done = run_command("serve", "--workspace", str(workspace), "--port", port)
        assert done.returncode == 1
        assert "--port" in done.stderr


def test_a_wrong_usage_is_exit_code_2():
    assert run_command("serve", "--colour", "red").returncode == 2


def test_the_command_line_works_beside_a_running_server_and_without_one(workspace):
    (workspace / "memory" / "badger.md").write_text("The badger sleeps under the third oak.\n", "utf-8")
    with RunningServer(workspace, sweep_s=600) as server:
        server.wait_until_warm()
        (workspace / "memory" / "otter.md").write_text("The otter swims before sunrise.\n", "utf-8")
        assert run_command("index", "update", "-w", str(workspace)).returncode == 0
        with server.client() as client:
            hits = client.get("/v1/search", params={"q": "when does the otter swim?"}).json()["hits"]
            assert hits[0]["path"] == "memory/otter.md"
    found = run_command("search", "where does the badger sleep?", "-w", str(workspace), "--json")
    hit = json.loads(found.stdout)["hits"][0]
    assert (hit["path"], hit["start_line"], hit["end_line"]) == ("memory/badger.md", 1, 1)
    status = json.loads(run_command("index", "status", "-w", str(workspace), "--json").stdout)
    assert status["pending"] == 0
    assert status["collections"]["memory"]["documents"] > 5


def test_chat_remembers_across_processes(workspace):
    told = run_command("chat", "general", "remember that the office plant is called Fern", "-w", str(workspace), "--json")
    assert json.loads(told.stdout)["reply"]["citations"]
    asked = run_command("chat", "general", "what is the office plant called?", "-w", str(workspace))
    assert "Fern" in asked.stdout
    assert "general/MEMORY.md#L" in asked.stdout


def test_a_conversation_can_be_piped_in(workspace):
    done = subprocess.run(
        [sys.executable, "-m", "bot", "chat", "general", "-w", str(workspace)],
        cwd=ROOT,
        input="remember that the wifi is on floor two\nwhere is the wifi?\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("floor two") == 2


def test_the_indexer_ends_with_a_killed_server(workspace):
    server = RunningServer(workspace).start()
    server.wait_until_warm()
    children = subprocess.run(
        ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    assert children
    server.kill()
    until = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in children):  # noqa: PTH110 - a process table
        assert time.monotonic() < until, "an indexer was left behind"
        time.sleep(0.1)


def test_a_stop_lets_a_running_post_end(workspace):
    with RunningServer(workspace) as server:
        server.wait_until_warm()

        async def stop_in_between():
            async with httpx.AsyncClient(base_url=server.base, timeout=60) as client:
                asking = [
                    asyncio.create_task(
                        client.post(f"/v1/channels/stop-{n}/messages", json={"text": "remember that x is y", "user": "amy"}),
                    )
                    for n in range(5)
                ]
                while not (workspace / "stop-4" / "log.jsonl").exists():
                    await asyncio.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*asking)

        responses = asyncio.run(stop_in_between())
        assert [response.status_code for response in responses] == [200] * 5
        assert server.process.wait(30) == 0


def test_shared_topics_are_written_searched_and_cited_where_they_lie(workspace):
    (workspace / "memory.jsonc").write_text('{"shared_dir": true}', "utf-8")
    with RunningServer(workspace) as server, server.client() as client:
        server.wait_until_warm()
        plan = client.post("/v1/topics/merge-shared", params={"dry_run": "false"}).json()
        assert plan["merged"]
        body = {"content": "The narwhal lives in fjords.", "summary": "about narwhals"}
        assert client.put("/v1/topics/Narwhal", json=body).status_code == 200
        hits = client.get("/v1/search", params={"q": "where does the narwhal live?", "wait": "true"}).json()["hits"]
        assert hits[0]["path"] == ".agents/memory/narwhal.md"
        prompt = client.get("/v1/channels/general/prompt", params={"text": "hello"}).json()
        assert ".agents/memory/MEMORY.md" in [source for section in prompt["sections"] for source in section["sources"]]
        assert ".agents/memory/narwhal.md" in post(client, "general", "where does the narwhal live?").json()["reply"]["text"]


def test_commands_work_when_the_model_can_not_be_had(workspace):
    (workspace / "settings.json").write_text('{"model": "nobody/knows"}', "utf-8")
    with RunningServer(workspace) as server, server.client() as client:
        assert_problem(post(client, "general", "hello"), 502, "model_error")
        assert post(client, "general", "/help").json()["reply"]["text"].startswith("/memory")
        assert "fresh conversation" in post(client, "general", "/new").json()["reply"]["text"]


def test_secrets_are_taken_out_of_the_log_unless_the_settings_say_not_to(workspace):
    secret = "ghp_" + "wJ4rT9xQ2mL7vB3nK8" + "pZ5sD1fG6hY0cU9eR2"
    with RunningServer(workspace) as server, server.client() as client:
        logged = post(client, "general", f"the token is {secret}", respond=False).json()["message"]["text"]
        assert logged == "the token is [redacted:github_token]"
        assert secret not in (workspace / "general" / "log.jsonl").read_text("utf-8")
        headers = {"content-type": "application/merge-patch+json"}
        assert client.patch("/v1/settings", content=b'{"redact_secrets": false}', headers=headers).status_code == 200
        assert secret in post(client, "general", f"again: {secret}", respond=False).json()["message"]["text"]


def test_the_rules_are_shown_and_made_on_request(workspace):
    shown = run_command("rules", "-w", str(workspace))
    assert shown.returncode == 0
    assert not (workspace / "memory.jsonc").exists()
    assert run_command("rules", "--init", "-w", str(workspace)).returncode == 0
    assert "always_persist" in (workspace / "memory.jsonc").read_text("utf-8")
    (workspace / "memory.jsonc").write_text('{\n"max_lines": true\n}', "utf-8")
    broken = run_command("rules", "-w", str(workspace))
    assert broken.returncode == 1
    assert "memory.jsonc:2: max_lines" in broken.stdout


def test_broken_settings_are_shown_and_reset_without_loss(workspace):
    (workspace / "settings.json").write_text("{broken", "utf-8")
    shown = run_command("settings", "-w", str(workspace))
    assert shown.returncode == 1
    assert "settings.json:1" in shown.stdout
    assert run_command("settings", "--reset", "-w", str(workspace)).returncode == 0
    assert json.loads((workspace / "settings.json").read_text("utf-8")) == {}
    assert b"{broken" in [path.read_bytes() for path in (workspace / ".recalld" / "quarantine").iterdir()]
    values = json.loads(run_command("settings", "-w", str(workspace), "--json").stdout)["values"]
    assert values["model"] == "builtin/recall"
