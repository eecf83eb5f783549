"""The `recalld` command line. Every command works with or without a running server; what it does is done elsewhere."""

import asyncio
import getpass
import io
import json
import logging
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, TextIO, cast

import structlog
import typer
import uvicorn

from bot import upkeep
from bot.app import DRAIN_S, VERSION, Services, create_app, open_services
from bot.config import Config, check_bind, load_config, quiet_libraries
from bot.errors import BotError, StartRefusedError
from bot.message import Answered, IncomingMessage
from bot.terminal import JsonOption, WorkspaceOption, open_configured, open_index, out, refusals
from persistence.errors import PersistenceError
from persistence.workspace import Workspace, open_workspace, parse_channel_id
from semantic.search import Searcher
from semantic.types import Query, Scope

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A chat bot's memory, as plain files you can search.")
upkeep.register(app)


def main() -> None:
    """Run the command line; a refusal is one clear sentence and exit code 1, and so is a fault of ours."""
    quiet_libraries()
    try:
        app()
    except Exception as err:  # noqa: BLE001 - the last door: no bare traceback, whose lines may hold what people wrote
        sys.exit(
            f"recalld: this is a fault of recalld ({type(err).__name__} in {_place_of(err)}): please report it [internal_error]"
        )


def _place_of(err: BaseException) -> str:
    frames = traceback.extract_tb(err.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"


def _log_to_stderr(config: Config) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    renderer = structlog.processors.JSONRenderer() if config.log_format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),  # all that it is asked for,
    )


class _Stderr(io.TextIOBase):
    """stderr, but a log line that can't be written (a full disk) is lost and never fails what it tells of."""

    def write(self, text: str) -> int:
        """Write, or give up quietly."""
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or give up quietly."""
        with suppress(OSError):
            sys.stderr.flush()


@app.command()
def version() -> None:
    """Print the version."""
    out.print(VERSION)


@app.command()
def serve(
    workspace: WorkspaceOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [RECALLD_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one [RECALLD_PORT]")] = None,
) -> None:
    """Serve the HTTP API and the start page."""
    with refusals():
        config = load_config(workspace=workspace, host=host, port=port)
        _log_to_stderr(config)
        check_bind(config.host)
        opened = open_workspace(config.workspace)
        listening = _listen(config.host, config.port)
    base = f"http://{config.host}:{listening.getsockname()[1]}"
    _print_welcome(base, opened)
    _Server(
        uvicorn.Config(
            create_app(config, opened),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(DRAIN_S),
        ),
    ).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server for which a clean stop is a success: the library's own raises the signal again after it has drained."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while serving."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio turns Nagle's algorithm off; else each answer waits 40 ms for the client's delayed ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as err:
        listening.close()
        raise StartRefusedError(f"can't listen on {host}:{port} ({err.strerror}): choose another with --port") from err
    return listening


def _print_welcome(base: str, workspace: Workspace) -> None:
    post = f"curl -s {base}/v1/channels/general/messages -H 'content-type: application/json' -d"
    out.print(f"recalld serves {workspace.root}\n\nOpen {base}/ or try, in another terminal:\n", markup=False)
    out.print(f"""  {post} '{{"user":"amy","text":"remember that the deploy window is Tuesday 14:00 UTC"}}'""", markup=False)
    out.print(f"""  {post} '{{"user":"tom","text":"when can we deploy?"}}'""", markup=False)
    out.print(f"  curl -s '{base}/v1/search?q=how+do+we+get+back+to+the+old+version&channel=ops'", markup=False)
    out.print("\nCtrl-C stops it. The memory is plain files: edit them while it runs.", markup=False)
    sys.stdout.flush()


@app.command()
def chat(
    channel: Annotated[str, typer.Argument(help="The channel, for instance general")],
    text: Annotated[str | None, typer.Argument(help="One message; without it, a conversation line by line")] = None,
    user: Annotated[str | None, typer.Option(help="Who is talking; the login name when absent")] = None,
    workspace: WorkspaceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Talk in a channel from the terminal."""
    with refusals():
        config, opened = open_configured(workspace)
        _log_to_stderr(config)
        template = IncomingMessage(channel=parse_channel_id(channel), text="", user=user or getpass.getuser())
        asyncio.run(_chat(config, opened, template, text, as_json=as_json))


async def _chat(config: Config, workspace: Workspace, template: IncomingMessage, text: str | None, *, as_json: bool) -> None:
    async with open_services(config, workspace, surface="cli") as services:
        await asyncio.to_thread(services.stores.searcher.warm)
        if text is not None:
            await _say(services, replace(template, text=text), as_json=as_json)
            return
        while (line := await asyncio.to_thread(_read_line)) is not None:
            if line.strip():
                await _say(services, replace(template, text=line), as_json=as_json)


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        return None


async def _say(services: Services, message: IncomingMessage, *, as_json: bool) -> None:
    try:
        answered = await services.lanes.submit(message)
    except (BotError, PersistenceError) as err:
        out.print(f"[{err.code}] {err}", markup=False)
        return
    out.print(_answer_json(answered) if as_json else (answered.reply.text if answered.reply else ""), markup=False)


def _answer_json(answered: Answered) -> str:
    reply = None if answered.reply is None else asdict(answered.reply)
    return json.dumps({"message": answered.message.to_json(), "reply": reply}, ensure_ascii=False)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Any text")],
    channel: Annotated[str | None, typer.Option(help="Its files and the global ones; absent: all channels")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 5,
    workspace: WorkspaceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Find passages by meaning and by word, in the index as it is now."""
    with refusals():
        config, opened = open_configured(workspace)
        scope = Scope(everything=True) if channel is None else Scope(channel=parse_channel_id(channel))
        indexer, embedder = open_index(config, opened, threads=1)
        searcher = Searcher(opened.root, indexer.index, embedder)
        searcher.warm()
        found = searcher.search(Query(text=query, scope=scope, limit=limit))
        status = indexer.survey()
    if as_json:
        out.print(json.dumps({"hits": [asdict(hit) for hit in found.hits], "pending": status.pending}), markup=False)
        return
    for hit in found.hits:
        out.print(f"{hit.score:.2f}  {hit.path}#L{hit.start_line}-L{hit.end_line}\n      {hit.snippet}\n", markup=False)
    if not found.hits:
        out.print("nothing found", markup=False)
    if status.pending:
        out.print(f"{status.pending} changed files are not in the index yet: recalld index update", markup=False)
