"""Commands that look after the volume and the index: index, doctor, rules, settings."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from bot.terminal import REFUSED, JsonOption, WorkspaceOption, open_configured, open_index, out, refusals
from persistence.audit import Author
from persistence.checks.findings import Finding, Repaired
from persistence.doctor import examine, repair
from persistence.rules import RulesStore, render_rules
from persistence.secret_sweep import sweep_secrets, take_secrets_out
from persistence.settings import SettingsStore
from semantic.types import IndexStatus

index_app = typer.Typer(no_args_is_help=True, help="The search index: look at it, bring it up to date.")


@index_app.command("status")
def index_status(workspace: WorkspaceOption = None, *, as_json: JsonOption = False) -> None:
    """What is indexed and what waits."""
    with refusals():
        config, opened = open_configured(workspace)
        indexer, _ = open_index(config, opened, threads=1)
        _print_status(indexer.survey(), as_json=as_json)


@index_app.command("update")
def index_update(workspace: WorkspaceOption = None, *, as_json: JsonOption = False) -> None:
    """Index every change, also beside a running server."""
    with refusals():
        config, opened = open_configured(workspace)
        indexer, _ = open_index(config, opened, threads=2)
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


def doctor(
    workspace: WorkspaceOption = None,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Put right what can be put right without loss")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="Look for secrets in everything that was ever written")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for what is damaged or does not agree on the volume; exit code 1 when something is left."""
    with refusals():
        _, opened = open_configured(workspace)
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


def rules(
    workspace: WorkspaceOption = None,
    *,
    init: Annotated[bool, typer.Option("--init", help="Write memory.jsonc with the built-in rules where there is none")] = False,
    as_json: JsonOption = False,
) -> None:
    """The memory rules in force, and what is wrong in memory.jsonc; exit code 1 when something is."""
    with refusals():
        _, opened = open_configured(workspace)
        store = RulesStore(opened)
        view = store.ensure() if init else store.load()
    if as_json:
        out.print(json.dumps(asdict(view)), markup=False)
    else:
        out.print(
            f"{view.path}{'' if view.etag else ' (absent: these are built in)'}\n\n{render_rules(view.rules)}", markup=False
        )
        for each in view.diagnostics:
            out.print(f"{view.path}:{each.line or '?'}: {each.key}: {each.reason}", markup=False)
    raise typer.Exit(REFUSED if view.diagnostics else 0)


def settings(
    workspace: WorkspaceOption = None,
    *,
    reset: Annotated[bool, typer.Option("--reset", help="Put a broken settings.json aside and start afresh")] = False,
    as_json: JsonOption = False,
) -> None:
    """The settings in force and where each comes from; exit code 1 when something is wrong in the file."""
    with refusals():
        config, opened = open_configured(workspace)
        store = SettingsStore(opened, overrides=config.setting_overrides)
        view = store.reset() if reset else store.load()
    values = view.values.model_dump(mode="json")
    if as_json:
        diagnostics = [asdict(each) for each in view.diagnostics]
        out.print(json.dumps({"values": values, "origins": dict(view.origins), "diagnostics": diagnostics}), markup=False)
    else:
        for key, value in values.items():
            out.print(f"{key:26} {json.dumps(value)}  ({view.origins.get(key, 'default')})", markup=False)
        for each in view.diagnostics:
            out.print(f"settings.json:{each.line or '?'}: {each.key}: {each.reason}", markup=False)
    raise typer.Exit(REFUSED if view.diagnostics else 0)


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.add_typer(index_app, name="index")
    for command in (doctor, rules, settings):
        app.command()(command)
