"""`settings.json` on the volume: reading it in its layers, and the one locked way to change it. What it may hold is elsewhere."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from pydantic import JsonValue

from persistence.errors import (
    PersistenceError,
    PreconditionFailedError,
    SettingsBrokenError,
    SettingsInvalidError,
    TooLargeError,
)
from persistence.files import Held, etag_of, locked, read_bytes, real_place, replace_bytes, translate
from persistence.secrets import refuse_new_secrets
from persistence.settings_values import (
    Diagnostic,
    JsonObject,
    Layer,
    Origin,
    ParsedSettings,
    Settings,
    combine,
    encode_settings,
    infinite_keys,
    merge_patch,
    parse_settings,
    read_layer,
    unknown_keys,
)
from persistence.versions import Author, recorded_change
from persistence.workspace import LEGACY_SETTINGS, QUARANTINE, SETTINGS, Workspace

__all__ = ["Diagnostic", "Settings", "SettingsStore", "SettingsView"]

_OPERATOR: Final = Author("recalld", "settings changed")
_NO_OVERRIDES: Final[Mapping[str, JsonValue]] = MappingProxyType({})
_Read: TypeAlias = bytes | PersistenceError | None


@dataclass(frozen=True, slots=True)
class SettingsView:
    """The settings in force. `origins` and diagnostics name nested keys with dots; `etag` is that of the file (None: absent).

    `broken`: the file can't be read; what it said last, as far as this process knows, stays in force.
    """

    values: Settings
    origins: dict[str, Origin]
    diagnostics: tuple[Diagnostic, ...]
    etag: str | None
    broken: bool


class SettingsStore:
    """Owns settings.json. Safe for threads, and for other processes that change the file."""

    def __init__(self, workspace: Workspace, *, overrides: Mapping[str, JsonValue] = _NO_OVERRIDES) -> None:
        """Open no file yet; `overrides` are settings that the environment fixes, shaped as the file is."""
        self._workspace = workspace
        self._root = workspace.root
        self._lock_name = workspace.lock_of(SETTINGS)
        self._overrides = overrides
        self._mutex = threading.Lock()  # guards the three below
        self._seen: tuple[_Read, _Read] | None = None
        self._view: SettingsView | None = None
        self._good = ParsedSettings({})

    def load(self) -> SettingsView:
        """The settings in force now. Always reads the file (its stat can be seconds old on a network disk); never raises."""
        return self._view_of(self._read_settings())

    def patch(
        self,
        patch: Mapping[str, JsonValue],
        *,
        expected_etag: str | None = None,
        author: Author = _OPERATOR,
    ) -> SettingsView:
        """Apply an RFC 7396 merge patch. What the file holds besides stays as it is.

        Raises SettingsInvalidError that names every refused key, SecretDetectedError for a value that looks like a secret,
        SettingsBrokenError, PreconditionFailedError, StoreBusyError.
        """

        def change(old: JsonObject) -> JsonObject:
            try:
                problems = [(".".join(path), "unknown key") for path in unknown_keys(old, patch)]
                problems += [(".".join(path), "not a finite number") for path in infinite_keys(dict(patch))]
                merged = merge_patch(old, dict(patch))
                problems += [(".".join(p.path), p.reason) for p in read_layer(_object(merge_patch({}, dict(patch)))).problems]
            except RecursionError as err:
                raise SettingsInvalidError([("", "nested too deeply")]) from err
            return _checked(old, _object(merged), problems)

        return self._write(change, expected_etag, author)

    def update(self, change: Callable[[JsonObject], JsonObject], *, author: Author = _OPERATOR) -> SettingsView:
        """Replace the file's object by what `change` makes of it, with nobody able to write in between.

        `change` gets all keys, also those that are not ours. Raises as `patch`, and whatever `change` raises.
        """
        return self._write(lambda old: _checked(old, change(_copy(old)), []), None, author)

    def reset(self, *, author: Author = _OPERATOR) -> SettingsView:
        """Start from an empty object, also when the file is broken; its bytes are kept in quarantine."""
        with locked(self._root, SETTINGS, self._lock_name) as held:
            folder, name = self._place()
            old = read_bytes(folder, name)
            if old is not None:
                replace_bytes(self._root, f"{QUARANTINE}/{SETTINGS}.{etag_of(old)[:16]}", old, held)
            return self._replace(old, {}, held, author)

    def _write(self, change: Callable[[JsonObject], JsonObject], expected_etag: str | None, author: Author) -> SettingsView:
        with locked(self._root, SETTINGS, self._lock_name) as held:
            data = self._read_settings()
            if expected_etag is not None and (not isinstance(data, bytes) or etag_of(data) != expected_etag):
                etag = etag_of(data) if isinstance(data, bytes) else None
                raise PreconditionFailedError("settings.json changed since it was read: read it again", etag=etag)
            old = _parse_or_raise(data).values
            new = change(old)
            if _dump(new) == _dump(old):
                return self._view_of(data)
            return self._replace(data if isinstance(data, bytes) else None, new, held, author)

    def _replace(self, old: bytes | None, values: JsonObject, held: Held, author: Author) -> SettingsView:
        folder, name = self._place()
        data = encode_settings(values)
        refuse_new_secrets((old or b"").decode("utf-8", "replace"), data.decode("utf-8"), where=SETTINGS)
        try:
            with recorded_change(self._workspace, SETTINGS, old, data, author=author):
                replace_bytes(folder, name, data, held)
        except OSError as err:  # the folder that a link points into is gone
            raise translate(err, SETTINGS) from err
        return self._view_of(data)

    def _place(self) -> tuple[Path, str]:
        """(folder, name) of the real file: settings.json may be a link to a regular file, which is then what is replaced."""
        return real_place(self._root, SETTINGS)

    def _read_settings(self) -> _Read:
        try:
            return self._read(*self._place())
        except PersistenceError as err:
            return err

    @staticmethod
    def _read(folder: Path, name: str) -> _Read:
        try:
            return read_bytes(folder, name)
        except PersistenceError as err:
            return err

    def _view_of(self, data: _Read) -> SettingsView:
        legacy = self._read(self._root, LEGACY_SETTINGS)
        with self._mutex:
            if self._view is None or self._seen != (data, legacy):
                self._view, self._seen = self._resolve(data, legacy), (data, legacy)
            return self._view

    def _resolve(self, data: _Read, legacy: _Read) -> SettingsView:
        diagnostics: list[Diagnostic] = []
        parsed = _try_parse(data, SETTINGS)
        if isinstance(parsed, Diagnostic):
            diagnostics.append(parsed)
        else:
            self._good = parsed
        below = _try_parse(legacy, LEGACY_SETTINGS)
        if isinstance(below, Diagnostic):
            diagnostics.append(below)
        layers: list[tuple[Origin, Layer]] = [
            ("legacy", read_layer({} if isinstance(below, Diagnostic) else below.values)),
            ("file", read_layer(self._good.values)),
            ("env", read_layer(self._overrides)),
        ]
        if not isinstance(parsed, Diagnostic):
            diagnostics += _repetitions(parsed)
        diagnostics += [found for origin, layer in layers for found in _refusals(origin, layer, self._good)]
        values, origins = combine(layers)
        etag = etag_of(data) if isinstance(data, bytes) else None
        return SettingsView(values, origins, tuple(diagnostics), etag, broken=isinstance(parsed, Diagnostic))


def _try_parse(data: _Read, name: str) -> ParsedSettings | Diagnostic:
    """The file's object, an empty one when it is absent, or what is wrong with the whole file."""
    if isinstance(data, PersistenceError):
        return Diagnostic(name, str(data))
    try:
        return ParsedSettings({}) if data is None else parse_settings(data)
    except json.JSONDecodeError as err:
        return Diagnostic(name, f"it is no JSON: {err.msg}", err.lineno)
    except ValueError as err:
        return Diagnostic(name, str(err))


def _parse_or_raise(data: _Read) -> ParsedSettings:
    if isinstance(data, PersistenceError) and not isinstance(data, TooLargeError):
        raise data
    parsed = _try_parse(data, SETTINGS)
    if isinstance(parsed, Diagnostic):
        line = "" if parsed.line is None else f" (line {parsed.line})"
        raise SettingsBrokenError(
            f"settings.json is broken{line}: {parsed.reason}; nothing was written. Repair it by hand, or reset it",
        )
    return parsed


def _repetitions(parsed: ParsedSettings) -> list[Diagnostic]:
    return [
        Diagnostic(".".join(path), "the key is there more than once; the last one counts", line) for path, line in parsed.repeated
    ]


def _refusals(origin: Origin, layer: Layer, file: ParsedSettings) -> list[Diagnostic]:
    where = {"legacy": f"in {LEGACY_SETTINGS}: ", "env": "from the environment: "}.get(origin, "")
    return [
        Diagnostic(".".join(problem.path), where + problem.reason, file.lines.get(problem.path) if origin == "file" else None)
        for problem in layer.problems
    ]


def _checked(old: JsonObject, new: JsonObject, problems: list[tuple[str, str]]) -> JsonObject:
    """`new`, unless it brings in a refused value; what was wrong in the file before does not stand in the way."""
    try:
        before = set(read_layer(old).problems)
        problems = problems + [(".".join(p.path), p.reason) for p in read_layer(new).problems if p not in before]
        if not problems:
            encode_settings(new)
    except (ValueError, TypeError, RecursionError) as err:
        problems = [*problems, ("", f"JSON can't hold it: {err}")]
    if problems:
        raise SettingsInvalidError(sorted(set(problems)))
    return new


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _copy(values: JsonObject) -> JsonObject:
    """So that a change that works in place can be told from the old values."""
    copied: JsonObject = json.loads(_dump(values))
    return copied


def _dump(values: JsonObject) -> str:
    return json.dumps(values)  # text, since to Python {"a": 1} equals {"a": true}
