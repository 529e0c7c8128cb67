"""`sottovoce plan`: what a run would take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError


def plan(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="An experiment file, or the name of an installed one."),
    ],
    devices: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="How many users, such as 1e9. By default there are as many as in the data.",
        ),
    ] = "",
    machines: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many machines, all alike.")
    ] = 1,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many processes in all. By default there is one for each machine, or for "
            "each GPU.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many threads a rank has. By default it has its share of the cores of a "
            "machine like this one.",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many GPUs in all. They do what devices do.")
    ] = 0,
    network: Annotated[
        float, typer.Option(help="The speed between machines, in Gbit a second.")
    ] = 10.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Change one value of the file; repeatable."),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="How many items. By default there are as many as in the data.",
            show_default=False,
        ),
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(
            "--per-device",
            metavar="N",
            min=1,
            help="How many interactions each user has. By default it is as in the data.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine first, in a minute or two.")
    ] = False,
    constants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="The file from which constants are read; with --measure, they are kept in it. "
            "By default those of the package are used.",
            show_default=False,
        ),
    ] = None,
    seen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICES:BYTES",
            help="Say the most memory that a rank of so many devices had in a run. Two of these, "
            "or more, take the place of the constants of memory.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run would take, before you start it: time, memory, bytes and storage.

    The figures come from constants that were measured, and say where and when: those of the package,
    or of this machine (--measure). Users are like those of the experiment's data, as many as
    --devices says. Evaluation and baselines are not counted. Bytes are those of messages as a
    ledger counts them and of models before compression. Requests are those of a real server whose
    rounds last until their deadlines ([service]).

    \b
    Examples:
      sottovoce plan presets/pfpl-plus --devices 1e9 --machines 8
      sottovoce plan presets/pfpl-plus --devices 1e9 --machines 8 --measure
      sottovoce plan sound/gram --devices 1e8 --ranks 8 --json
      sottovoce plan my.toml --devices 1e8 --ranks 8 --seen 5e6:2.1e9 --seen 2.5e6:1.2e9
    """  # noqa: E501
    from sottovoce.core.recommender import default_threads
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.runs import measuring
    from sottovoce.runs import plan as planning

    experiment = Experiment.from_file(find_experiment(file), settings or [])
    pairs = [_pair(one) for one in seen or []]
    many = _whole("--devices", devices) if devices else 0
    if constants is not None and not measure and not constants.is_file():
        raise UsageError(f"there are no constants in {constants}; make them with --measure")
    with output.interruptible("nothing was changed"):
        prepared = experiment.prepared()
        users = planning.UsersAlike.of(prepared).resized(items, each)
        known = planning.Constants.load(None if measure else constants)
        if measure:
            found, _ = measuring.measure(prepared, progress=output.note)
            known = known.with_measured(experiment.algorithm.name, found)
            if constants is not None:
                known.save(constants)
    total = ranks or max(machines, gpus)
    cores = max(1, default_threads() * machines // total)
    where = planning.Where(
        many or prepared.split.n_users, total, threads or cores, gpus > 0, network
    )
    made = planning.planned(experiment, users, where, known, pairs)
    if as_json:
        output.emit(made.to_table() | {"name": experiment.name, "machines": machines, "gpus": gpus})
    else:
        output.show(*planning.tables(made))


def _whole(name: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1e12 or value != int(value):
        raise UsageError(f"{name} must be a whole number from 1 to 1e12, not {text}")
    return int(value)


def _pair(text: str) -> tuple[float, float]:
    left, _, right = text.partition(":")
    return float(_whole("--seen", left)), float(_whole("--seen", right))
