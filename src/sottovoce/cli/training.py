"""`sottovoce run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads
from sottovoce.errors import UsageError


def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE]", help="An experiment file, or the name of an installed one."
        ),
    ] = "demo",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Change one value of the file; repeatable."),
    ] = None,
    engine: Annotated[
        Literal["simulation", "https", "flower"], typer.Option(help="How messages travel.")
    ] = "simulation",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Device agents (https, 8 by default) or gateways (flower, 3 by default).",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same run where it stopped.")
    ] = False,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Keep what reaches every party (large).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate one experiment; leave a run folder with its report.

    FILE is an experiment file, or the name of one that comes with the package (pfpl-plus). Without
    it the experiment is "demo": gram on the embedded town, with every resident's own choices.
    The run's folder is runs/NAME by default. A run that was stopped, even by a kill, goes on with
    --resume from its last checkpoint and ends with the same model, ledger and figures as one that
    was never stopped. A folder that holds another run is refused.

    With --engine https or --engine flower the same experiment is run by real processes on this
    machine, over TLS: a server and a device agent per user (several users share an agent where
    there are more than --processes), or Flower's services and gateways that host a cohort each.
    Model, ledger and recommendations are the same. Their state and logs are in the run's folder,
    under services/. Meant for a trial with some dozen users; simulation is made for more.

    With algorithm.name = "drift" users send their interactions to data owners, by default one for
    each category of the items ([owners] by = "categories" or "one"), and an orchestrator holds the
    model. The data need ratings and times. Users can refuse owners (consent.refused_owners) or
    take no part; owners read the rest in full, and the orchestrator can work it out. --engine
    flower needs algorithm.window; there is no --engine https.

    \b
    Examples:
      sottovoce run
      sottovoce run presets/pfpl-plus
      sottovoce run my.toml --set algorithm.epochs=5 --set consent.share_positives=0.1
      sottovoce run my.toml --out runs/mine --resume
      sottovoce run presets/pfpl-plus --set town.residents=8 --engine https
      sottovoce run drift/movielens-100k --set algorithm.theta=8
    """
    from sottovoce.core.recommender import default_threads
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.runs.report import notes, write_run_report
    from sottovoce.runs.tables import hints, results_table
    from sottovoce.runs.train import run_experiment

    if processes is not None and engine == "simulation":
        raise UsageError("--processes is for --engine https and --engine flower")
    experiment = Experiment.from_file(find_experiment(file), settings or [])
    unprotected = list(experiment.algorithm.caveats())
    place = out or Path("runs") / experiment.name
    kept = f"go on with the same command and --resume; the run is kept in {place}"
    with output.interruptible(kept), output.progress() as report:
        outcome = run_experiment(
            experiment,
            place,
            resume=resume,
            threads=threads or default_threads(),
            device=device,
            engine=engine,
            processes=processes,
            transcript=transcript,
            report=report,
        )
        report("report", 0, 1)
        page = write_run_report(outcome)
        report("report", 1, 1)
    advice = hints(outcome)
    for hint in advice:
        output.note(f"note: {hint}")
    if as_json:
        manifest = outcome.folder.manifest() if outcome.folder is not None else {}
        output.emit(
            ({"not_protected": "\n\n".join(unprotected)} if unprotected else {})
            | {
                "run": place,
                "name": experiment.name,
                "system": outcome.system,
                "data": outcome.dataset.name,
                "protocol": manifest["protocol"],
                "results": manifest["results"],
                "ledger": manifest["ledger"],
                **{name: manifest[name] for name in ("model_versions",) if name in manifest},
                "notes": advice,
                "report": page,
                "seconds": round(outcome.seconds, 3),
            }
        )
    else:
        title = f"{experiment.name}: {outcome.system} on {outcome.dataset.name}"
        output.show(
            results_table(outcome.evaluations, title, notes(outcome)),
            *unprotected,
            f"Run:    {place}",
            f"Report: {page}",
        )
