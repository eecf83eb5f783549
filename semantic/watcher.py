"""Says when files changed, as a hint, by the operating system's events. The sweep is the guarantee."""

import logging
import os
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import watchfiles

from semantic.scanner import classify, may_hold_documents

_DEBOUNCE_MS: Final = 200
_STEP_MS: Final = 50

logger = logging.getLogger(__name__)


def wakes(root: Path, change: watchfiles.Change, path: str) -> bool:
    """Whether a change matters: to a document, or a new folder that can hold some. `.recalld` never does."""
    name = unicodedata.normalize("NFC", os.path.relpath(path, root))
    if classify(name) is not None:
        return True
    return change == watchfiles.Change.added and may_hold_documents(name) and Path(path).is_dir()


async def watch(root: Path, folders: Iterable[str], on_change: Callable[[], None]) -> None:
    """Call `on_change` soon after a document in one of `folders` (named as on disk) changed, until cancelled.

    Only these folders are watched, each by itself: no link is followed, and the index's own writes make no events. Returns when
    the system can't watch (no inotify, too many watches, a folder that just went away): then the sweep has to find changes.
    """
    paths = [root / folder for folder in sorted(folders)]
    try:
        async for _ in watchfiles.awatch(
            *paths,
            watch_filter=lambda change, path: wakes(root, change, path),
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            recursive=False,
            ignore_permission_denied=False,  # with it every error is passed over, also having no watches left
            force_polling=False,
        ):
            on_change()
    except (OSError, RuntimeError) as err:
        logger.warning("files can't be watched (%s): changes are found by the sweep alone", err)
