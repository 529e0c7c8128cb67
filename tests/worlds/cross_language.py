"""Answers for `FUNCTIONS` (device_functions.py) on standard input and output, a line of JSON each.

A line is `{"call": NAME, "in": {…}}`; the answer is `{"out": …}`, or `{"refused": true}` where that
is what a device must do. With it, an implementation in another language can be compared with this
one on as many random inputs as it likes:

    PYTHONPATH=src:tests/worlds python tests/worlds/cross_language.py
"""

import json
import sys

from device_functions import answered


def answers(lines):
    """A line for each."""
    for line in lines:
        asked = json.loads(line)
        yield json.dumps(answered(asked["call"], asked["in"])) + "\n"


if __name__ == "__main__":
    for answer in answers(sys.stdin):
        sys.stdout.write(answer)
        sys.stdout.flush()
