"""`sottovoce tune`: good settings for an experiment, from its validation part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads
from sottovoce.errors import UsageError


def tune(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="An experiment file, or the name of an installed one."),
    ],
    searched: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="a.b=RANGE",
            help="A setting and its range: log:LOW:HIGH, LOW:HIGH or VALUE,VALUE,…; repeatable. By "
            "default the file's [search], else what the algorithm says of itself.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="How many settings to try.")] = 30,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Seeds with which each finalist is trained.")
    ] = 3,
    finalists: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="How many of the best trials are trained with more seeds."
        ),
    ] = 3,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME@K",
            help="The metric by which trials are judged. By default it is NDCG at the file's "
            "cut-off.",
            show_default=False,
        ),
    ] = "",
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How many trials are proposed together, from those of earlier batches. The "
            "result depends on it.",
        ),
    ] = 4,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Processes that train trials of a batch side by side; the result is the same.",
        ),
    ] = 1,
    prune: Annotated[
        bool,
        typer.Option(
            help="Whether to give a trial up if it is worse than the median half way or later."
        ),
    ] = True,
    sampler_seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Another one proposes other settings, on the same data: a second opinion.",
        ),
    ] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Begin no further batch after this time; finalists are still trained.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Change one value of the file; repeatable."),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="The device that computes.")
    ] = "cpu",
    threads: Threads = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Search good settings of an experiment, on its validation part; write the best file.

    FILE is an experiment file, or the name of one that comes with the package (tuned/fpl). The
    folder is runs/NAME-search by default, and holds best.toml, which `sottovoce run` takes,
    trials.journal (Optuna's journal, with every trial), and report.html.

    Trials learn and are judged within the training part: the test part is not read. The first trial
    is the file as it is. Optuna proposes the others; those that are worse than the median of former
    ones at the same epoch are given up, but not before half of the time that the file learns. The
    best --finalists are trained again with other seeds, and the best mean wins.

    A search that was stopped, even by a kill, goes on with the same command, and ends with the same
    best trial as one that was never stopped. So does one with more --trials, or one that --timeout
    has ended. A folder that holds another search is refused.

    What the search would have cost the users of a real federation is said at the end: tuning on
    private data is not free. This command itself protects nobody: it reads the data that lie here.

    \b
    Examples:
      sottovoce tune tuned/fpl --set data.source=movielens-100k
      sottovoce tune my.toml --trials 50 --jobs 2 --search algorithm.learning_rate=log:1e-4:1e-1
      sottovoce tune my.toml --search algorithm.reg_user+reg_positive=log:.001:.3 \\
        --search algorithm.embedding_size=8,16,32 --metric P@10 --out runs/mine
      sottovoce run runs/mine/best.toml
    """
    from sottovoce.core.recommender import default_threads
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.runs.folder import check_writable
    from sottovoce.runs.search_trials import SearchOptions, require_optuna, searched_experiment
    from sottovoce.runs.space import read_space
    from sottovoce.runs.tune import search, summary_of
    from sottovoce.runs.tune_report import finalists_table, write_best, write_search_report

    require_optuna()
    path = find_experiment(file)
    whole = Experiment.from_file(path, settings or [])
    experiment = searched_experiment(whole.table)
    space = read_space(experiment, searched or (), own=whole.table.get("search", {}))
    place = out or Path("runs") / f"{experiment.name}-search"
    check_writable(place)
    options = SearchOptions(
        trials, seeds, finalists, batch, metric, prune, jobs, threads or default_threads(), device,
        sampler_seed, math.inf if timeout is None else timeout,
    )  # fmt: skip
    if device != "cpu" and jobs > 1:
        raise UsageError("trials on a GPU run one after the other; leave out --jobs")
    kept = f"go on with the same command; the search is kept in {place}"
    with output.interruptible(kept), output.progress(lines=True) as report:
        found = search(experiment, space, place, options, report=report)
        text = path.read_text(encoding="utf-8")
        best = write_best(text, whole.table, found)
        report("report", 0, 1)
        page = write_search_report(found)
        report("report", 1, 1)
    if as_json:
        answer = {
            "folder": place,
            "name": experiment.name,
            "system": experiment.system,
            "data": found.folder.manifest()["data"]["name"],
            "part": "validation",
            "searched": space.words(),
            **summary_of(found),
            "best_file": best,
            "report": page,
            "seconds": round(found.seconds, 3),
        }
        output.emit(answer)
        return
    output.show(finalists_table(found), " ".join(found.cost.words()))
    output.show(f"Best:   sottovoce run {best}", f"Search: {place}", f"Report: {page}")
