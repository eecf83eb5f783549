"""What each lane's prompt holds of the topic indexes between two refreshes (docs/decisions/0006). Owns one small value a lane."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from bot.prompt import TopicList
from persistence.cadence import Cadence
from persistence.workspace import Lane

_LANES: Final = 4096


class HeldTopics:
    """The cadence of every lane. Safe for threads; a lane that was not used for long begins anew."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lanes: OrderedDict[Lane, Cadence[Sequence[TopicList]]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, lane: Lane, read: Callable[[], Sequence[TopicList]], *, every_n: int, written: int) -> Sequence[TopicList]:
        """Count a turn, and give what its prompt shows: read anew when the cadence says so, else what the last one showed."""
        with self._lock:
            cadence = self._begin(lane)
        if cadence.held is None or cadence.is_due(every_n=every_n, written=written):
            cadence = cadence.hold(read(), written=written)
        with self._lock:
            self._lanes[lane] = cadence
            self._lanes.move_to_end(lane)
            while len(self._lanes) > _LANES:
                self._lanes.popitem(last=False)
        return cadence.held or ()

    def peek(self, lane: Lane, read: Callable[[], Sequence[TopicList]], *, every_n: int, written: int) -> Sequence[TopicList]:
        """What the lane's next turn would show; counts nothing."""
        with self._lock:
            cadence = self._begin(lane)
        due = cadence.held is None or cadence.is_due(every_n=every_n, written=written)
        return read() if due else cadence.held or ()

    def _begin(self, lane: Lane) -> Cadence[Sequence[TopicList]]:
        fresh: Cadence[Sequence[TopicList]] = Cadence()
        return self._lanes.get(lane, fresh).begin_turn()

    def forget(self, lane: Lane) -> None:
        """Begin anew: after a compaction the lane's prefix has changed anyway."""
        with self._lock:
            self._lanes.pop(lane, None)
