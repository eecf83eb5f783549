"""settings.json: a counter that several writers raise. A lost update, or a torn file, shows in its value."""

import json

from persistence.settings import SettingsStore
from persistence.workspace import SETTINGS

COUNTER = "torture_count"


class SettingsPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (1, 1, 1))

    def __init__(self, workspace, writer):
        self._store = SettingsStore(workspace)
        self._writer = writer

    def plan(self, number):
        return {"value": number}

    def do(self, intent):
        count = 0

        def change(values):
            nonlocal count
            count = values.get(COUNTER, 0) + 1
            return values | {COUNTER: count, f"torture_{self._writer}": intent["value"]}

        self._store.update(change)
        return {"count": count}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / SETTINGS
        deeds = [deed for story in stories.values() for deed in story]
        done = sum(deed.is_done for deed in deeds)
        values = json.loads(path.read_bytes()) if path.exists() else {}
        count = values.get(COUNTER, 0)
        problems = [] if done <= count <= len(deeds) else [f"the counter is {count} after {done} of {len(deeds)} updates"]
        for writer, story in stories.items():
            allowed = {None}
            for deed in story:
                allowed = {deed.number} if deed.is_done else allowed | {deed.number}
            if values.get(f"torture_{writer}") not in allowed:
                problems.append(f"{writer} wrote one of {allowed}, the file has {values.get(f'torture_{writer}')}")
        return problems
