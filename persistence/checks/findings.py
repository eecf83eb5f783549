"""What the doctor finds and what was done about it: values. Who looks and who repairs is in the rooms that end in `_checks`."""

import os
from collections.abc import Generator
from dataclasses import dataclass

from persistence.files import open_regular, translate
from persistence.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Finding:
    """Something on the volume that is not as it should be. `line` is 1-based; `fixable`: `repair` can put it right without loss.

    What is not fixable is either harmless and kept for ever (a bad line of a log), or a person's to decide.
    """

    code: str
    path: str
    line: int | None
    detail: str
    fixable: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """A finding that was acted on. `done` False: it could not be put right now, `action` says why."""

    finding: Finding
    done: bool
    action: str


def read_numbered(workspace: Workspace, name: str) -> Generator[tuple[int, bytes], None, None]:
    """(1-based number, bytes with the LF if there is one) of each line; nothing when the file is gone."""
    try:
        fd = open_regular(workspace.root, name)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "rb") as file:
        try:
            yield from enumerate(file, start=1)  # split at 0x0A alone
        except OSError as err:
            raise translate(err, name) from err
