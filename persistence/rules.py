"""`memory.jsonc`: what to remember, what not, when to ask, and the limits of memory. Read here; acted on by those who ask.

A fault in the file never switches a directory and never drops a rule of privacy: what was in force stays in force.
"""

import json
import logging
import os
import threading
from dataclasses import asdict, dataclass
from typing import TypeAlias

from persistence.errors import PersistenceError, StoreFaultError
from persistence.files import create_bytes, etag_of, locked, read_bytes, real_place, replace_bytes
from persistence.rules_values import BUILT_IN, DEFAULT_TEXT, MAX_BYTES, Broken, Rules, parse_rules, render_rules
from persistence.settings_values import Diagnostic
from persistence.workspace import LAST_RULES, LEGACY_RULES, LEGACY_RULES_BACKUP, RULES, Workspace

__all__ = ["Rules", "RulesStore", "RulesView", "render_rules"]

logger = logging.getLogger(__name__)

_Read: TypeAlias = bytes | PersistenceError | None


@dataclass(frozen=True, slots=True)
class RulesView:
    """The rules in force. `path` is the file that they come from, `etag` its version (None: there is no such file).

    `broken`: the file can't be read as a whole; what it said last stays in force, else the built-in rules.
    """

    rules: Rules
    diagnostics: tuple[Diagnostic, ...]
    path: str
    etag: str | None
    broken: bool


class RulesStore:
    """Owns memory.jsonc. Safe for threads, and for people and other programs that change the file."""

    def __init__(self, workspace: Workspace) -> None:
        """Open no file yet."""
        self._root = workspace.root
        self._lock_name = workspace.lock_of(RULES)
        self._mutex = threading.Lock()  # guards the three below
        self._seen: tuple[str, _Read] | None = None
        self._view: RulesView | None = None
        self._good: Rules | None = None

    def load(self) -> RulesView:
        """The rules in force now. Always reads the file, parses it when its bytes are new (7 ms a KB); never raises.

        An absent file means the built-in rules, or those of an older version's file as long as `ensure` has not taken it over.
        """
        source = self._find()
        with self._mutex:
            if self._view is None or self._seen != source:
                self._view, self._seen = self._resolve(*source), source
            return self._view

    def ensure(self) -> RulesView:
        """Create memory.jsonc when it is absent: from an older version's file if there is one, else with the defaults.

        Who creates it first wins. The older file stays as it is, with a backup beside it. Raises the archive's errors.
        """
        if not os.path.lexists(self._root / RULES):
            legacy = read_bytes(self._root, LEGACY_RULES)
            if legacy is not None:
                create_bytes(self._root, LEGACY_RULES_BACKUP, legacy)
            create_bytes(self._root, RULES, DEFAULT_TEXT.encode() if legacy is None else legacy)
        return self.load()

    def _find(self) -> tuple[str, _Read]:
        data = self._read(RULES)
        if data is None and (legacy := self._read(LEGACY_RULES)) is not None:
            return LEGACY_RULES, legacy
        return RULES, data

    def _read(self, name: str) -> _Read:
        """The bytes of the file; memory.jsonc may be a link to a regular file."""
        folder, last = self._root, name
        try:
            if name == RULES:
                folder, last = real_place(self._root, name)
            data = read_bytes(folder, last, limit=MAX_BYTES)
        except FileNotFoundError:  # the folder that a link points into is gone
            data = None
        except PersistenceError as err:
            return err
        is_link = (folder, last) != (self._root, name)
        return StoreFaultError(f"{name!r} is a link that leads nowhere") if is_link and data is None else data

    def _resolve(self, path: str, data: _Read) -> RulesView:
        if data is None:
            return RulesView(BUILT_IN, (), path, None, broken=False)
        if isinstance(data, PersistenceError):
            return RulesView(self._last_good(), (Diagnostic(path, str(data)),), path, None, broken=True)
        parsed = parse_rules(data, self._last_good())
        if isinstance(parsed, Broken):
            said = Diagnostic(path, parsed.reason, parsed.line)
            return RulesView(self._last_good(), (said,), path, etag_of(data), broken=True)
        self._keep_good(parsed.rules)
        return RulesView(parsed.rules, parsed.diagnostics, path, etag_of(data), broken=False)

    def _last_good(self) -> Rules:
        """What a readable file said last, in this process or an earlier one."""
        if self._good is None:
            self._good = self._read_last() or BUILT_IN
        return self._good

    def _read_last(self) -> Rules | None:
        try:
            data = read_bytes(self._root, LAST_RULES)
        except PersistenceError as err:
            logger.warning("the last rules are not used: %s", err)
            return None
        parsed = None if data is None else parse_rules(data, BUILT_IN)
        return None if parsed is None or isinstance(parsed, Broken) else parsed.rules

    def _keep_good(self, rules: Rules) -> None:
        """Remember what was in force, for a start with a broken file. A failure costs only that."""
        if rules == self._last_good() and self._read_last() == rules:
            return
        self._good = rules
        try:
            with locked(self._root, LAST_RULES, Workspace.lock_of(LAST_RULES), timeout_s=0) as held:
                replace_bytes(self._root, LAST_RULES, json.dumps(asdict(rules)).encode(), held)
        except PersistenceError as err:
            logger.warning("the rules in force were not kept for a later start: %s", err)
