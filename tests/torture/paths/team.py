"""Team memory: entries of a role's log, decisions, and the events of runs."""

from collections import Counter

from persistence.errors import NotFoundError
from persistence.team import TeamMemory
from persistence.teams.run_events import TaskAdded
from persistence.versions import Author
from persistence.workspace import parse_channel_id
from tests.torture.paths.texts import count_problems, text_of, token, whole_texts

CHANNEL = parse_channel_id("team")
_AUTHOR = Author("user:dev", "torture")


class TeamPath:
    WRITERS = 2
    CYCLES = ((0, 0, 1), (4, 4, 4))

    def __init__(self, workspace, writer):
        self._team = TeamMemory(workspace, CHANNEL)
        self._writer = writer
        self._head = None

    def plan(self, number):
        kind = ("entry", "decision", "event", "event")[number % 4]
        return {"kind": kind, "text": text_of(self._writer, number, most_words=20), "number": number}

    def do(self, intent):
        match intent["kind"]:
            case "entry":
                self._team.append_entry("dev", intent["text"], stage="work", author=_AUTHOR)
                return {}
            case "decision":
                title = f"Decided {token(self._writer, intent['number'])}"
                return {"decision": self._team.decide("architect", title, body=intent["text"], author=_AUTHOR).id}
            case _:
                return self._event(intent)

    def _event(self, intent):
        if self._head is None:
            self._head = self._team.runs.start("torture", by="human:amy")
        else:
            task = TaskAdded(type="task.added", task=f"t{intent['number']}", role="dev", title=intent["text"][:100])
            head, self._head = self._head, None  # whatever goes wrong, the next event begins another run
            self._head = self._team.runs.append(head.run_id, task, by="agent:dev", seq=head.seq + 1, prev=head.head)
        return {"run": self._head.run_id, "seq": self._head.seq, "head": self._head.head}

    @staticmethod
    def check(workspace, stories):
        path = workspace.root / workspace.team_memory(CHANNEL) / "log/dev.md"
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        is_entry = lambda deed: deed.intent["kind"] == "entry"
        problems = count_problems(Counter(whole_texts(text)), stories, wanted=is_entry)
        team = TeamMemory(workspace, CHANNEL)
        for writer, deeds in stories.items():
            done = [deed for deed in deeds if deed.is_done]
            problems += [found for deed in done if "decision" in deed.result if (found := _lost_decision(team, writer, deed))]
        runs = {
            deed.result["run"]: deed.result
            for deeds in stories.values()
            for deed in deeds
            if deed.is_done and "run" in deed.result
        }
        return problems + [found for result in runs.values() if (found := _lost_event(team, result))]


def _lost_decision(team, writer, deed):
    try:
        body = team.read_decision(deed.result["decision"]).body
    except NotFoundError:
        return f"decision {deed.result['decision']} was acknowledged and is lost"
    whole = whole_texts(body) == [f"{writer}:{deed.number}"]
    return "" if whole else f"decision {deed.result['decision']} is torn"


def _lost_event(team, result):
    """`result` is of the last acknowledged event of its run."""
    try:
        report = team.runs.report(result["run"])
    except NotFoundError:
        return f"run {result['run']} was acknowledged and is lost"
    sound = report.corrupt is None and report.seq >= result["seq"]
    return "" if sound else f"run {result['run']} stands at {report.seq} ({report.corrupt}), {result['seq']} was acknowledged"
