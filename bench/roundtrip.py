"""A message's way from the socket to the reply, beside the floor: one durable append, and an HTTP request that does nothing."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from bench.made_up import write_log
from bench.measure import interleave, row, title
from tests.bot.running import ROOT, RunningServer, post


def bare_append(path: Path) -> None:
    """The floor of durability: open, lock, write a line, fsync, close."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, b'{"ts":"1.000001","user":"amy","text":"a message of usual length, give or take","isBot":false}\n')
    os.fsync(fd)
    os.close(fd)


def run() -> None:
    """Print round trips with a short and a long history."""
    title("Message round trip (one client, model builtin/recall)")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        shutil.copytree(ROOT / "examples" / "workspace", workspace)
        write_log(workspace / "long" / "log.jsonl", 100_000)
        with RunningServer(workspace) as server, server.client() as client:
            server.wait_until_warm()
            works = (
                lambda: bare_append(Path(folder) / "floor.jsonl"),
                lambda: client.get("/healthz"),
                lambda: post(client, "short", "what is on the agenda?", respond=False),
                lambda: post(client, "short", "who is on call this week?"),
                lambda: post(client, "long", "who is on call this week?"),
            )
            floor, http, logged, short, long = interleave(works, 40, warm_up=2)
    row("floor: open, flock, write, fsync, close", floor)
    row("floor: HTTP request without work", http)
    row("POST respond=false (logged durably)", logged)
    row("POST with a turn, short history", short)
    row("POST with a turn, 100,000 lines of history", long)
    row("logged post / (floor append + floor HTTP)", f"{logged.p50 / (floor.p50 + http.p50):.2f}")
    row("long history / short history", f"{long.p50 / short.p50:.2f}")
