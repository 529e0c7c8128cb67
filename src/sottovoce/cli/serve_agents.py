"""`sottovoce serve device`, the agent of people's stores, and `sottovoce serve residents`, made-up
devices for demos and tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import AgentsServer, Json, PlaintextTrial, Settings
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.experiment import Experiment
    from sottovoce.services.agent.residents import Residents


def device(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Folders of `device init`.")
    ],
    server: AgentsServer = None,
    plaintext: PlaintextTrial = False,
    once: Annotated[
        bool, typer.Option("--once", help="Ask once, do what there is to do, and end.")
    ] = False,
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="End when the server has run all its rounds.")
    ] = False,
    poll: Annotated[
        float | None,
        typer.Option(
            min=0.01, metavar="SECONDS", help="How often to ask; as the server says by default."
        ),
    ] = None,
    agree: Annotated[
        str,
        typer.Option(
            metavar="DIGEST",
            help="Agree to the terms with this digest in all of these stores, for users who have "
            "seen them elsewhere.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Take part in a federation: the agent of one store, or of several.

    STORE is a folder of `sottovoce device init`. In a federation of data owners the agent brings
    them what waits in the store; --until-finished ends when nothing waits any more. In one of
    devices the agent asks the server whether there is a round, learns at home and sends what the
    user permits, which is read before every round. If she takes no part, or has not agreed to the
    terms that the server shows (`sottovoce device agree`), it only reads what is published: the
    first contact fetches the terms and stops. If the terms name a shuffler, what leaves goes there,
    sealed, and the server is not told that it does. Logs are JSON lines on standard error. The
    agent may be stopped or killed at any moment; nothing is lost.

    \b
    Examples:
      sottovoce serve device ~/recommendations
      sottovoce serve device ~/recommendations --once
    """
    from sottovoce.services.agent.process import Options, serve_devices

    options = Options(server, plaintext, poll, once, until_finished, foreseen=agree)
    served = serve_devices(stores, options)
    if as_json:
        output.emit({"stores": served})


_BOOK = "residents.npz"


def residents(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with invitations, of `serve invite`.")
    ],
    experiment: Annotated[
        str, typer.Option(metavar="FILE", help="Experiment file with who they are and choose.")
    ],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Play made-up residents who take part in a federation: for demos and tests, not for people.

    DIR holds their invitations, one for each (`sottovoce serve invite --out DIR`). They use these
    up: whoever was meant by one of them cannot come in any more, so never name a folder with
    invitations of people. Invitations to a server on another machine are refused. Who they are,
    which places they visited and what they chose is drawn from the experiment file, by which the
    federation was made. The first resident has the first invitation, and so on. They live in the
    memory of this one process. Each has a signing key of her own, keeps to her choice and her limit
    on ε, and sends what her device would. What they have spent is in DIR/residents.npz, so that a
    second start goes on. They agree to every change of terms.

    Logs are JSON lines on standard error. SIGTERM and Ctrl-C stop it.

    \b
    Examples:
      sottovoce serve invite town --count 200 --out residents
      sottovoce serve residents residents --experiment demo
    """
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.services.agent.residents import serve_residents

    chosen = Experiment.from_file(find_experiment(experiment), settings or [])
    counted = serve_residents(_residents(folder, chosen))
    if as_json:
        output.emit({"folder": folder, "counted": counted})


def _residents(folder: Path, experiment: Experiment) -> Residents:
    from dataclasses import replace
    from urllib.parse import urlsplit

    import numpy as np

    from sottovoce.core.cohort import Cohort
    from sottovoce.services.agent.process import JsonLines
    from sottovoce.services.agent.residents import Habits, Residents
    from sottovoce.services.kit.serving import is_loopback
    from sottovoce.stores.residents import GO_ON, ResidentsDoor, read_invitations

    invitations = read_invitations(folder)
    for one in invitations:
        host = urlsplit(one.server).hostname or ""
        if not is_loopback(host):
            raise UsageError(
                f"{folder} invites to {host}, which is not this machine: made-up residents would "
                "use up invitations that are for people; nothing was sent"
            )
    dataset = experiment.dataset()
    if dataset.interactions.n_users < len(invitations):
        raise UsageError(
            f"{len(invitations):,} are invited, and {dataset.interactions.n_users:,} live in the "
            "experiment's data; invite fewer, or --set town.residents"
        )
    rows = np.arange(len(invitations))
    numbers = np.array([one.number for one in invitations], np.int64)
    history = dataset.interactions.take_users(rows)
    cohort = Cohort(
        numbers,
        history,
        replace(experiment.records(dataset).take(rows), users=numbers),
        np.zeros((len(rows), 1), np.float32),
    )
    log = JsonLines()

    def say(event: str, **details: object) -> None:
        (log.warning if event == "failed" else log.info)(event, **details)

    door = ResidentsDoor(cohort, folder / _BOOK)
    habits, go_on = Habits.read(folder), folder / GO_ON
    visits = habits.visits_of(history)
    return Residents(door, invitations, visits, log=say, habits=habits, go_on=go_on)
