"""Texts with a token by which a deed's trace is found again, whole or not at all."""

import re

TOKEN = re.compile(r"\[\[([a-z0-9]+:[0-9]+)\]\]")
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "ships",
    "carry",
    "much",
    "grain",
    "past",
    "the",
    "old",
    "harbour",
    "wall",
]


def token(writer, number):
    return f"[[{writer}:{number}]]"


def text_of(writer, number, *, most_words=400):
    """A text of few or many words, the same for the same deed, with its token at both ends so that a cut is seen."""
    count = 1 + (number * 7919 + len(writer) * 104_729) % most_words
    words = " ".join(_WORDS[place % len(_WORDS)] for place in range(count))
    return f"{token(writer, number)} {words} {token(writer, number)}"


def whole_texts(text):
    """(writer:number) of each text that stands there whole, once for each time."""
    found = TOKEN.findall(text)
    return found[::2] if found[::2] == found[1::2] else [f"torn near {found[:4]}"]


def count_problems(found, stories, *, wanted=lambda _: True):
    """What is wrong with the tokens found, each of which must be there once if its deed was done, and at most once if not."""
    problems = []
    for writer, deeds in stories.items():
        for deed in filter(wanted, deeds):
            times = found.get(f"{writer}:{deed.number}", 0)
            if times > 1:
                problems.append(f"{writer}:{deed.number} is there {times} times")
            if deed.is_done and times == 0:
                problems.append(f"{writer}:{deed.number} was acknowledged and is lost")
    return problems
