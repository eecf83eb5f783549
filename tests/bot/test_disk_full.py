"""A full volume over HTTP: a clear 507, nothing acknowledged is lost, and service goes on when there is space again."""

import contextlib
import json
import os
import subprocess

import pytest

from tests.bot.running import RunningServer, post
from tests.bot.test_api import assert_problem


@pytest.fixture
def small_volume(tmp_path):
    """A file system of 16 MiB of its own."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(volume)], capture_output=True, check=False)
    if mounted.returncode:
        assert os.geteuid() != 0, mounted.stderr
        pytest.skip("mounting a small file system needs root")
    yield volume
    subprocess.run(["umount", "-l", str(volume)], check=True)


def fill(path):
    """Take all the space that is left."""
    with path.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)


def post_until_refused(client):
    """The texts that were acknowledged; every other answer is a clear refusal, and there are some."""
    acknowledged = []
    texts = [f"{number} " + "words " * 500 for number in range(30)]
    for text in texts:
        response = post(client, "general", text, respond=False)
        if response.status_code == 202:
            acknowledged.append(text)
        else:
            assert_problem(response, 507, "storage_full")
    assert len(acknowledged) < len(texts)
    return acknowledged


def test_a_full_volume_is_said_and_service_goes_on_when_there_is_space_again(small_volume, tmp_path):
    workspace = small_volume / "workspace"
    workspace.mkdir()
    with RunningServer(workspace, index_uri=tmp_path / "index") as server, server.client() as client:
        assert post(client, "general", "before", respond=False).status_code == 202
        fill(small_volume / "ballast")
        acknowledged = ["before", *post_until_refused(client)]
        for path, body in (
            ("topics/Full", {"content": "x" * 9000, "summary": "s"}),
            ("topics/Fuller", {"content": "y", "summary": "s"}),
        ):
            response = client.put(f"/v1/{path}", json=body)
            if response.status_code != 200:
                assert_problem(response, 507, "storage_full")
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "free" in ready.json()["checks"]["disk"] or ready.json()["checks"]["volume"] != "ok"
        assert client.get("/v1/channels/general/messages", params={"limit": 200}).status_code == 200
        assert client.get("/healthz").status_code == 200
        (small_volume / "ballast").unlink()
        assert post(client, "general", "after", respond=False).status_code == 202
        acknowledged.append("after")
        items = client.get("/v1/channels/general/messages", params={"limit": 200}).json()["items"]
        assert [item["text"] for item in items] == acknowledged
        assert post(client, "general", "/remember space is back").json()["reply"]["text"].startswith("noted")
    lines = (workspace / "general" / "log.jsonl").read_bytes().split(b"\n")
    assert all(json.loads(line) for line in lines if line)
