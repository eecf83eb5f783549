"""The write paths under torture, one class each.

A class says how many writers take the path at once (`WRITERS`), and which deeds show all its kinds (`CYCLES`: how many
come before, the number of the first, how many they are). It is made in a writer's process. `plan` gives the intent of a
deed, `do` does it and returns what was acknowledged; `check` (in the harness, after a restart) returns what is wrong.
"""

from tests.torture.paths.compaction import CompactionPath
from tests.torture.paths.context import ContextPath
from tests.torture.paths.handoff import HandoffPath
from tests.torture.paths.log import LogPath
from tests.torture.paths.notes import NotesPath
from tests.torture.paths.settings import SettingsPath
from tests.torture.paths.team import TeamPath
from tests.torture.paths.topics import TopicsPath
from tests.torture.paths.versions import VersionsPath

PATHS = {
    "log": LogPath,
    "context": ContextPath,
    "topics": TopicsPath,
    "settings": SettingsPath,
    "notes": NotesPath,
    "handoff": HandoffPath,
    "versions": VersionsPath,
    "compaction": CompactionPath,
    "team": TeamPath,
}
