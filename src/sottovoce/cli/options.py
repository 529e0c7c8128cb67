"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sottovoce.cli import output
from sottovoce.core.choice import FIELDS, Choice
from sottovoce.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", metavar="DIR")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to use; all processors by default. Results are the same."),
]
Store = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="ID", help="Name or number; needed if a store has several users."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
ExperimentFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Make the federation of this experiment file first."),
]
CatalogueFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Items as CSV or Parquet with the columns item and, if you like, title and "
        "categories (with | between them); the experiment's data set by default.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one value of the experiment file."),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--name", metavar="HOST", help="Give new keys this name of the machine; repeatable."
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen at.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")]
Plaintext = Annotated[
    bool,
    typer.Option("--plaintext", help="Serve without TLS. This works on a loopback address only."),
]
AgentsServer = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Use this address of the server instead of the invitation's."),
]
PlaintextTrial = Annotated[
    bool,
    typer.Option("--plaintext", help="Use no TLS, only for a trial with a server on this machine."),
]
Behind = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address or network of a reverse proxy in front of this service, which many visitors "
        "come through: limits per address are then its own business; repeatable.",
    ),
]
PageOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--origin",
        metavar="URL",
        help="The origin of pages whose visitors' tabs are devices, like "
        "https://shop.example; repeatable. Without it no page of another origin can "
        "talk to this service.",
    ),
]
OpenPlaces = Annotated[
    int | None,
    typer.Option(
        "--open-places",
        min=0,
        max=1_000_000_000,
        metavar="N",
        help="Take so many devices without an invitation, in all. This holds until "
        "`sottovoce serve places` says otherwise.",
    ),
]
IntroductionFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Make DIR from this introduction first, a file from the server's operator.",
    ),
]

ProxyUrl = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        metavar="URL",
        help="The address of the federation's shuffler or helper. It goes into the terms.",
    ),
]
ProxyCa = Annotated[
    Path | None,
    typer.Option(
        "--proxy-ca",
        metavar="FILE",
        help="With --proxy: the ca.crt of that service, which its operator has.",
    ),
]
ProxyKey = Annotated[
    Path | None,
    typer.Option(
        "--proxy-key",
        metavar="FILE",
        help="With --proxy, for a secure sum: the public key of the helper, seal.pub.",
    ),
]
AggregatorUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--aggregator",
        metavar="URL",
        help="The address of an aggregator of a checked sum, which goes into the terms. Give "
        "it twice, for the two organisations besides the server's.",
    ),
]
AggregatorCas = Annotated[
    list[Path] | None,
    typer.Option(
        "--aggregator-ca", metavar="FILE", help="For each --aggregator, in order: its ca.crt."
    ),
]
AggregatorKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--aggregator-key",
        metavar="FILE",
        help="For each --aggregator, in order: its public key, seal.pub.",
    ),
]


def three_aggregators(
    urls: list[str] | None, cas: list[Path] | None, keys: list[Path] | None
) -> list[tuple[str, Path, Path]]:
    """Address, authority and key of the two aggregators besides the server, as they were given.
    Raises where something is missing."""
    found = urls or [], cas or [], keys or []
    if not any(found):
        return []
    if {len(one) for one in found} != {2}:
        raise UsageError(
            "--aggregator, --aggregator-ca and --aggregator-key are given twice each, for the two "
            "organisations besides the server's"
        )
    return list(zip(*found, strict=True))


NextShufflers = Annotated[
    list[Path] | None,
    typer.Option(
        "--then",
        metavar="FILE",
        help="With --proxy, for FMF-LDP: the hop.json of the next shuffler of a chain. "
        "Repeat it in the order in which reports pass them.",
    ),
]


def through_proxy(
    proxy: str | None, proxy_ca: Path | None, proxy_key: Path | None
) -> tuple[str, Path] | None:
    """Address and authority of a federation's proxy, as they were given. Raises where something is
    missing."""
    if (proxy is None) != (proxy_ca is None):
        raise UsageError("--proxy and --proxy-ca go together")
    if proxy_key is not None and proxy is None:
        raise UsageError("--proxy-key goes with --proxy and --proxy-ca")
    return None if proxy is None or proxy_ca is None else (proxy, proxy_ca)


_SERVED: dict[str, tuple[Any, Any]] = {
    "host": (Host, "127.0.0.1"),
    "port": (Port, None),
    "plaintext": (Plaintext, False),
    "behind": (Behind, None),
    "as_json": (Json, False),
}
Said = tuple[Mapping[str, Any], Sequence[str]]
"""What a command did, as JSON and in words."""


def says(command: Callable[..., Said]) -> Callable[..., None]:
    """The command with the option --json. It returns what it has to say."""
    own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(as_json: bool, **given: Any) -> None:
        _say(command(**given), as_json)

    run.__signature__ = inspect.Signature([*_keywords(own), _parameter("as_json")])  # type: ignore[attr-defined]
    return run


def _say(said: Said, as_json: bool) -> None:
    content, words = said
    if as_json:
        output.emit(content)
    else:
        output.show(*words)


def _keywords(own: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]


def _parameter(name: str, default: Any = None) -> inspect.Parameter:
    """One of the options that services have."""
    hint, usual = _SERVED[name]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default or usual, annotation=hint)


def served(port: int, words: str = "") -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes the command of a service: its own options, then those of every service. The command
    returns the service to run from its folder, or what it has done instead; `words` say where the
    service listens."""

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        shown = [one for one in own.values() if one.name not in _SERVED]
        more = [_parameter(name, port if name == "port" else None) for name in _SERVED]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            service = command(**{name: given[name] for name in own})
            folder, as_json = given["folder"], given["as_json"]
            if isinstance(service, tuple):
                content, told = service
                _say(({"folder": folder, **content}, told), as_json)
                return
            from sottovoce.services.kit.serving import serve

            serve(
                service,
                folder,
                given["host"],
                given["port"],
                plaintext=given["plaintext"],
                behind=given["behind"] or (),
                ready=None if as_json or not words else lambda url: output.show(f"{words} {url}"),
            )
            if as_json:
                output.emit({"folder": folder, "stopped": True})

        run.__signature__ = inspect.Signature([*_keywords(shown), *more])  # type: ignore[attr-defined]
        return run

    return decorate


def _strengths(given: Sequence[str]) -> dict[str, Any]:
    """The fields of a choice that --strength stands for: a number is for every attribute, and those
    that are named have their own."""
    found: dict[str, Any] = {"strengths": {}}
    for text in given:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if math.isnan(value) or bool(equals) != bool(name.strip()):
            raise UsageError(
                "--strength takes a number from 0 to below 1, or NAME=NUMBER for one attribute, "
                f"such as gender=0.8, not {text!r}"
            )
        if equals:
            found["strengths"][name.strip()] = value
        else:
            found["strength"] = value
    return found


def with_choices(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of a choice that has one, behind its first
    parameter. It gets those that were given, as keywords."""
    types, options = get_type_hints(Choice), []
    for field in fields(Choice):
        kind = FIELDS[field.name]
        if kind.option:
            option = typer.Option(kind.option, help=kind.help, metavar=kind.metavar)
            taken = list[str] if field.name == "strength" else types[field.name]
            hint: Any = Annotated[taken | None, option]
            options.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint
                )
            )
    first, *rest = (
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(command, eval_str=True).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    )
    names = {one.name for one in options}

    @functools.wraps(command)
    def chosen(**given: Any) -> None:
        told = {k: v for k, v in given.items() if v is not None or k not in names}
        if "strength" in told:
            told |= _strengths(told.pop("strength"))
        command(**told)

    chosen.__signature__ = inspect.Signature([first, *options, *rest])  # type: ignore[attr-defined]
    return chosen
