"""The cost of one new message with a short and a long log: append it, and bring it into the channel's context."""

import tempfile
from pathlib import Path

from bench.made_up import write_log
from bench.measure import interleave, once, row, title
from persistence.context import Context
from persistence.log import ChannelLog, NewMessage
from persistence.sync import sync_log_to_context
from persistence.workspace import ChannelId, Lane, Workspace, open_workspace

SIZES = (1_000, 100_000)


class Conversation:
    """A channel with a log of a given size, warmed by one sync."""

    def __init__(self, workspace: Workspace, lines: int) -> None:
        channel = ChannelId(f"lines-{lines}")
        write_log(workspace.root / workspace.log(channel), lines)
        self._workspace = workspace
        self._log = ChannelLog(workspace, channel)
        self._context = Context(workspace, Lane(channel))
        self.first_ms = once(self.bring_one)

    def append_one(self) -> str:
        """Log one message and return its ts."""
        return self._log.append(NewMessage(text="one more message", user="amy")).record.ts

    def bring_one(self) -> None:
        """Log two messages and sync up to the second: one new message goes into the context."""
        self.append_one()
        sync_log_to_context(self._log, self._context, self._workspace, current_ts=self.append_one())


def run() -> None:
    """Print append and sync with both sizes, in turn."""
    title("One new message: append and sync, by the length of the log")
    with tempfile.TemporaryDirectory() as folder:
        workspace = open_workspace(Path(folder))
        small, large = (Conversation(workspace, lines) for lines in SIZES)
        append_small, append_large, sync_small, sync_large = interleave(
            (small.append_one, large.append_one, small.bring_one, large.bring_one), 60
        )
    for name, samples in (
        ("append, 1,000 lines", append_small),
        ("append, 100,000 lines", append_large),
        ("two appends and a sync, 1,000 lines", sync_small),
        ("two appends and a sync, 100,000 lines", sync_large),
    ):
        row(name, samples)
    row("append: 100,000 / 1,000 lines", f"{append_large.p50 / append_small.p50:.2f}")
    row("sync: 100,000 / 1,000 lines (promise: under 2)", f"{sync_large.p50 / sync_small.p50:.2f}")
    row("the very first sync (once per lane), 1,000 lines", f"{small.first_ms:.0f} ms")
    row("the very first sync (once per lane), 100,000 lines", f"{large.first_ms:.0f} ms")
