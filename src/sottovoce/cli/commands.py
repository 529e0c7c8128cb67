"""All commands by name. The module of a command is imported when the command is asked for."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import click
import typer.core
import typer.main
from typer.models import CommandInfo

typer.core.HAS_RICH = False  # plain help: without rich it is there twice as fast

ROOT = {
    "demo": "demo:demo",
    "run": "training:run",
    "tune": "tuning:tune",
    "recommend": "views:recommend",
    "ledger": "views:ledger",
    "report": "views:report",
    "attack": "attack:attack",
    "reproduce": "published:reproduce",
    "benchmark": "published:benchmark",
    "bench": "published:bench",
    "budget": "budget:budget",
    "components": "docs:components",
    "console": "console:console",
    "backup": "copies:backup",
    "restore": "copies:restore",
    "docs": "docs:docs",
    "data": "Show and import data sets.",
    "serve": "Run a party of a real federation as a service.",
    "keys": "Make and look at a federation's keys.",
    "device": "Everything that a person does: her data and her choices.",
}
"""The function of each command by name, and the help of each group in `GROUPS`."""

GROUPS = {
    "data": {"show": "data:show", "import": "data:bring"},
    "serve": {
        "setup": "serve_setup:setup",
        "server": "serve_server:server",
        "invite": "serve_server:invite",
        "introduce": "serve_server:introduce",
        "status": "serve_status:status",
        "versions": "serve_status:versions",
        "publish": "serve_server:publish",
        "terms": "serve_terms:terms",
        "catalogue": "serve_terms:catalogue",
        "target": "serve_server:target",
        "shut-out": "serve_server:shut_out",
        "devices": "serve_operate:devices",
        "places": "serve_operate:places",
        "pause": "serve_operate:pause",
        "token": "serve_operate:token",
        "log": "serve_operate:log",
        "site": "serve_site:site",
        "device": "serve_agents:device",
        "shuffler": "serve_shuffler:shuffler",
        "helper": "serve_sums:helper",
        "aggregator": "serve_sums:aggregator",
        "residents": "serve_agents:residents",
        "owner": "serve_owner:owner",
        "orchestrator": "serve_orchestrator:orchestrator",
        "superlink": "serve_flower:superlink",
        "supernode": "serve_flower:supernode",
        "cohort": "serve_flower:cohort",
        "flower": "serve_flower:flower",
        "nginx": "serve_flower:nginx",
    },
    "keys": {
        "init": "keys:init",
        "show": "keys:show",
        "renew": "keys:renew",
        "node": "keys:node",
    },
    "device": {
        "init": "device:init",
        "join": "device_join:join",
        "import": "device:bring",
        "consent": "device:consent",
        "attributes": "device_attributes:attributes",
        "agree": "device_terms:agree",
        "interact": "device_owners:interact",
        "send": "device_owners:send",
        "recommend": "device:recommend",
        "ledger": "device:ledger",
        "status": "device:status",
        "attack": "device_centre:attack",
        "export": "device_export:export",
        "page": "console:page",
        "preview": "device_centre:preview",
        "never": "device_centre:never",
        "remove": "device_centre:remove",
        "stop": "device_centre:stop",
        "leave": "device_owners:leave",
        "erase": "device_centre:erase",
    },
}


class Commands(UserDict[str, Any]):
    """Commands by name. Each is a function that makes it until it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        made = self.data[name]
        command: click.Command = made if isinstance(made, click.Command) else made()
        self.data[name] = command
        return command


class _Command(typer.core.TyperCommand):
    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: typer writes the arguments itself, and click 8.5 would repeat them."""


class _Group(typer.core.TyperGroup):
    format_arguments = _Command.format_arguments


class Root(_Group):
    """The group of all commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Commands(_made(None, ROOT))


def _made(group: str | None, places: Mapping[str, str]) -> dict[str, Callable[[], click.Command]]:
    made: dict[str, Callable[[], click.Command]] = {}
    for name, place in places.items():
        if group is None and name in GROUPS:
            made[name] = partial(_group, name, place)
        else:
            made[name] = partial(_command, name, place)
    return made


def _group(name: str, words: str) -> click.Command:
    return _Group(
        name=name,
        commands=Commands(_made(name, GROUPS[name])),  # type: ignore[arg-type]
        help=words,
        suggest_commands=False,
        no_args_is_help=True,
        rich_markup_mode=None,
    )


def _command(name: str, place: str) -> click.Command:
    module, _, function = place.partition(":")
    callback = getattr(import_module(f"sottovoce.cli.{module}"), function)
    return typer.main.get_command_from_info(
        CommandInfo(name, cls=_Command, callback=callback),
        pretty_exceptions_short=True,
        rich_markup_mode=None,
    )


class _Argument(typer.core.TyperArgument):
    """An argument that keeps its help: click 8.5 overwrites what typer 0.20 has noted of it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.help = given.get("help")


typer.main.TyperArgument = _Argument  # type: ignore[attr-defined]
