"""How many log entries a role wrote in a run: a small cache beside the tree, since an entry's line doesn't name its run."""

from persistence.errors import RunEntryQuotaError
from persistence.files import etag_of, read_bytes
from persistence.lines import Tail, append_lines
from persistence.records import decode_line, encode_line
from persistence.teams.log import RUN_QUOTA
from persistence.workspace import Workspace


def claim_entry(workspace: Workspace, name: str, role: str, line: str) -> bool:
    """Take one of the entries that `role` has in the run whose cache is `name`; True when it was taken for this line before.

    It is taken before the entry is written: what fails or crashes in between costs nothing, once the same entry is tried again.
    Raises RunEntryQuotaError.
    """
    digest = etag_of(line.encode("utf-8"))
    again = False

    def build(tail: Tail) -> list[bytes]:
        nonlocal again
        taken = _taken(tail.lines, role)
        again = digest in taken
        if not again:
            _check(taken, role)
        return [] if again else [encode_line({"role": role, "entry": digest})]

    append_lines(workspace.root, name, build)
    return again


def refuse_over_quota(workspace: Workspace, name: str, role: str) -> None:
    """Raise RunEntryQuotaError when `role` has no entry left in the run."""
    _check(_taken((read_bytes(workspace.root, name) or b"").split(b"\n"), role), role)


def _check(taken: set[str], role: str) -> None:
    if len(taken) >= RUN_QUOTA:
        raise RunEntryQuotaError(f"{role} wrote {RUN_QUOTA} entries in this run already: put the rest into one of its artifacts")


def _taken(lines: list[bytes], role: str) -> set[str]:
    values = [value for line in lines if (value := decode_line(line)) is not None]
    return {str(value.get("entry")) for value in values if value.get("role") == role}
