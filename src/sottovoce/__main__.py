"""The `sottovoce` command, and `python -m sottovoce`."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from sottovoce.services.agent import alone


def main() -> None:
    """Entry point of the command, in a process of its own."""
    if sys.argv[1:2] == [alone.WORD]:
        _alone()
    else:
        from sottovoce.cli import main as command

        command(may_become=True)


def _alone() -> None:
    """One device's agent. The command line is loaded only for its words."""
    alone.speak_anywhere()
    given = json.loads(sys.argv[2])
    try:
        served = alone.serve(given)
    except BaseException as error:
        trouble = error
        from sottovoce.cli import ended

        def again() -> NoReturn:
            raise trouble

        sys.exit(ended(again, given["json"]))
    if given["json"]:
        from sottovoce.cli import output

        output.emit({"stores": served})


if __name__ == "__main__":
    main()
