"""`sottovoce demo`; with --web, the shop's processes and its page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads
from sottovoce.core.words import said
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.runs.demo import DemoTown, Resident, Story


def demo(
    out: Out = None,
    threads: Threads = None,
    web: Annotated[
        bool, typer.Option("--web", help="Open a shop in the browser, with you as its visitor.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="With --web: the page's port. By default a free one is taken."
        ),
    ] = 0,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="With --web: whether to open a browser.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Tell the whole story on the embedded town; or, with --web, open a shop to try it in.

    It takes about 30 seconds of processor time, and some minutes on a busy machine.

    It generates a town and lets every resident choose an ε of her own and what is never sent. It
    learns a model with gram, from one contribution of each phone in each of two noisy sums. It
    compares the model with baselines. Then it trains the systems of the five papers as printed, on
    a town of 1,000 residents, and attacks gram and one of them. It shows one resident's
    recommendations and what left her device, and writes a report. The run goes to runs/demo, or to
    runs/demo-2 and so on if that exists; the papers' systems stand beside it (runs/demo-papers).
    UC-FedRec needs torch, which `make demo` installs, and is left out without it.

    With --web a page opens: the places of a small town, and you as its visitor. The browser's tab
    is your device: what you click stays in it. A server, a helper and about a thousand made-up
    residents run on this machine as processes of their own; "My privacy" on the page is your
    consent centre. Take part, look at what would leave, send it, and see what the next round
    changes. All else is in one temporary folder, which goes with Ctrl-C; with --out DIR it stays,
    and a second start goes on with it. With --json the link is printed as {"url": ..., "pid": ...,
    "server": ..., "folder": ..., "console": ...} when it can be opened, and no browser is. The page
    has the browser's language, or that of SOTTOVOCE_LANGUAGE (en or it).

    \b
    Examples:
      sottovoce demo
      sottovoce demo --out /tmp/town --json
      sottovoce demo --web
      sottovoce demo --web --no-open
    """
    if web:
        from sottovoce.cli.demo import serve_shop

        serve_shop(out, port=port, opens=opens, as_json=as_json)
        return
    if port or not opens:
        raise UsageError("--port and --no-open go with --web")
    from sottovoce.core.recommender import default_threads
    from sottovoce.runs import demo as demos

    place = demos.folder_for(out)
    experiment = demos.load()
    town = demos.introduce(experiment)
    if not as_json:
        _introduce(town)
    with (
        output.interruptible("the demo was stopped; start it again"),
        output.progress() as report,
    ):
        story = demos.run_demo(
            experiment, place, threads=threads or default_threads(), report=report
        )
    if as_json:
        output.emit(_story_json(town, story))
    else:
        _tell(story)


def _story_json(town: DemoTown, story: Story) -> dict[str, Any]:
    resident = story.resident
    return {
        "run": story.run.folder.path,
        "printed": story.printed,
        "report": story.report,
        "town": {
            "users": town.residents,
            "items": town.venues,
            "interactions": town.visits,
            "fingerprint": town.fingerprint,
        },
        "consent": [{"choice": c.words(), "users": n, **_fields(c)} for c, n in town.choices],
        "protocol": story.evaluations[story.outcome.system].describe(),
        "system": story.outcome.system,
        "results": {label: e.summary() for label, e in story.evaluations.items()},
        "papers": {label: e.summary() for label, e in story.papers.items()},
        "given_away": {label: found.content() for label, found in story.given_away.items()},
        "resident": {
            "user": resident.name,
            "attributes": resident.attributes,
            "choice": resident.choice.words(),
            "visited": resident.visited,
            "recommendations": resident.recommendations,
            "visited_later": resident.visited_later,
            "like_her": resident.like_her,
            "sent": output.totals_json(resident.sent),
        },
        "ledger": output.totals_json(story.sent),
        "seconds": round(story.outcome.seconds, 3),
    }


def _fields(choice: Any) -> dict[str, Any]:
    names = ("takes_part", "epsilon", "never_send")
    return {name: getattr(choice, name) for name in names}


def _introduce(town: DemoTown) -> None:
    output.show(
        f"The town: {town.residents:,} residents, {town.venues:,} venues, {town.visits:,} visits "
        "in a year (made up, from a seed).",
        "",
        "What the residents chose:",
        *[f"  {n:6,} ({n / town.residents:4.0%})  {c.words()}" for c, n in town.choices],
        "",
    )


def _chosen(resident: Resident) -> list[str]:
    """By which rule; nothing where a town has nobody whom the rule fits."""
    if not any(resident.visited_later):
        return []
    return [
        "She was chosen: the first who takes part, keeps something back, and later went to a place "
        "on her list",
        f"of {len(resident.recommendations)}, as {resident.like_her:.0%} of all residents did.",
    ]


def _tell(story: Story) -> None:
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.runs.tables import POINTS, readable_bytes

    resident, sent = story.resident, story.resident.sent
    attributes = ", ".join(f"{key} {value}" for key, value in resident.attributes.items() if value)
    places = Table(
        f"Recommended to {resident.name}, computed on the device",
        [
            Column("#"),
            Column("place"),
            Column("category"),
            Column("score", format=".0f"),
            Column("later", "went there later"),
        ],
        [
            {
                "#": place.rank,
                "place": place.title,
                "category": ", ".join(place.categories),
                "score": place.points,
                "later": "yes" if later else "",
            }
            for place, later in zip(resident.recommendations, resident.visited_later, strict=True)
        ],
        notes=[POINTS],
    )
    ours, theirs = story.given_away["gram"], story.given_away["fpl"]
    run = story.run.folder.path
    output.show(
        story.table,
        "Random, Top-Pop and Item-kNN see every visit. gram sees two noisy sums; what a phone adds",
        "to them is masked, and counts as much as its owner's ε permits.",
        "",
        story.papers_table,
        "These are `sottovoce run papers/fpl`, fcf, fmf, drift and uc. Nothing bounds what their",
        "servers, data owners and orchestrators read. gram and FMF-LDP need more people.",
        "",
        "What each gives away, attacked just now:",
        "  gram: somebody who knows all visits of all other residents tells who took part with an "
        f"AUC of {ours.value:.2f}",
        f"        ({ours.interval[0]:.2f} to {ours.interval[1]:.2f}); guessing has 0.50, and the "
        f"residents' own ε permit {ours.base_rate:.2f}.",
        "  FPL, as printed: from what phones sent in one round the server names places behind it, "
        f"and {theirs.value:.0%}",
        f"        of {theirs.claims:,} names are right; guessing has {theirs.base_rate:.0%}.",
        "",
        f"One resident, {resident.name} ({attributes}): {resident.choice.words()}.",
        *_chosen(resident),
        f"Some of the {resident.visits} places visited, the latest first:",
        *[f"  {place.title} ({', '.join(place.categories)})" for place in resident.visited],
        "",
        places,
        f"What left this device: {sent.releases:,} masked contributions, "
        f"{readable_bytes(sent.bytes)} in all, at a cost of ε = {sent.epsilon:.3g} (δ = 10⁻⁶).",
        f"What left all devices: {story.sent.releases:,} contributions, "
        f"{readable_bytes(story.sent.bytes)}.",
        "The ε holds toward everybody who sees what is published, the server too, as long as the "
        "server and the helper",
        "that adds the noise do not work together; see `sottovoce docs privacy`.",
        "",
        f"Report: {story.report}",
        f"Next:   {output.command('recommend', run, '--user', resident.name)}",
        f"        {output.command('ledger', run, '--user', resident.name)}",
        f"        {output.command('attack', story.printed, '--rounds', 1)}",
    )


# --- --web ----------------------------------------------------------------------------------------


_WATCH_SECONDS = 0.5


def serve_shop(
    out: Path | None,
    *,
    port: int = 0,
    opens: bool = True,
    as_json: bool = False,
    settings: Sequence[str] = (),
) -> None:
    """Until Ctrl-C. Nothing of it runs or lies about then. `settings` change the town."""
    language = output.language_asked()
    from sottovoce.engines.processes import require_port
    from sottovoce.runs.shop import HOST, ShopTown, shop_folder, tab_library
    from sottovoce.web.process import PageProcess
    from sottovoce.web.shop import SHOP_CALLS, Shop

    began = time.monotonic()

    def tell(words: str) -> None:
        output.note(f"{time.monotonic() - began:5.1f} s  {words}")

    with (
        output.ended_by_signals() as asked,
        output.interruptible("the demo was stopped before it was ready; nothing of it is left"),
        contextlib.ExitStack() as stack,
    ):
        if port:
            require_port(HOST, port)  # before anything is made
        library = tab_library(tell)
        folder = stack.enter_context(shop_folder(out))
        town = ShopTown(folder, tell, settings=settings, page_port=port, stopped=asked.is_set)
        stack.callback(town.close)
        stack.callback(_stopping)
        stack.callback(_deaf)  # what is being ended is not ended half
        town.prepare()

        def invite(url: str) -> None:
            if as_json:
                console = (town.server.running() or {}).get("console")
                places = {"server": town.url, "folder": folder, "console": console}
                output.emit({"url": url, "pid": os.getpid(), **places})
                return
            keys = ["terminal.link", "terminal.again"] if sys.stdin.isatty() else ["terminal.link"]
            output.show(*output.told(*(said(key, url=url) for key in keys)))

        async def watch() -> None:
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                town.watch()

        page = PageProcess(
            Shop(town),
            invite,
            port=town.page_port,
            language=language,
            browser=opens and not as_json and output.has_windows(),
            calls=SHOP_CALLS,
            start="shop.html",
            library=library,
            talks_to=town.url,
            beside=watch,
        )
        town.start()  # the page has its port before a thousand residents take theirs
        tell("The shop is open; Ctrl-C closes it" + (" and removes its folder" * (out is None)))
        page.run()


def _stopping() -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        output.note("stopping")


def _deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
