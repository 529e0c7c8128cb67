"""The `sottovoce` command, and `python -m sottovoce`."""

from __future__ import annotations


def main() -> None:
    """Entry point of the command, in a process of its own."""
    from sottovoce.cli import main as command

    command(may_become=True)


if __name__ == "__main__":
    main()
