"""The pages: their links lead somewhere, and their tables list what the code has, no more and no less."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bot.config import Config
from bot.errors import STATUS
from persistence.rules import Rules
from persistence.settings_values import LEAVES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")


def read(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def prose_of(text: str) -> str:
    """The text without what stands in code, where brackets are no links."""
    return CODE.sub("", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_cells(text: str, after: str) -> list[str]:
    """What stands as code in the first cells of all tables of a section, up to the next heading of its level."""
    section = text.partition(f"\n{after}\n")[2].partition("\n## ")[0]
    return [code for row in re.findall(r"^\| (`[^|]+) \|", section, flags=re.MULTILINE) for code in CODE.findall(row)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for target in LINK.findall(prose_of(page.read_text("utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{target}: there is no {found}"
        assert not anchor or anchor in anchors_of(found), f"{target}: {found.name} has no such heading"


def test_every_module_that_a_page_names_exists():
    pages = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = re.findall(r"`((?:bot|persistence|semantic|tests|bench)/[\w/]+\.py)`", pages)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_index_leads_to_every_page():
    linked = {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in LINK.findall(prose_of(read("docs/index.md")))}
    assert {page for page in PAGES if "examples" not in page.parts} - linked == {ROOT / "docs" / "index.md"}


def test_every_error_code_is_listed_with_its_status():
    listed: dict[str, int] = {}
    for codes, statuses in re.findall(r"^\| (`[^|]+) \| ([0-9, ]+) \|", read("docs/http-api.md"), flags=re.MULTILINE):
        names, numbers = CODE.findall(codes), [int(number) for number in statuses.split(",")]
        listed |= dict(zip(names, numbers * len(names) if len(numbers) == 1 else numbers, strict=True))
    assert listed == STATUS


def test_every_variable_of_the_environment_is_listed():
    listed = set(re.findall(r"RECALLD_[A-Z_]+", read("docs/configuration.md")))
    assert listed == {f"RECALLD_{name.upper()}" for name in Config.model_fields}


def test_every_setting_is_listed():
    keys = first_cells(read("docs/configuration.md"), "## `settings.json`")
    assert sorted(keys) == sorted(".".join(path) for path in LEAVES)


def test_every_rule_of_memory_is_listed():
    keys = first_cells(read("docs/configuration.md"), "## `memory.jsonc`")
    assert sorted(keys) == sorted(field.name for field in fields(Rules))
