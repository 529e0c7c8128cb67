"""The command line: parsing and printing, nothing else. Heavy imports wait until needed."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer

import sottovoce
from sottovoce.cli import output
from sottovoce.cli.commands import Root
from sottovoce.core.installed import EXTRA_OF, needs
from sottovoce.core.words import Said
from sottovoce.errors import RunError, SottovoceError, Told, UsageError

app = typer.Typer(
    name="sottovoce",
    cls=Root,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    suggest_commands=False,  # click does
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None, *, may_become: bool = False) -> None:
    """The `sottovoce` command. With `may_become` the process is nobody else's, and may become that
    of another command (`device join --stay`)."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without π shows "?", not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(call(given, may_become=may_become))


def call(arguments: list[str], *, may_become: bool = False) -> int:
    """Run one command; the exit code."""
    return ended(
        lambda: app(args=arguments, prog_name="sottovoce", standalone_mode=False, obj=may_become),
        "--json" in arguments,
    )


def ended(work: Callable[[], Any], as_json: bool) -> int:
    """The exit code of `work`. Errors that a user can cause, and a disk or memory that is full,
    become one sentence."""
    try:
        code = work()
    except Told as error:
        message = output.joined(Said(error.key, error.values))
        return output.fail(message, error.exit_code, "Told", as_json)
    except SottovoceError as error:
        return output.fail(str(error), error.exit_code, type(error).__name__, as_json)
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.partition(".")[0] not in EXTRA_OF:
            raise
        return output.fail(f"this {needs(module)}", UsageError.exit_code, "UsageError", as_json)
    except (OSError, MemoryError) as error:
        return output.fail(_words(error), RunError.exit_code, type(error).__name__, as_json)
    except click.exceptions.Abort:  # Ctrl-C or the end of the input, at a question
        message = "the question was not answered, and what it asked for was not done"
        code = output.Interrupted.exit_code
        return output.fail(message, code, "Interrupted", as_json)
    except RuntimeError as error:
        if "no locator available" not in str(error):  # numba's words for it
            raise
        message = (
            "compiled code can be kept neither beside the package nor in the user's cache; set "
            "NUMBA_CACHE_DIR to a folder that may be written"
        )
        return output.fail(message, RunError.exit_code, "RunError", as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return UsageError.exit_code
    except click.ClickException as error:
        usage = getattr(error, "ctx", None)
        hint = f" (see `{usage.command_path} --help`)" if usage is not None else ""
        message = error.format_message().rstrip(".") + hint
        return output.fail(message, UsageError.exit_code, "UsageError", as_json)
    if code == output.Interrupted.exit_code:  # outside of what `interruptible` covers
        return output.fail("nothing was changed", code, "Interrupted", as_json)
    return code if isinstance(code, int) else 0


def _words(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"there is not enough memory{detail}; make the data or the model smaller"
    what = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename2 or error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}{what}; free some space and try again"
    return f"{where}{what}; look whether the place is there and may be written"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sottovoce {sottovoce.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="FILE.py", help="Load components of your own first; repeatable."
        ),
    ] = None,
) -> None:
    """Federated recommendation in which every user decides what leaves the device.

    \b
    Start here:
      sottovoce demo                          the whole story, in some minutes
      sottovoce run tuned/fpl                 an experiment that comes with the package
      sottovoce recommend runs/demo --user r00003
      sottovoce ledger runs/demo --user r00003
      sottovoce attack runs/demo              what its promises are worth
      sottovoce serve --help                  the same, between real machines
      sottovoce docs                          the documents of this installation

    Every command takes --json: one JSON object on standard output, everything else on standard
    error. Exit codes: 0 done, 2 bad option or experiment, 3 data, 4 run folder or diverged
    training, 5 consent, 6 message, 7 service, 130 interrupted.
    """
    if files:
        from sottovoce.registry import use_file

        for file in files:
            use_file(file)
