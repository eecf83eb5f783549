"""From the command to an answering server, and to a search with vectors, beside the bare import of its libraries."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Samples, once, row, title
from tests.bot.running import ROOT, RunningServer

ROUNDS = 5


def run() -> None:
    """Print medians of several starts over an indexed workspace."""
    title("Start of the server over the sample workspace, already indexed")
    healthy, searching, imports = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        shutil.copytree(ROOT / "examples" / "workspace", workspace)
        with RunningServer(workspace) as server:
            server.wait_until_warm()
        for _ in range(ROUNDS):
            imports.append(
                once(lambda: subprocess.run([sys.executable, "-c", "import fastapi, uvicorn, pydantic_ai"], check=True))
            )
            begun = time.perf_counter()
            with RunningServer(workspace) as server:
                healthy.append(server.started_s * 1000)
                with server.client() as client:
                    while client.get("/v1/search", params={"q": "deploy"}).json()["index"]["degraded"]:
                        time.sleep(0.01)
                searching.append((time.perf_counter() - begun) * 1000)
    row("floor: a process that imports fastapi, uvicorn, pydantic_ai", Samples(imports))
    row("first 200 of /healthz (promise: under 3 s)", Samples(healthy))
    row("first search by meaning and by word", Samples(searching))
    row("healthz / floor", f"{Samples(healthy).p50 / Samples(imports).p50:.2f}")
