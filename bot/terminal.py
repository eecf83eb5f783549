"""What every command prints with, refuses with and opens: the terminal side that `cli` and `upkeep` share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bot.config import Config, load_config
from bot.errors import BotError
from persistence.errors import PersistenceError
from persistence.rules import RulesStore
from persistence.workspace import Workspace, open_workspace
from semantic.embedder import Embedder
from semantic.embedders import load_embedder
from semantic.errors import SemanticError
from semantic.indexer import Indexer, open_indexer

REFUSED: Final = 1
out = Console(highlight=False, soft_wrap=True)

WorkspaceOption = Annotated[Path | None, typer.Option("--workspace", "-w", help="The workspace folder [RECALLD_WORKSPACE]")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON")]


@contextmanager
def refusals() -> Iterator[None]:
    """A refusal is one clear sentence on stderr and exit code 1."""
    try:
        yield
    except (BotError, PersistenceError, SemanticError) as err:
        print(f"recalld: {err} [{err.code}]", file=sys.stderr)  # noqa: T201 - a command's own word
        raise typer.Exit(REFUSED) from err


def open_configured(workspace: Path | None) -> tuple[Config, Workspace]:
    """The configuration and the opened workspace. Raises StartRefusedError, WorkspaceUnusableError."""
    config = load_config(workspace=workspace)
    return config, open_workspace(config.workspace)


def open_index(config: Config, workspace: Workspace, *, threads: int) -> tuple[Indexer, Embedder]:
    """The indexer of the workspace and its embedder, which runs on this many threads."""
    embedder = load_embedder(config.embedder, threads=threads)
    shared = RulesStore(workspace).load().rules.shared_dir
    return open_indexer(workspace.root, config.index_location(workspace.root), embedder, shared=shared), embedder
