"""Topic directories as the public tools leave them, and what the tests of topics share."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from persistence.audit import Author
from persistence.topic_store import TopicStore
from persistence.workspace import Workspace

AMY = Author("user:amy", "a test")
ZONE = timezone(timedelta(hours=2))

PI_0_3_9 = {
    "MEMORY.md": (
        "# Memory Index\n\n## Servers\n\n"
        "- [Docker Setup](docker-setup.md) [pin] 2026-08-07T01:15:30+08:00 -- compose v2, data on /srv\n"
        "<!-- written by hand -->\n"
        "- [Zeta One](zeta-one.md) 2026-08-01T10:00:00+08:00 x:7 -- first -- of two\n"
    ),
    "docker-setup.md": (
        '---\nmetadata:\n  node_type: memory\n  origin: pi\nname: "Docker Setup"\ndescription: "compose v2, data on /srv"\n'
        "last_updated: 2026-08-07T01:15:30+08:00\ncreated: 2026-01-02T03:04:05+08:00\ntype: reference\n---\n\n"
        "Use compose v2, see [[zeta-one]].\n\n## 2026-08-06\n\nData is on /srv.\n"
    ),
    "zeta-one.md": '---\nmetadata:\n  node_type: memory\nname: "Zeta One"\ndescription: "first -- of two"\n'
    "last_updated: 2026-08-01T10:00:00+08:00\ncreated: 2026-08-01T10:00:00+08:00\n---\n\nOne.\n",
}
OC_0_6_2 = {
    "MEMORY.md": (
        "# Memory Index\n\n\n- [API: keys](api-keys.md) 2025-03-04 [stale?] -- where they are kept\n\n"
        "- [Old](old.md) 2025-01-01 -- o"
    ),
    "api-keys.md": (
        "---\nname: API: keys\ndescription: where they are kept\ncreated: 2025-03-04\nlast_updated: 2025-03-04\n"
        "metadata:\n  node_type: memory\n  x: [1, 2]\n---\n\nIn the vault.\n"
    ),
    "old.md": (
        "---\nname: Old\ndescription: o\ncreated: 2025-01-01\nlast_updated: 2025-01-01\n"
        "metadata:\n  node_type: memory\n---\nold body"
    ),
}
OC_0_6_7 = {
    "MEMORY.md": (
        "# Memory Index\r\n\r\nKeep it short.\r\n- [Ops](ops.md) [pin] 2026-05-06T07:08:09-03:00 [stale?] -- who is on call\r\n"
    ),
    ".ocl-removed": "gone-topic.md\r\n",
    ".invalidate": "",
    "gone-topic.md": '---\nname: "Gone Topic"\ndescription: "g"\nlast_updated: 2026-01-01T00:00:00+00:00\n---\n\ngone\n',
    "ops.md": (
        '---\r\nmetadata:\r\n  node_type: memory\r\nname: "Ops"\r\ndescription: "who is on call"\r\n'
        "last_updated: 2026-05-06T07:08:09-03:00\r\ncreated: 2026-05-06T07:08:09-03:00\r\n"
        "aliases:\r\n  - oncall\r\n---\r\n\r\nAsk Sam.\r\n"
    ),
}


class Clock:
    """A local time that a test sets."""

    def __init__(self, now: datetime = datetime(2026, 8, 10, 9, 30, 15, 999_999, ZONE)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def put(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def store_of(workspace: Workspace, clock: Clock | None = None, **options) -> TopicStore:
    return TopicStore(workspace, options.pop("channel", None), clock=clock or Clock(), **options)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below, but for recalld's own state."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and ".recalld" not in path.relative_to(root).parts
    }


def leftovers(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*") if ".tmp-" in path.name or path.name == ".lock"]
