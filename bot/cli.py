"""The `recalld` command line. Every command works with or without a running server; what it does is done elsewhere."""

import asyncio
import getpass
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer
import uvicorn
from rich.console import Console

from bot.app import DRAIN_S, VERSION, Services, create_app, open_services
from bot.config import Config, check_bind, load_config, quiet_libraries
from bot.errors import BotError, StartRefusedError
from bot.message import Answered, IncomingMessage
from persistence.audit import Author
from persistence.checks.findings import Finding, Repaired
from persistence.doctor import examine, repair
from persistence.errors import PersistenceError
from persistence.rules import RulesStore
from persistence.secret_sweep import sweep_secrets, take_secrets_out
from persistence.workspace import Workspace, open_workspace, parse_channel_id
from semantic.embedder import Embedder
from semantic.embedders import load_embedder
from semantic.errors import SemanticError
from semantic.indexer import Indexer, open_indexer
from semantic.search import Searcher
from semantic.types import IndexStatus, Query, Scope

REFUSED: Final = 1
app = typer.Typer(no_args_is_help=True, add_completion=False, help="A chat bot's memory, as plain files you can search.")
index_app = typer.Typer(no_args_is_help=True, help="The search index: look at it, bring it up to date.")
app.add_typer(index_app, name="index")
out = Console(highlight=False, soft_wrap=True)

WorkspaceOption = Annotated[Path | None, typer.Option("--workspace", "-w", help="The workspace folder [RECALLD_WORKSPACE]")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON")]


def main() -> None:
    """Run the command line; a refusal is one clear sentence and exit code 1."""
    quiet_libraries()
    app()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (BotError, PersistenceError, SemanticError) as err:
        print(f"recalld: {err} [{err.code}]", file=sys.stderr)  # noqa: T201 - a command's own word
        raise typer.Exit(REFUSED) from err


def _open(workspace: Path | None) -> tuple[Config, Workspace]:
    config = load_config(workspace=workspace)
    return config, open_workspace(config.workspace)


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
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


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
    with _refusals():
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
    with _refusals():
        config, opened = _open(workspace)
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


def _open_index(config: Config, workspace: Workspace, *, threads: int) -> tuple[Indexer, Embedder]:
    embedder = load_embedder(config.embedder, threads=threads)
    shared = RulesStore(workspace).load().rules.shared_dir
    return open_indexer(workspace.root, config.index_location(workspace.root), embedder, shared=shared), embedder


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
    with _refusals():
        config, opened = _open(workspace)
        scope = Scope(everything=True) if channel is None else Scope(channel=parse_channel_id(channel))
        indexer, embedder = _open_index(config, opened, threads=1)
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


@index_app.command("status")
def index_status(workspace: WorkspaceOption = None, *, as_json: JsonOption = False) -> None:
    """What is indexed and what waits."""
    with _refusals():
        config, opened = _open(workspace)
        indexer, _ = _open_index(config, opened, threads=1)
        _print_status(indexer.survey(), as_json=as_json)


@index_app.command("update")
def index_update(workspace: WorkspaceOption = None, *, as_json: JsonOption = False) -> None:
    """Index every change, also beside a running server."""
    with _refusals():
        config, opened = _open(workspace)
        indexer, _ = _open_index(config, opened, threads=2)
        _print_status(indexer.update_once(), as_json=as_json)


def _print_status(status: IndexStatus, *, as_json: bool) -> None:
    if as_json:
        out.print(json.dumps(asdict(status)), markup=False)
        return
    for name, counts in status.collections.items():
        out.print(f"{name:9} {counts.documents:7} documents {counts.chunks:8} chunks", markup=False)
    out.print(f"pending   {status.pending:7}", markup=False)
    for failure in status.failed:
        out.print(f"failed    {failure.path}: {failure.reason}", markup=False)


@app.command()
def doctor(
    workspace: WorkspaceOption = None,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Put right what can be put right without loss")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="Look for secrets in everything that was ever written")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for what is damaged or does not agree on the volume; exit code 1 when something is left."""
    with _refusals():
        _, opened = _open(workspace)
        findings = sweep_secrets(opened) if secrets else examine(opened)
        work = take_secrets_out if secrets else repair
        repaired = work(opened, findings, author=Author("cli", "recalld doctor --fix")) if fix else []
    left = [finding for finding in findings if finding not in [each.finding for each in repaired if each.done]]
    if as_json:
        out.print(
            json.dumps({"left": [asdict(each) for each in left], "repaired": [asdict(each) for each in repaired]}), markup=False
        )
    else:
        _print_findings(left, repaired)
    raise typer.Exit(REFUSED if left else 0)


def _print_findings(left: Sequence[Finding], repaired: Sequence[Repaired]) -> None:
    for each in repaired:
        out.print(f"{'repaired' if each.done else 'not repaired'}  {_place(each.finding)}: {each.action}", markup=False)
    for finding in left:
        hint = " (recalld doctor --fix puts it right)" if finding.fixable and not repaired else ""
        out.print(f"{finding.code}  {_place(finding)}: {finding.detail}{hint}", markup=False)
    if not left and not repaired:
        out.print("nothing to find: the volume is as it should be", markup=False)


def _place(finding: Finding) -> str:
    return finding.path if finding.line is None else f"{finding.path}:{finding.line}"
