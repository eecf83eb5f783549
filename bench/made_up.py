"""Made-up notes and logs: the same for the same seed, varied enough that words and meanings differ."""

import json
import random
from pathlib import Path

_SUBJECTS = """billing service,search gateway,mobile app,invoice job,login page,image store,queue worker,metrics board,
build farm,release train,customer portal,mail relay,feature flags,audit trail,nightly backup,load balancer"""
_VERBS = """restarts,was moved,fails over,is owned by the platform team,needs a second reviewer,was measured,keeps a cache,
drops old rows,rotates its certificate,scales to four replicas,was rewritten in spring,reads from the replica"""
_WHEN = """every Monday,at 03:00 UTC,after the freeze,since the outage in June,before each release,on the first of a month,
when the queue is longer than 500,within ten minutes,during office hours,after two failed attempts"""
_WHY = """because customers noticed delays,to keep costs flat,as agreed in the retro,so that the on-call person can sleep,
because the vendor asked for it,to make roll-backs boring,since the old way lost data,to satisfy the auditors"""
SUBJECTS, VERBS, WHEN, WHY = (" ".join(words.split()).replace(", ", ",").split(",") for words in (_SUBJECTS, _VERBS, _WHEN, _WHY))


def sentence(rng: random.Random) -> str:
    """One plausible sentence with a few numbers in it."""
    return (
        f"The {rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(WHEN)} {rng.choice(WHY)} "
        f"(ticket {rng.choice('ABCDE')}{rng.randint(100, 9999)}, {rng.randint(2, 900)} ms)."
    )


def note(rng: random.Random, sections: int) -> str:
    """A Markdown note with headings and paragraphs."""
    parts = [f"# Notes on the {rng.choice(SUBJECTS)}\n"]
    for number in range(sections):
        parts.append(f"## {rng.choice(VERBS).capitalize()} ({number})\n")
        parts.append(" ".join(sentence(rng) for _ in range(rng.randint(2, 5))) + "\n")
    return "\n".join(parts)


def write_notes(folder: Path, files: int, *, sections: int, seed: int = 7) -> None:
    """Write `files` notes into `folder`."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (folder / f"note-{number:05}.md").write_text(note(rng, sections), "utf-8")


def write_log(path: Path, lines: int, *, seed: int = 11) -> None:
    """Write a log of `lines` messages, a tenth of them in threads."""
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as log:
        root = None
        for number in range(lines):
            ts = f"{1_700_000_000 + number}.000100"
            record = {"ts": ts, "user": f"u{number % 9}", "text": sentence(rng), "isBot": False}
            if root and number % 10 == 0:
                record["threadTs"] = root
            elif number % 10 == 1:
                root = ts
            log.write(json.dumps(record) + "\n")
