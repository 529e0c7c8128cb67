"""The `sottovoce` command, and `python -m sottovoce`."""

from __future__ import annotations

import sys
from typing import Any

from sottovoce.services.agent import alone


def main() -> None:
    """Entry point of the command, in a process of its own."""
    given = alone.given(sys.argv[1:])
    if given is not None:
        _alone(given)
    else:
        from sottovoce.cli import main as command

        command(may_become=True)


def _alone(given: dict[str, Any]) -> None:
    """One device's agent. The command line is loaded only for its words."""
    alone.speak_anywhere()
    try:
        served = alone.serve(given)
    except BaseException as error:
        trouble = error
        from sottovoce.cli import ended, output

        def again() -> int:
            if isinstance(trouble, KeyboardInterrupt):
                return output.Interrupted.exit_code
            raise trouble

        sys.exit(ended(again, given["json"]))
    if given["json"]:
        from sottovoce.cli import output

        output.emit({"stores": served})


if __name__ == "__main__":
    main()
