"""Two servers on one volume, as in a rolling deploy: clients post, write topics and count in the settings while one is killed."""

import json
import random
import shutil
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from persistence.doctor import examine, repair
from persistence.workspace import open_workspace
from tests.bot.running import ROOT, RunningServer

CLIENTS = 8
CHANNELS = ("general", "ops", "busy")
_START_COUNT = 1_000
_REFUSED_FOR_NOW = {423, 429, 503}


@dataclass
class Figures:
    """What happened; `problems` is empty when everything held."""

    posts: int = 0
    topics: int = 0
    counted: int = 0
    unknown_counts: int = 0
    kills: int = 0
    busy: int = 0
    waits_ms: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self):
        waits = sorted(self.waits_ms) or [0.0]
        p99 = waits[int(len(waits) * 0.99) - 1] if len(waits) > 1 else waits[0]
        return (
            f"{self.posts} posts, {self.topics} topic writes and {self.counted} counts acknowledged, {self.kills} kills, "
            f"{self.busy} answers to try again; waits p50 {statistics.median(waits):.0f} ms, p99 {p99:.0f} ms, "
            f"max {waits[-1]:.0f} ms; problems: {self.problems or 'none'}"
        )


class _Client:
    """One client: sends each request to either server, and again with the same ts when a server died under it."""

    def __init__(self, number, servers, stop, seed):
        self.rng = random.Random(f"{seed} {number}")
        self.number = number
        self.servers = servers
        self.stop = stop
        self.posts = {}
        self.marks = []
        self.figures = Figures()

    def run(self):
        ordinal = 0
        while not self.stop.is_set():
            ordinal += 1
            act = self.rng.choices((self.post, self.write_topic, self.count), (7, 2, 2))[0]
            act(ordinal)

    def ask(self, method, path, **options):
        """The answer of either server; None when the server died meanwhile, so that nobody knows."""
        begun = time.monotonic()
        try:
            response = httpx.request(method, self.rng.choice(self.servers).base + path, timeout=30, **options)
        except httpx.TransportError:
            time.sleep(0.05)
            return None
        self.figures.waits_ms.append((time.monotonic() - begun) * 1000)
        if response.status_code in _REFUSED_FOR_NOW:
            self.figures.busy += 1
        elif response.status_code >= 500:
            self.figures.problems.append(f"{method} {path}: {response.status_code} {response.text[:200]}")
        return response

    def post(self, ordinal):
        channel = self.rng.choice(CHANNELS)
        ts = f"{int(time.time())}.{self.number:02}{ordinal % 10_000:04}"
        body = {"text": f"{self.number} says {ordinal}", "user": f"u{self.number}", "ts": ts, "respond": self.rng.random() < 0.1}
        for _ in range(60):
            response = self.ask("POST", f"/v1/channels/{channel}/messages", json=body)
            if response is not None and response.status_code in (200, 202):
                self.posts[channel, ts] = body["text"]
                self.figures.posts += 1
                return
        self.figures.problems.append(f"a post was never taken: {channel} {ts}")

    def write_topic(self, ordinal):
        mark, name = f"mark-{self.number}-{ordinal}", f"topic {self.rng.randrange(4)}"
        response = self.ask("PUT", f"/v1/topics/{name}", json={"content": mark, "summary": f"about {name}"})
        if response is not None and response.status_code == 200:
            self.marks.append((response.json()["file"], mark))
            self.figures.topics += 1

    def count(self, _ordinal):
        read = self.ask("GET", "/v1/settings")
        if read is None or read.status_code != 200:
            return
        headers = {"content-type": "application/merge-patch+json", "if-match": read.headers["etag"]}
        patch = json.dumps({"run_timeout_s": read.json()["values"]["run_timeout_s"] + 1})
        response = self.ask("PATCH", "/v1/settings", content=patch, headers=headers)
        if response is None:
            self.figures.unknown_counts += 1
        elif response.status_code == 200:
            self.figures.counted += 1


def run_tasks(folder, *, seconds, seed, say=lambda _: None):
    """Run for this long in an empty folder; returns the figures of all clients."""
    workspace = folder / "workspace"
    shutil.copytree(ROOT / "examples" / "workspace", workspace)
    (workspace / "settings.json").write_text(json.dumps({"run_timeout_s": _START_COUNT}), "utf-8")
    servers = [RunningServer(workspace, sweep_s=2), RunningServer(workspace, sweep_s=2)]
    for server in servers:
        server.start()
    stop = threading.Event()
    clients = [_Client(number, servers, stop, seed) for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    kills = _kill_again_and_again(servers[1], seconds, random.Random(seed), say)
    stop.set()
    for thread in threads:
        thread.join(120)
    total = _sum(clients)
    total.kills = kills
    total.problems += [f"a client hangs: {thread.name}" for thread in threads if thread.is_alive()]
    for server in servers:
        server.stop()
        server.process.stdout.close()
    total.problems += _check(workspace, clients, total)
    return total


def _kill_again_and_again(server, seconds, rng, say):
    until, kills = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        time.sleep(rng.uniform(1.0, 3.0))
        server.kill()
        server.start()
        kills += 1
        say(f"kill {kills}")
    return kills


def _sum(clients):
    total = Figures()
    for client in clients:
        figures = client.figures
        for name in ("posts", "topics", "counted", "unknown_counts", "busy"):
            setattr(total, name, getattr(total, name) + getattr(figures, name))
        total.waits_ms += figures.waits_ms
        total.problems += figures.problems
    return total


def _check(workspace, clients, total):
    problems = []
    for channel in CHANNELS:
        lines = [json.loads(line) for line in (workspace / channel / "log.jsonl").read_bytes().split(b"\n") if line]
        times = Counter(line["ts"] for line in lines)
        problems += [f"{channel} {ts} is in the log {number} times" for ts, number in times.items() if number > 1]
        texts = {line["ts"]: line["text"] for line in lines}
        wanted = {ts: text for client in clients for (name, ts), text in client.posts.items() if name == channel}
        problems += [f"{channel} {ts} was acknowledged and is not there" for ts, text in wanted.items() if texts.get(ts) != text]
    counted = json.loads((workspace / "settings.json").read_text("utf-8"))["run_timeout_s"] - _START_COUNT
    if not total.counted <= counted <= total.counted + total.unknown_counts:
        problems.append(
            f"{total.counted} counts were acknowledged, {total.unknown_counts} are unknown, the settings say {counted}"
        )
    for client in clients:
        for file, mark in client.marks:
            if f"{mark}\n" not in (workspace / "memory" / file).read_text("utf-8"):
                problems.append(f"{mark} was acknowledged and is not in {file}")
    return problems + _check_with_doctor(workspace)


def _check_with_doctor(workspace):
    opened = open_workspace(workspace)
    repair(opened, examine(opened))
    return [f"left: {each.code} {each.path}:{each.line} {each.detail}" for each in examine(opened) if each.fixable]
