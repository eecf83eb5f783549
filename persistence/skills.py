"""Skills: finding `SKILL.md` files, checking their front matter, reading one's instructions. A broken one hides no other."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import yaml

from persistence.errors import BodyInvalidError, NotFoundError, NotUtf8Error, PersistenceError
from persistence.files import opened_folder, read_text
from persistence.workspace import ChannelId, Workspace

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_SKILL_BYTES: Final = 1024 * 1024
MAX_FRONT_MATTER: Final = 16 * 1024

_FILE: Final = "SKILL.md"
_PACKAGES: Final = "node_modules"  # what a skill's own tools installed holds no skills of ours
_MAX_DEPTH: Final = 8
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z", re.ASCII)
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)(?:(?<=\n)---[ \t]*(?:\n|\Z))", re.DOTALL)
# libyaml, where the installed wheel has it, is ten times as fast; both are the safe loader.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Scope = Literal["global", "channel"]


@dataclass(frozen=True, slots=True)
class Skill:
    """A usable skill. `path` and `base_dir` are workspace-relative; not `enabled`: it is kept out of the prompt."""

    name: str
    description: str
    path: str
    scope: Scope
    enabled: bool
    base_dir: str


@dataclass(frozen=True, slots=True)
class SkillProblem:
    """Something under a skills folder that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Skills:
    """What a lane has: usable skills by name, and what was left out, by path."""

    items: tuple[Skill, ...]
    problems: tuple[SkillProblem, ...]


def load_skills(workspace: Workspace, channel: ChannelId | None) -> Skills:
    """The global skills and the channel's, which override global ones of the same name. Raises nothing for what is broken."""
    found: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    scopes: list[tuple[Scope, str]] = [("global", Workspace.skills(None))]
    if channel is not None:
        scopes.append(("channel", Workspace.skills(channel)))
    for scope, folder in scopes:
        own: dict[str, Skill] = {}
        for item in sorted(_scan(workspace, folder), key=_path_of):
            skill = _load(workspace, item, scope) if isinstance(item, str) else item
            if isinstance(skill, Skill) and (first := own.setdefault(skill.name, skill)) is not skill:
                skill = SkillProblem(skill.path, f"{first.path} has the name {skill.name!r} already: rename one of them")
            if isinstance(skill, SkillProblem):
                problems.append(skill)
        found |= own
    return Skills(tuple(found[name] for name in sorted(found)), tuple(problems))


def _path_of(item: str | SkillProblem) -> str:
    return item if isinstance(item, str) else item.path


def _scan(workspace: Workspace, folder: str, depth: int = 0) -> Iterator[str | SkillProblem]:
    """Paths of every `SKILL.md` below `folder`, and what stands in the way of one. No link is followed."""
    try:
        with opened_folder(workspace.root, folder) as folder_fd, os.scandir(folder_fd) as entries:
            listed = [(e.name, e.is_dir(follow_symlinks=False), _refusal(e)) for e in entries if not _is_passed_over(e.name)]
    except FileNotFoundError:  # no such folder, or gone since it was listed
        return
    except (PersistenceError, OSError) as err:
        yield SkillProblem(folder, str(err))
        return
    for name, is_folder, reason in listed:
        path = f"{folder}/{name}"
        if reason:
            yield SkillProblem(_shown(path), reason)
        elif is_folder and depth >= _MAX_DEPTH:
            yield SkillProblem(path, f"skills are looked for {_MAX_DEPTH} folders deep and no deeper")
        elif is_folder:
            yield from _scan(workspace, path, depth + 1)
        elif name == _FILE:
            yield path


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name == _PACKAGES


def _refusal(entry: os.DirEntry[str]) -> str:
    """Why an object below a skills folder is left out; "" when it is not."""
    is_folder, is_skill = entry.is_dir(follow_symlinks=False), entry.name.casefold() == _FILE.casefold()
    if entry.is_symlink():
        return "it is a link, and links are not followed: put a real file or folder there"
    if is_folder and _shown(entry.name) != entry.name:
        return "the folder's name is not UTF-8: rename it"
    if is_skill and not entry.is_file(follow_symlinks=False):
        return "it is no regular file"
    return f"a skill's file is named {_FILE}: rename it" if is_skill and entry.name != _FILE else ""


def _shown(name: str) -> str:
    """A name from a folder listing as text that JSON can carry."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _load(workspace: Workspace, path: str, scope: Scope) -> Skill | SkillProblem:
    try:
        file = read_text(workspace.root, path, limit=MAX_SKILL_BYTES)
        if file is None:
            raise NotFoundError("it went away while it was read")
        if not file.utf8:
            raise NotUtf8Error("it holds bytes that are not UTF-8: save it as UTF-8")
        base_dir = path.rpartition("/")[0]
        skill = _parse(file.text, base_dir.rpartition("/")[2])
    except PersistenceError as err:
        return SkillProblem(path, str(err))
    return replace(skill, path=path, scope=scope, base_dir=base_dir)


def _parse(text: str, folder: str) -> Skill:
    """The skill without its place; raises BodyInvalidError."""
    fields = _front_matter(text)
    name, disabled = fields.get("name"), fields.get("disable-model-invocation", False)
    if not isinstance(name, str):
        raise BodyInvalidError("its front matter has no 'name' that is text")
    if len(name) > MAX_NAME or not _NAME.match(name):
        raise BodyInvalidError(f"name {name[:80]!r}: use at most {MAX_NAME} lower-case letters, digits and single hyphens")
    if name != folder:
        raise BodyInvalidError(f"name {name!r} differs from its folder's name {folder!r}: rename one of them")
    if not isinstance(disabled, bool):
        raise BodyInvalidError("'disable-model-invocation' is true or false")
    return Skill(name, _description(fields.get("description")), path="", scope="global", enabled=not disabled, base_dir="")


def _description(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BodyInvalidError("its front matter has no 'description' that is text")
    description = " ".join(value.split())
    if len(description) > MAX_DESCRIPTION:
        raise BodyInvalidError(f"its description has {len(description)} characters, {MAX_DESCRIPTION} are allowed")
    return description


def _front_matter(text: str) -> dict[object, object]:
    """The mapping between the `---` lines at the very start of `text`."""
    match = _FRONT_MATTER.match(text.replace("\r\n", "\n"))
    if match is None:
        raise BodyInvalidError("it does not start with front matter between two '---' lines")
    if len(match[1]) > MAX_FRONT_MATTER:
        raise BodyInvalidError(f"its front matter has over {MAX_FRONT_MATTER} characters")
    try:
        # An alias can blow up, and a tag or an anchor has no use in a handful of plain values.
        if any(_is_clever(event) for event in yaml.parse(match[1], Loader=_LOADER)):
            raise BodyInvalidError("its front matter uses YAML anchors, aliases or tags: write plain values")
        value = yaml.load(match[1], Loader=_LOADER)  # noqa: S506 - _LOADER is one of the two safe loaders
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as err:
        raise BodyInvalidError(f"its front matter is no YAML: {' '.join(str(err).split())[:300]}") from err
    if not isinstance(value, dict):
        raise BodyInvalidError("its front matter is no mapping of keys to values")
    return value


def _is_clever(event: object) -> bool:
    return bool(getattr(event, "anchor", None) or getattr(event, "tag", None))


def read_skill(workspace: Workspace, skill: Skill) -> str:
    """The instructions of a skill (its file without front matter), `{baseDir}` replaced by its workspace-relative folder.

    Raises NotFoundError when it went away, UnsafeObjectError, TooLargeError.
    """
    file = read_text(workspace.root, skill.path, limit=MAX_SKILL_BYTES)
    if file is None:
        raise NotFoundError(f"the skill {skill.name!r} is gone: {skill.path!r} does not exist any more")
    text = file.text.replace("\r\n", "\n")
    match = _FRONT_MATTER.match(text)
    body = text if match is None else text[match.end() :]
    return body.strip("\n").replace("{baseDir}", skill.base_dir)
