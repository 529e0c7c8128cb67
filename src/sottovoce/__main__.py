"""The `sottovoce` command, and `python -m sottovoce`."""

from sottovoce import cli


def main() -> None:
    """Entry point of the command, in a process of its own."""
    cli.main(may_become=True)


if __name__ == "__main__":
    main()
