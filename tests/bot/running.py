"""A real server in a process of its own, over real sockets, for tests and for the benchmarks."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent.parent
_ADDRESS = re.compile(rb"Open (http://\S+)/ ")


class RunningServer:
    """`recalld serve` on a free port; `base` is its address once `start` returned."""

    def __init__(self, workspace, **environment):
        self.workspace = Path(workspace)
        self._environment = {f"RECALLD_{name.upper()}": str(value) for name, value in environment.items()}
        self.base = ""
        self.process = None
        self.started_s = 0.0

    def start(self, timeout_s=30.0):
        begun = time.monotonic()
        with self._stderr_path.open("ab") as stderr:
            self.process = self._launch(stderr)
        for line in self.process.stdout:
            if match := _ADDRESS.search(line):
                self.base = match[1].decode()
                break
        else:
            raise AssertionError(f"the server ended with {self.process.wait()}: {self.stderr()}")
        self._await_health(begun, timeout_s)
        self.started_s = time.monotonic() - begun
        return self

    def _launch(self, stderr):
        return subprocess.Popen(
            [sys.executable, "-m", "bot", "serve", "--workspace", str(self.workspace), "--port", "0"],
            cwd=ROOT,
            env={**os.environ, **self._environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def _await_health(self, begun, timeout_s):
        while time.monotonic() - begun < timeout_s:
            try:
                if httpx.get(self.base + "/healthz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(f"not serving after {timeout_s} s: {self.stderr()}")

    @property
    def _stderr_path(self):
        return self.workspace.parent / f"{self.workspace.name}.stderr"

    def stderr(self):
        return self._stderr_path.read_text("utf-8", "replace")

    def client(self, **options):
        return httpx.Client(base_url=self.base, timeout=60, **options)

    def wait_until_warm(self, timeout_s=60.0):
        """Until the model is loaded and the first sweep is through."""
        until = time.monotonic() + timeout_s
        with self.client() as client:
            while time.monotonic() < until:
                ready = client.get("/readyz").json()
                if ready["checks"].get("embedder") == "ok" and client.get("/v1/index").json()["indexed_through"]:
                    return self
                time.sleep(0.05)
        raise AssertionError(f"not warm after {timeout_s} s: {ready} {self.stderr()}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, timeout_s=30.0):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self.process.stdout.close()
        return code

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.process.stdout.close()


def post(client, channel, text, user="amy", **fields):
    """Post a message and return the response."""
    return client.post(f"/v1/channels/{channel}/messages", json={"text": text, "user": user, **fields})
