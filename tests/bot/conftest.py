"""One real server over a copy of the sample workspace for all tests that don't need one of their own."""

import shutil

import pytest

from tests.bot.running import ROOT, RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("served") / "workspace"
    shutil.copytree(ROOT / "examples" / "workspace", workspace)
    with RunningServer(workspace, sweep_s=1) as running:
        yield running.wait_until_warm()


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client
