"""The layout that the design promises: three packages imported from this repository, no forbidden names, no mocks."""

import ast
from pathlib import Path

import pytest

import bot
import persistence
import semantic

ROOT = Path(__file__).parent.parent
FORBIDDEN = {"utils", "helpers", "common", "core", "base", "manager"}
SOURCES = sorted(path for package in ("bot", "persistence", "semantic") for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", [bot, persistence, semantic])
def test_each_package_is_imported_from_this_repository(package):
    assert Path(package.__file__).parent.parent == ROOT


def test_no_module_has_a_name_that_says_nothing():
    assert [path for path in SOURCES if path.stem in FORBIDDEN] == []


def test_every_module_says_what_lives_in_it():
    assert [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_modules_stay_under_350_lines():
    assert {str(path): n for path in SOURCES if (n := len(path.read_text("utf-8").splitlines())) > 350} == {}


def test_functions_fit_a_screen():
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (length := (node.end_lineno or 0) - node.lineno + 1) > 60
    }
    assert long == {}


def test_no_test_uses_a_mock():
    banned = "unittest" + ".mock"
    assert [path for path in (ROOT / "tests").rglob("*.py") if banned in path.read_text("utf-8")] == []


def test_the_tests_mirror_the_packages():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders <= {"bot", "persistence", "semantic", "contracts", "fakes", "torture"}
