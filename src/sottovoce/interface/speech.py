"""Sentences of the command line, as somebody who writes Python needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sottovoce.errors import SottovoceError

_OPTIONS = (
    (r"--column (\w+)=(\w+|-)", r'columns={"\1": "\2"}'),
    (r"--columns ([\w,]+)", r'names="\1".split(",")'),
    (r"--no-header", "header=False"),
    (r"--skip-bad", "skip_bad=True"),
    (r"--dates ([\w-]+)", r'dates="\1"'),
    (r"--delimiter tab", r'delimiter="\\t"'),
    (r"--device (\w+)", r'device="\1"'),
    (r"--out\b", "out="),
    (r"(?<!\w)-n must", "n must"),
    (r"--rounds\b", "rounds="),
    (r"--columns\b", "names="),
    (r"--delimiter\b", "delimiter="),
    (r'algorithm\.negatives = "untouched"', 'sv.DRIFT(preset="tuned")'),
    (
        r"take data that have it, or name others in (algorithm\.|hidden_)attributes",
        "say it with sv.load(users=...), or name others in hidden_attributes=",
    ),
)
"""Options, and what they are called here."""


def in_python(sentence: str) -> str:
    """A sentence with arguments in the place of options."""
    for option, argument in _OPTIONS:
        sentence = re.sub(option, argument, sentence)
    return sentence


@contextmanager
def spoken() -> Iterator[None]:
    """Errors speak of arguments."""
    try:
        yield
    except SottovoceError as error:
        told = in_python(str(error))
        if told == str(error):
            raise
        raise type(error)(told) from None
