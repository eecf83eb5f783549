"""The words of a text that carry its meaning, for matching without a model. Pure."""

import re
from typing import Final

_WORD: Final = re.compile(r"\w{2,}")
_STOP_WORDS: Final = """
a an and are about as at be by can could did do does for from had has have how i if in is it know me my of on or our say said
says should so tell that the their there they this to us was we were what when where which who whom why will with you your
"""
_STOP: Final = frozenset(_STOP_WORDS.split())
_STEM_CHARS: Final = 6


def content_words(text: str) -> frozenset[str]:
    """Case-folded words without the empty ones, cut to their first letters so that "deploy" meets "deployed"."""
    return frozenset(word[:_STEM_CHARS] for word in _WORD.findall(text.casefold()) if word not in _STOP)
