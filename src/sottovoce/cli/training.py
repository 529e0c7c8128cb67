"""`sottovoce run`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.engines.distributed import RankPlace
    from sottovoce.experiment import Experiment
    from sottovoce.runs.topology import RunOutcome

_MOST_SERVICES = 256
"""Agents or gateways on this machine."""


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
        Literal["simulation", "distributed", "https", "flower"],
        typer.Option(
            help="How messages travel: within this process, between ranks that divide the users, "
            "or between real services on this machine (https, flower)."
        ),
    ] = "simulation",
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="The device that computes.")
    ] = "cpu",
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="How many device agents (https, 8 by default), gateways (flower, 3 by default) or "
            "ranks among which the users are divided (distributed; not needed if torchrun starts "
            "them).",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="3|1,2,3",
            help="Run with several seeds: how many, or which ones. Each is a run within the "
            "run's folder.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            help="With --engine distributed: how long a rank waits for one that neither answers "
            "nor is gone.",
        ),
    ] = 600.0,
    threads: Threads = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same run where it stopped.")
    ] = False,
    transcript: Annotated[
        bool,
        typer.Option("--transcript", help="Keep what reaches every party. This takes much space."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate one experiment; leave a run folder with its report.

    FILE is an experiment file, or the name of one that comes with the package (papers/fpl). Without
    it the experiment is "demo": gram on the embedded town, with every resident's own choices.
    The run's folder is runs/NAME by default. A run that was stopped, even by a kill, goes on with
    --resume from its last checkpoint and ends with the same model, ledger and figures as one that
    was never stopped. A folder that holds another run is refused.

    With --engine https or --engine flower real processes on this machine run the same experiment,
    over TLS. With https these are a server and a device agent per user; if there are more users
    than --processes, several share an agent. With flower they are Flower's services and gateways
    that host a cohort each. Model, ledger and recommendations are the same. Their state and logs
    are in the run's folder, under services/. They are meant for a trial with some dozen users;
    simulation is made for more.

    With --engine distributed --processes N the users are divided among N ranks, each with its share
    of histories, vectors, budgets and ledger. Model, vectors, ledger and figures are the same bit
    for bit, whatever N is. On several machines, start it by `torchrun --nnodes 2 --nproc-per-node 8
    … -m sottovoce run FILE --engine distributed`, with --out on a disk that all of them see. A rank
    that is killed is started again with the others, from the last checkpoint; --resume may have
    another N.

    With algorithm.name = "drift" users send their interactions to data owners, and an orchestrator
    holds the model. By default there is a data owner for each category of the items ([owners] by =
    "categories" or "one"). The data need ratings and times. Users can refuse data owners
    (consent.refused_owners) or take no part. Data owners read the rest in full, and the
    orchestrator can work it out. For --engine flower you need algorithm.window; there is no
    --engine https.

    With --seeds (or seeds = [1, 2, 3] in the file) the experiment is run once for each seed, one
    after the other. The folder has an ordinary run for each, and figures are means with their
    spread over seeds. With --resume it goes on in the part where it was. `recommend`, `ledger` and
    `attack` take the first seed of such a folder, or the part that is named, runs/NAME/seed-2.

    \b
    Examples:
      sottovoce run
      sottovoce run papers/fpl
      sottovoce run tuned/fpl --seeds 3
      sottovoce run my.toml --set algorithm.epochs=5 --set consent.share_positives=0.1
      sottovoce run my.toml --out runs/mine --resume
      sottovoce run tuned/fpl --set town.residents=8 --engine https
      sottovoce run my.toml --engine distributed --processes 4
      sottovoce run drift/movielens-100k --set algorithm.theta=8
    """
    from sottovoce.core.recommender import default_threads
    from sottovoce.engines.processes import sottovoce_command
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.runs.report import notes, write_run_report
    from sottovoce.runs.seeds import check_engine, seeds_asked
    from sottovoce.runs.standing import titled
    from sottovoce.runs.tables import hints, results_table
    from sottovoce.runs.train import run_experiment

    if processes is not None and engine == "simulation":
        raise UsageError("--processes is for --engine https, flower and distributed")
    if processes is not None and processes > _MOST_SERVICES and engine != "distributed":
        raise UsageError(f"--processes is at most {_MOST_SERVICES} with --engine {engine}")
    place = ranks = None
    if engine == "distributed":
        from sottovoce.engines import distributed

        place, ranks, processes = distributed.RankPlace.found(), processes, None
        if place is None and ranks is None:
            raise UsageError(
                "say among how many processes the users are divided (--processes 4), or start them "
                "by torchrun"
            )
        if place is not None and ranks not in (None, place.size):
            raise UsageError(f"torchrun has started {place.size} ranks, and --processes is {ranks}")
    experiment = Experiment.from_file(find_experiment(file), settings or [])
    if seeds is not None:
        experiment = experiment.with_seeds(seeds_asked(seeds, experiment.seed))
    if experiment.seeds:
        check_engine(engine)
    out = out or Path("runs") / experiment.name
    if ranks is not None and place is None:
        each = threads or max(1, default_threads() // ranks)
        words = [
            *("run", file, "--engine", engine, "--device", device, "--timeout", timeout),
            *("--threads", each, "--out", out),
            *(word for one in settings or [] for word in ("--set", one)),
            *(["--resume"] if resume else []),
            *(["--transcript"] if transcript else []),
            *(["--json"] if as_json else []),
        ]
        command = sottovoce_command(*map(str, words))
        raise typer.Exit(distributed.launch(command, ranks))
    if place is not None:
        _run_rank(place, experiment, out, resume, threads, device, transcript, timeout, as_json)
        return
    unprotected = list(experiment.algorithm.caveats())
    kept = f"go on with the same command and --resume; what there is of the run is in {out}"
    how: dict[str, Any] = {
        "resume": resume,
        "threads": threads or default_threads(),
        "device": device,
        "engine": engine,
        "processes": processes,
        "transcript": transcript,
    }
    if experiment.seeds:
        with output.interruptible(kept):
            _run_seeds(experiment, out, how, unprotected, as_json)
        return
    with output.interruptible(kept), output.progress() as report:
        outcome = run_experiment(experiment, out, report=report, **how)
        report("report", 0, 1)
        page = write_run_report(outcome)
        report("report", 1, 1)
    advice = hints(outcome)
    for hint in advice:
        output.note(f"note: {hint}")
    if as_json:
        manifest = outcome.folder.manifest() if outcome.folder is not None else {}
        caveats = {"not_protected": "\n\n".join(unprotected)} if unprotected else {}
        answer = _answer(experiment, out, outcome, manifest, advice)
        output.emit(caveats | answer | {"report": page})
    else:
        title = f"{experiment.name}: {titled(experiment)} on {outcome.dataset.name}"
        output.show(
            results_table(outcome.evaluations, title, notes(outcome)),
            *unprotected,
            f"Run:    {out}",
            f"Report: {page}",
        )


def _run_seeds(
    experiment: Experiment,
    out: Path,
    how: Mapping[str, Any],
    unprotected: Sequence[str],
    as_json: bool,
) -> None:
    """Every seed with its report, and one for all of them."""
    from sottovoce.evaluation.significance import spread_content
    from sottovoce.runs.compare import compare_runs
    from sottovoce.runs.report import write_run_report
    from sottovoce.runs.seeds import part_folder, run_seeds
    from sottovoce.runs.standing import titled
    from sottovoce.runs.tables import hints, keys_shown, results_table, seeds_table

    advice: dict[int, list[str]] = {}
    pages: dict[int, Path] = {}

    def each(seed: int, outcome: RunOutcome) -> None:
        pages[seed] = write_run_report(outcome)
        advice[seed] = hints(outcome)

    with output.progress() as report:
        found = run_seeds(experiment, out, report=report, each=each, **how)
        report("report", 0, 1)
        page = compare_runs([out], out, threads=how["threads"], known=found.known()).report
        report("report", 1, 1)
    means = found.evaluations()
    notes = [f"seed {seed}: {hint}" for seed, said in advice.items() for hint in said]
    for hint in notes:
        output.note(f"note: {hint}")
    if as_json:
        caveats = {"not_protected": "\n\n".join(unprotected)} if unprotected else {}
        parts = [
            {
                "seed": seed,
                "run": part_folder(out, seed),
                "results": {system: one.summary() for system, one in mine.items()},
                "report": pages[seed],
            }
            for seed, mine in found.by_seed.items()
        ]
        answer = {
            "run": out,
            "name": experiment.name,
            "system": found.system,
            "data": found.data,
            "seeds": experiment.seeds,
            "protocol": means[found.system].describe(),
            "results": {system: one.summary() for system, one in means.items()},
            "spread": {system: spread_content(one) for system, one in means.items()},
            "parts": parts,
            "notes": notes,
            "seconds": round(found.seconds, 3),
            "report": page,
        }
        output.emit(caveats | answer)
        return
    seeds = len(experiment.seeds)
    title = f"{experiment.name}: {titled(experiment)} on {found.data}, {seeds} seeds"
    own = {found.system: means[found.system]}
    output.show(
        results_table(means, title),
        seeds_table(own, keys_shown(own.values())),
        *unprotected,
        f"Run:    {out}",
        f"Report: {page}",
    )


def _run_rank(
    place: RankPlace,
    experiment: Experiment,
    out: Path,
    resume: bool,
    threads: int | None,
    device: str,
    transcript: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """This process as a rank. The first one shows what all have done; of an error, the one that has
    met it says so."""
    from sottovoce.core.recommender import default_threads
    from sottovoce.engines.distributed import LOST, RankInterrupted, joined
    from sottovoce.errors import RankLost
    from sottovoce.runs.tables import summary_table
    from sottovoce.runs.train import run_experiment

    first = place.rank == 0
    kept = f"go on with the same command and --resume; what there is of the run is in {out}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.interruptible(kept))
        report = stack.enter_context(output.progress()) if first else None
        try:
            with joined(place, device, timeout=timeout) as ranks:
                outcome = run_experiment(
                    experiment,
                    out,
                    resume=resume or ranks.goes_on,
                    threads=threads or default_threads(),
                    device=device,
                    engine="distributed",
                    transcript=transcript,
                    report=report,
                    ranks=ranks,
                )
        except RankLost as error:
            if not error.said:
                output.note(f"error: {error}")
            raise typer.Exit(LOST) from None
        except RankInterrupted as error:
            if error.said:
                raise typer.Exit(output.Interrupted.exit_code) from None
            raise
    if not first or outcome.folder is None:
        return
    manifest = outcome.folder.manifest()
    left_out = manifest.get("baselines_left_out", [])
    said = [f"sottovoce report {out} makes the page of this run, on one machine"]
    if left_out:
        said.append(
            f"baselines that learn from all histories in one place were left out: "
            f"{', '.join(left_out)}"
        )
    if as_json:
        answer = _answer(experiment, out, outcome, manifest, said)
        output.emit(answer | {"ranks": place.size})
        return
    title = f"{experiment.name}: {outcome.system} on {outcome.dataset.name}, {place.size} ranks"
    asked = outcome.evaluations[outcome.system].protocol.metrics
    table = summary_table(manifest["results"], title, manifest["protocol"], said, asked)
    output.show(table, f"Run:    {out}")


def _answer(
    experiment: Experiment,
    out: Path,
    outcome: RunOutcome,
    manifest: Mapping[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    """What every engine's run says in JSON."""
    known = ("protocol", "results", "ledger", "model_versions", "changes_of_mind")
    return {
        "run": out,
        "name": experiment.name,
        "system": outcome.system,
        "data": outcome.dataset.name,
        **{name: manifest[name] for name in known if name in manifest},
        "notes": notes,
        "seconds": round(outcome.seconds, 3),
    }
