"""The command line: parsing and printing, nothing else. Heavy imports wait until needed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.core
import typer.main

import sottovoce
from sottovoce.cli import (
    attack,
    budget,
    components,
    console,
    copies,
    data,
    demo,
    device,
    device_attack,
    device_attributes,
    device_centre,
    device_export,
    device_join,
    device_owners,
    device_page,
    device_terms,
    docs,
    keys,
    output,
    published,
    serve_aggregator,
    serve_device,
    serve_flower,
    serve_helper,
    serve_operate,
    serve_orchestrator,
    serve_owner,
    serve_residents,
    serve_server,
    serve_setup,
    serve_shuffler,
    serve_site,
    serve_terms,
    training,
    tuning,
    views,
)
from sottovoce.core.installed import EXTRA_OF, needs
from sottovoce.core.words import Said
from sottovoce.errors import RunError, SottovoceError, Told, UsageError
from sottovoce.services.agent.alone import speak_anywhere

typer.core.HAS_RICH = False  # plain help: without rich it is there twice as fast


class _Argument(typer.core.TyperArgument):
    """An argument that keeps its help: click 8.5 overwrites what typer 0.20 has noted of it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.help = given.get("help")


typer.main.TyperArgument = _Argument  # type: ignore[attr-defined]

app = typer.Typer(
    name="sottovoce",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None, *, may_become: bool = False) -> None:
    """The `sottovoce` command. With `may_become` the process is nobody else's, and a long service
    may replace what it has loaded (`serve_device`)."""
    speak_anywhere()
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
      sottovoce run pfpl-plus                 an experiment that comes with the package
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


app.command()(demo.demo)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
data_app.command("list")(data.list_all)
data_app.command("describe")(data.describe)
data_app.command("import")(data.bring)
app.add_typer(data_app, name="data", help="List, describe and import data sets.")
app.command()(training.run)
app.command()(tuning.tune)
app.command()(views.recommend)
app.command()(views.ledger)
app.command()(views.report)
app.command()(attack.attack)
app.command()(published.reproduce)
app.command()(published.benchmark)
app.command()(published.bench)
app.command()(budget.budget)
app.command()(components.components)
app.command()(console.console)
app.command()(docs.docs)

serve_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
serve_app.command("setup")(serve_setup.setup)
serve_app.command("server")(serve_server.server)
serve_app.command("invite")(serve_server.invite)
serve_app.command("introduce")(serve_server.introduce)
serve_app.command("status")(serve_server.status)
serve_app.command("versions")(serve_server.versions)
serve_app.command("publish")(serve_server.publish)
serve_app.command("terms")(serve_terms.terms)
serve_app.command("catalogue")(serve_terms.catalogue)
serve_app.command("target")(serve_server.target)
serve_app.command("shut-out")(serve_server.shut_out)
serve_app.command("devices")(serve_operate.devices)
serve_app.command("label")(serve_operate.label)
serve_app.command("places")(serve_operate.places)
serve_app.command("pause")(serve_operate.pause)
serve_app.command("go-on")(serve_operate.go_on)
serve_app.command("token")(serve_operate.token)
serve_app.command("log")(serve_operate.log)
serve_app.command("site")(serve_site.site)
serve_app.command("device")(serve_device.device)
serve_app.command("shuffler")(serve_shuffler.shuffler)
serve_app.command("helper")(serve_helper.helper)
serve_app.command("aggregator")(serve_aggregator.aggregator)
serve_app.command("residents")(serve_residents.residents)
serve_app.command("owner")(serve_owner.owner)
serve_app.command("orchestrator")(serve_orchestrator.orchestrator)
serve_app.command("superlink")(serve_flower.superlink)
serve_app.command("supernode")(serve_flower.supernode)
serve_app.command("cohort")(serve_flower.cohort)
serve_app.command("flower")(serve_flower.flower)
serve_app.command("nginx")(serve_flower.nginx)
serve_app.command("backup")(copies.backup)
serve_app.command("restore")(copies.restore)
app.add_typer(serve_app, name="serve", help="Run a party of a real federation as a service.")
keys_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
keys_app.command("init")(keys.init)
keys_app.command("show")(keys.show)
keys_app.command("renew")(keys.renew)
keys_app.command("rotate")(keys.rotate)
keys_app.command("node")(keys.node)
app.add_typer(keys_app, name="keys", help="Make and look at a federation's keys.")
device_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
device_app.command("init")(device.init)
device_app.command("join")(device_join.join)
device_app.command("import")(device.bring)
device_app.command("consent")(device.consent)
device_app.command("attributes")(device_attributes.attributes)
device_app.command("agree")(device_terms.agree)
device_app.command("interact")(device_owners.interact)
device_app.command("send")(device_owners.send)
device_app.command("recommend")(device.recommend)
device_app.command("ledger")(device.ledger)
device_app.command("status")(device.status)
device_app.command("attack")(device_attack.attack)
device_app.command("export")(device_export.export)
device_app.command("page")(device_page.page)
device_app.command("preview")(device_centre.preview)
device_app.command("never")(device_centre.never)
device_app.command("remove")(device_centre.remove)
device_app.command("stop")(device_centre.stop)
device_app.command("leave")(device_owners.leave)
device_app.command("erase")(device_centre.erase)
device_app.command("backup")(copies.backup_store)
device_app.command("restore")(copies.restore_store)
app.add_typer(
    device_app, name="device", help="Everything that a person does: her data and her choices."
)
