"""`sottovoce demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads

if TYPE_CHECKING:
    from sottovoce.runs.demo import DemoTown, Story


def demo(out: Out = None, threads: Threads = None, as_json: Json = False) -> None:
    """The whole story on the embedded town, in under a minute.

    Generates a town, lets every resident choose what may leave her phone, trains pFPL+ on what the
    residents permit, compares it with baselines, shows one resident's recommendations and what left
    her device, and writes a report. Goes to runs/demo, or runs/demo-2 and so on where that exists.

    \b
    Examples:
      sottovoce demo
      sottovoce demo --out /tmp/town --json
    """
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
        "resident": {
            "user": resident.name,
            "attributes": resident.attributes,
            "choice": resident.choice.words(),
            "visited": resident.visited,
            "recommendations": resident.recommendations,
            "visited_later": resident.visited_later,
            "sent": output.totals_json(resident.sent),
        },
        "ledger": output.totals_json(story.sent),
        "seconds": round(story.outcome.seconds, 3),
    }


def _fields(choice: Any) -> dict[str, Any]:
    return {"takes_part": choice.takes_part, "share_positives": choice.share_positives}


def _introduce(town: DemoTown) -> None:
    output.show(
        f"The town: {town.residents:,} residents, {town.venues:,} venues, {town.visits:,} visits "
        "in a year (made up, from a seed).",
        "",
        "What the residents chose:",
        *[f"  {n:5,} ({n / town.residents:4.0%})  {c.words()}" for c, n in town.choices],
        "",
    )


def _tell(story: Story) -> None:
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.runs import demo as demos
    from sottovoce.runs.tables import readable_bytes

    resident, sent = story.resident, story.resident.sent
    attributes = ", ".join(f"{key} {value}" for key, value in resident.attributes.items() if value)
    places = Table(
        f"Recommended to {resident.name}, computed on the device",
        [Column("#"), Column("place"), Column("category"), Column("later", "went there later")],
        [
            {
                "#": place.rank,
                "place": place.title,
                "category": ", ".join(place.categories),
                "later": "yes" if later else "",
            }
            for place, later in zip(resident.recommendations, resident.visited_later, strict=True)
        ],
    )
    output.show(
        story.table,
        "The first five see every visit; sFPL and pFPL+ see what the residents permit, and",
        f'"{demos.SHARED}" is what pFPL+ would give if everybody shared everything.',
        "",
        f"One resident, {resident.name} ({attributes}): {resident.choice.words()}.",
        f"Some of the {resident.visits} places visited, the latest first:",
        *[f"  {place.title} ({', '.join(place.categories)})" for place in resident.visited],
        "",
        places,
        f"What left this device: {sent.releases:,} releases with {sent.positive_rows:,} rows for "
        f"visited places and {sent.negative_rows:,} rows for other places, "
        f"{readable_bytes(sent.bytes)} in all.",
        f"What left all devices: {story.sent.releases:,} releases, "
        f"{story.sent.positive_rows:,} rows for visited places, "
        f"{readable_bytes(story.sent.bytes)}.",
        "To be honest: the share of positives as the paper has it does not hide the others from a "
        "curious server,",
        "which can compute them from the rest of a report; see docs/privacy.md. "
        "Only who does not take part sends nothing.",
        "",
        f"Report: {story.report}",
        f"Next:   sottovoce recommend {story.run.folder.path} --user {resident.name}",
        f"        sottovoce ledger {story.run.folder.path} --user {resident.name}",
    )
