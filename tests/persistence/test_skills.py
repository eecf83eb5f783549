"""Skills: which are found, which are left out and why, and that no front matter whatever stops the others."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.errors import NotFoundError
from persistence.skills import MAX_SKILL_BYTES, load_skills, read_skill
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def put(workspace: Workspace, folder: str, front: str | bytes, body: str = "Do it.\n") -> Path:
    path = workspace.root / folder / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(front if isinstance(front, bytes) else f"---\n{front}\n---\n{body}".encode())
    return path


def good(workspace: Workspace, folder: str, description: str = "a good one") -> None:
    put(workspace, folder, f"name: {folder.rpartition('/')[2]}\ndescription: {description}")


def names(workspace: Workspace, channel: str | None = None) -> list[str]:
    return [skill.name for skill in load_skills(workspace, parse_channel_id(channel) if channel else None).items]


def reason(workspace: Workspace, path: str) -> str:
    """Why `path` is left out; the good sibling must be there all the same."""
    good(workspace, "skills/sibling")
    loaded = load_skills(workspace, None)
    assert "sibling" in [skill.name for skill in loaded.items]
    [problem] = loaded.problems
    assert problem.path == path
    return problem.reason


def test_a_skill_has_its_fields_and_unknown_keys_are_fine(workspace: Workspace):
    put(
        workspace,
        "skills/release-notes",
        "name: release-notes\ndescription: >\n  Writes notes\n  for a release.\n"
        "license: MIT\nmetadata: {team: web}\nallowed-tools: [read]\nx: 1",
    )
    loaded = load_skills(workspace, None)
    [skill] = loaded.items
    assert loaded.problems == ()
    assert (skill.name, skill.description) == ("release-notes", "Writes notes for a release.")
    assert (skill.path, skill.base_dir) == ("skills/release-notes/SKILL.md", "skills/release-notes")
    assert (skill.scope, skill.enabled) == ("global", True)


def test_no_skills_folder_is_no_skills(workspace: Workspace):
    assert load_skills(workspace, OPS) == load_skills(workspace, None)
    assert load_skills(workspace, None).items == ()


def test_nested_skills_are_found_and_hidden_and_package_folders_passed_over(workspace: Workspace):
    for folder in ["skills/a", "skills/group/deep/b", "skills/a/inner/c", "skills/.git/d", "skills/a/node_modules/e"]:
        good(workspace, folder)
    assert names(workspace) == ["a", "b", "c"]


def test_a_tree_deeper_than_any_skill_is_reported_and_not_searched(workspace: Workspace):
    good(workspace, "skills/1/2/3/4/5/6/7/deep")
    good(workspace, "skills/1/2/3/4/5/6/7/8/deeper")
    loaded = load_skills(workspace, None)
    assert [skill.name for skill in loaded.items] == ["deep"]
    assert [problem.path for problem in loaded.problems] == ["skills/1/2/3/4/5/6/7/8/deeper"]


def test_a_channels_skill_overrides_the_global_one_of_its_name(workspace: Workspace):
    good(workspace, "skills/deploy", "for all")
    good(workspace, "skills/other")
    good(workspace, "ops/skills/deploy", "for ops")
    loaded = load_skills(workspace, OPS)
    assert [(skill.name, skill.scope, skill.description) for skill in loaded.items] == [
        ("deploy", "channel", "for ops"),
        ("other", "global", "a good one"),
    ]
    assert loaded.problems == ()
    assert load_skills(workspace, None).items[0].description == "for all"
    assert names(workspace, "general") == ["deploy", "other"]


def test_a_broken_channel_skill_leaves_the_global_one_in_force(workspace: Workspace):
    good(workspace, "skills/deploy", "for all")
    put(workspace, "ops/skills/deploy", "name: deploy")
    loaded = load_skills(workspace, OPS)
    assert [skill.scope for skill in loaded.items] == ["global"]
    assert [problem.path for problem in loaded.problems] == ["ops/skills/deploy/SKILL.md"]


def test_of_two_with_one_name_in_a_scope_the_first_by_path_wins_and_the_other_is_reported(workspace: Workspace):
    good(workspace, "skills/z/twin", "second")
    good(workspace, "skills/a/twin", "first")
    loaded = load_skills(workspace, None)
    assert [skill.description for skill in loaded.items] == ["first"]
    [problem] = loaded.problems
    assert problem.path == "skills/z/twin/SKILL.md"
    assert "skills/a/twin/SKILL.md" in problem.reason


@pytest.mark.parametrize(
    ("front", "part"),
    [
        ("description: no name", "no 'name'"),
        ("name: 42\ndescription: d", "no 'name'"),
        ("name: Broken\ndescription: d", "lower-case"),
        ("name: broken--one\ndescription: d", "lower-case"),
        ("name: -broken\ndescription: d", "lower-case"),
        (f"name: {'a' * 65}\ndescription: d", "at most 64"),
        ("name: other\ndescription: d", "differs from its folder"),
        ("name: broken", "no 'description'"),
        ("name: broken\ndescription: '  '", "no 'description'"),
        ("name: broken\ndescription: [a]", "no 'description'"),
        (f"name: broken\ndescription: {'d' * 1025}", "1025 characters"),
        ("name: broken\ndescription: d\ndisable-model-invocation: 1", "true or false"),
        ("name: broken\ndescription: d\ndisable-model-invocation: 'yes'", "true or false"),
        ("- a\n- list", "no mapping"),
        ("just text", "no mapping"),
        ("name: [", "no YAML"),
        ("name: a: b", "no YAML"),
        ("a: " + "[" * 5_000, "no YAML"),
        ("when: 2026-99-99", "no YAML"),
        ("a: &x [1]\nb: *x", "anchors"),
        ("name: !!python/object/apply:os.getcwd []", "anchors, aliases or tags"),
        ("name: broken\ndescription: d\nx: " + "y" * 20_000, "over 16384"),
    ],
)
def test_bad_front_matter_leaves_the_skill_out_with_its_reason(workspace: Workspace, front: str, part: str):
    put(workspace, "skills/broken", front)
    assert part in reason(workspace, "skills/broken/SKILL.md")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "front matter"),
        (b"# no front matter\n", "front matter"),
        (b"---\nname: broken\ndescription: never closed\n", "front matter"),
        (b"\n---\nname: broken\ndescription: d\n---\n", "front matter"),
        (b"---\n---\n", "no mapping"),
        (b"---\nname: broken\ndescription: caf\xe9\n---\n", "UTF-8"),
        (b"x" * (MAX_SKILL_BYTES + 1), "over"),
    ],
)
def test_a_file_that_is_no_skill_is_left_out_with_its_reason(workspace: Workspace, data: bytes, part: str):
    put(workspace, "skills/broken", data)
    assert part in reason(workspace, "skills/broken/SKILL.md")


def test_crlf_a_byte_order_mark_and_a_closing_line_at_the_very_end_are_accepted(workspace: Workspace):
    put(workspace, "skills/win", b"\xef\xbb\xbf---\r\nname: win\r\ndescription: d\r\n---")
    [skill] = load_skills(workspace, None).items
    assert (skill.name, read_skill(workspace, skill)) == ("win", "")


def test_an_alias_bomb_costs_nothing(workspace: Workspace):
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    put(workspace, "skills/broken", "\n".join(["a0: &a0 [lol]", *levels]))
    started = time.monotonic()
    assert "anchors" in reason(workspace, "skills/broken/SKILL.md")
    assert time.monotonic() - started < 1


def test_links_are_reported_and_never_followed(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory):
    outside = tmp_path_factory.mktemp("outside") / "evil"
    outside.mkdir()
    (outside / "SKILL.md").write_text("---\nname: evil\ndescription: d\n---\n")
    good(workspace, "skills/fine")
    (workspace.root / "skills/evil").symlink_to(outside)
    (workspace.root / "skills/linked").mkdir()
    (workspace.root / "skills/linked/SKILL.md").symlink_to(outside / "SKILL.md")
    loaded = load_skills(workspace, None)
    assert [skill.name for skill in loaded.items] == ["fine"]
    assert [problem.path for problem in loaded.problems] == ["skills/evil", "skills/linked/SKILL.md"]
    assert all("link" in problem.reason for problem in loaded.problems)


def test_a_linked_skills_folder_is_reported_and_the_other_scope_still_loads(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
):
    (workspace.root / "skills").symlink_to(tmp_path_factory.mktemp("outside"))
    good(workspace, "ops/skills/fine")
    loaded = load_skills(workspace, OPS)
    assert [skill.name for skill in loaded.items] == ["fine"]
    assert [problem.path for problem in loaded.problems] == ["skills"]


@pytest.mark.timeout(10)
def test_a_fifo_and_a_folder_in_a_skills_place_are_reported(workspace: Workspace):
    (workspace.root / "skills/broken").mkdir(parents=True)
    os.mkfifo(workspace.root / "skills/broken/SKILL.md")
    assert "no regular file" in reason(workspace, "skills/broken/SKILL.md")


def test_another_spelling_of_the_file_name_is_reported(workspace: Workspace):
    (workspace.root / "skills/broken").mkdir(parents=True)
    (workspace.root / "skills/broken/skill.md").write_text("---\nname: broken\ndescription: d\n---\n")
    assert "named SKILL.md" in reason(workspace, "skills/broken/skill.md")


def test_a_folder_name_that_is_no_utf8_is_reported_as_text(workspace: Workspace):
    (workspace.root / "skills" / os.fsdecode(b"caf\xe9")).mkdir(parents=True)
    assert "not UTF-8" in reason(workspace, "skills/caf\\xe9")


def test_a_disabled_skill_is_listed_as_not_enabled(workspace: Workspace):
    put(workspace, "skills/quiet", "name: quiet\ndescription: d\ndisable-model-invocation: true")
    [skill] = load_skills(workspace, None).items
    assert not skill.enabled


def test_the_body_has_its_folder_in_place_of_base_dir_and_no_front_matter(workspace: Workspace):
    put(workspace, "ops/skills/run", "name: run\ndescription: d", "\nRun {baseDir}/go.sh\n---\nthen {baseDir}/stop.sh\n")
    [skill] = load_skills(workspace, OPS).items
    assert read_skill(workspace, skill) == "Run ops/skills/run/go.sh\n---\nthen ops/skills/run/stop.sh"


def test_reading_a_skill_that_went_away_says_so(workspace: Workspace):
    good(workspace, "skills/fine")
    [skill] = load_skills(workspace, None).items
    (workspace.root / skill.path).unlink()
    with pytest.raises(NotFoundError):
        read_skill(workspace, skill)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(front=st.one_of(st.text(max_size=80), st.text(alphabet="name: {}[]&*!|>-?\n\t'\"#%@`0x_.1e+T:Z=<", max_size=60)))
def test_no_front_matter_hides_the_siblings(workspace: Workspace, front: str):
    put(workspace, "skills/broken", f"---\n{front}\n---\n".encode("utf-8", "replace"))
    good(workspace, "skills/sibling")
    assert "sibling" in names(workspace)
