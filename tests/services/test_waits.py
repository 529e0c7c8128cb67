"""Every state in which a round can wait: its one reason, as the agent, `serve status` (by folder
and by address), the console and the figures say it."""

import contextlib
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from waits_world import CATALOGUE, WaitsTown

from sottovoce.cli.serve_status import status_of
from sottovoce.core.consent import Choice
from sottovoce.core.waiting import ROUNDS, WAITS
from sottovoce.errors import ServiceError
from sottovoce.parties.server import Offered
from sottovoce.stores import server as records
from sottovoce.stores import versions
from sottovoce.stores.batches import accept
from sottovoce.stores.database import meta, submissions
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import BatchPart

STATES = {}


def state(*, of="gram", **options):
    def keep(reach):
        STATES[reach.__name__.removeprefix("reach_")] = (of, options, reach)
        return reach

    return keep


@state()
def reach_few_enrolled(town):
    town.join(0, 1)
    town.visit(0, 1)


@state(of="direct", dormant_after=1)
def reach_few_active(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.step()
    town.step(1000.0)


@state(of="direct")
def reach_few_agreed(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    table = town.folder.plan.terms.to_table()
    table["algorithm"] = {**table["algorithm"], "triples": 6}
    town.terms_seen = town.folder.plan.terms
    town.acts().propose(table)
    town.step()
    town.step()


@state()
def reach_reports(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.step()


@state(batches=3)
def reach_counted(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.round(0, 1, 2, 3)


@state(days=7)
def reach_resting(town):
    reach_counted(town)


def contributed(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.step()
    town.visit(0, 1, 2, 3)


@state()
def reach_helper_away(town):
    contributed(town)
    town.down.add("helper")
    town.step()
    town.step()


@state()
def reach_helper_terms(town):
    contributed(town)
    town.amended_without_server()
    town.step()
    town.step()


@state()
def reach_helper_refuses(town):
    contributed(town)
    town.server_token = "ef" * 32
    town.step()
    town.step()


@state(of="checked")
def reach_aggregator_away(town):
    contributed(town)
    town.down.add(2)
    town.step()
    town.step()


@state(of="checked")
def reach_aggregator_terms(town):
    contributed(town)
    town.amended_without_server()
    town.step()
    town.step()


@state(of="checked")
def reach_aggregator_refuses(town):
    contributed(town)
    town.server_token = "ef" * 32
    town.step()
    town.step()


@state(of="shuffled", devices=2)
def reach_batch(town):
    town.join(0, 1)
    town.visit(0, 1)
    town.step()


@state(of="shuffled", devices=2)
def reach_batch_part(town):
    reach_batch(town)
    part = BatchPart(0, 0, bytes(32), 2, 0, 2, bytes(16), 2 * bytes(SEALED_BYTES))
    with town.database.writing() as link:
        accept(link, part, 2)


def filling(table, size, number):
    if table is meta:
        return {"key": f"filled-{size}-{number}", "value": "x" * size}
    place = {"round": 10**6, "attempt": size, "number": number}
    return place | {"mark": b"", "body": bytes(size)}


@state(of="direct")
def reach_disk_full(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.step()

    def fill(connection, *_):
        connection.execute("PRAGMA max_page_count = 1")

    sa.event.listen(town.database._engine, "checkout", fill)
    for table in (submissions, meta):  # what room is left in their pages is used up first
        for size in (1_000, 100, 10):
            with contextlib.suppress(ServiceError):
                for number in range(1_000):
                    with town.database.writing() as link:
                        link.execute(table.insert().values(filling(table, size, number)))
    town.visit(0, 1, 2, 3)


@state(of="direct")
def reach_server_trouble(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.step()
    town.visit(0, 1, 2)
    with town.database.writing() as link:
        link.execute(sa.text("DELETE FROM models"))
        link.execute(sa.text("UPDATE rounds SET goal = 3, asked = 3"))
    town.step(1000.0)


@state(of="direct")
def reach_paused(town):
    town.acts().pause("lunch")


@state()
def reach_amendment(town):
    ours = town.folder.plan.terms
    town.acts().propose(town.summed_terms(ours.algorithm, days=9).to_table())
    town.step()


@state(of="direct", rounds=1)
def reach_done(town):
    town.join(0, 1, 2, 3)
    town.visit(0, 1, 2, 3)
    town.round(0, 1, 2, 3)


@state(of="direct", rounds=1)
def reach_held_back(town):
    reach_done(town)
    with town.database.writing() as link:
        versions.keep(link, Offered(1, "it is worse than popularity"), records.moment())


@pytest.fixture
def town(tmp_path, request):
    of, options, _ = STATES[request.param]
    with WaitsTown(tmp_path, of, **options) as made:
        yield made


@pytest.mark.parametrize(("kind", "town"), [(k, k) for k in STATES], indirect=["town"])
def test_all_places_give_the_one_reason(kind, town):
    STATES[kind][2](town)
    town.step()
    said = town.said()
    assert {name: why and why["kind"] for name, why in said.items()} == dict.fromkeys(said, kind)
    assert said["url"] == said["folder"] == said["console"]
    words = WAITS[kind].words
    print(f"\n| {kind} | {WAITS[kind].party} | {words} | {said['url']['what']} |")
    assert said["url"]["words"] == words
    assert town.labels() == [(kind, words)]
    if not town.stores:
        town.join(0)
    heard = [more for _, event, more in town.visit(0) if event == "round waits"]
    assert heard == [{"kind": kind, "why": words}]


def test_there_is_a_state_for_every_kind():
    assert set(STATES) | {"no_server"} == set(ROUNDS)


def test_the_table_of_the_documents_is_the_table_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "deploy" / "operating.md").read_text()
    for kind, wait in WAITS.items():
        assert f"| `{kind}` | {wait.words} |" in text


def test_the_sentences_of_a_browser_tab_are_those_of_the_code():
    source = Path(__file__).parents[2] / "clients" / "browser" / "src" / "waiting.ts"
    told = re.findall(r'^  (\w+): "(.*)",$', source.read_text(), re.MULTILINE)
    assert told == [(kind, wait.words) for kind, wait in WAITS.items()]


def test_without_a_server_the_folder_and_the_agent_say_the_same(tmp_path):
    with WaitsTown(tmp_path, "direct") as town:
        town.join(0)
        town.visit(0)
        town.stop_server()
        found = status_of(str(town.folder.path), None, None)["reason"]
        words = WAITS["no_server"].words
        assert (found["kind"], found["words"]) == ("no_server", words)
        heard = [more for _, event, more in town.visit(0) if event == "round waits"]
        assert heard == [{"kind": "no_server", "why": words}]


def test_the_sentence_names_no_number_of_reports(tmp_path):
    """What is published does not tell when a device reports, or how many have."""
    with WaitsTown(tmp_path, "direct") as town:
        town.join(0, 1, 2, 3)
        town.visit(0, 1, 2, 3)
        town.step()
        before = town.ask("GET", "/v1/round").body
        assert [event for _, event, _ in town.visit(0)][-1] == "counted"
        town.step()
        assert town.ask("GET", "/v1/round").body == before


# What a device says of itself.


def sent_nothing(town, number=0):
    return [more["why"] for _, event, more in town.visit(number) if event == "nothing sent"]


def begun(path, of="direct", **joined):
    town = WaitsTown(path, of, devices=1 if of == "direct" else 4)
    town.__enter__()
    numbers = [0] if of == "direct" else [0, 1, 2, 3]
    town.join(*numbers, **joined)
    town.visit(*numbers)
    town.step()
    return town


def test_a_device_without_a_history_says_so(tmp_path):
    town = begun(tmp_path, items=())
    with contextlib.closing(town):
        assert sent_nothing(town) == [WAITS["no_history"].words]


def test_a_device_whose_owner_keeps_everything_back_says_so(tmp_path):
    kept = tuple(CATALOGUE[n][0] for n in range(4))
    town = begun(tmp_path, choice=Choice(share_positives=0.5, never_send=kept))
    with contextlib.closing(town):
        assert sent_nothing(town) == [WAITS["kept_back"].words]


def test_a_device_that_has_contributed_to_the_period_says_so(tmp_path):
    with WaitsTown(tmp_path, batches=3) as town:
        reach_counted(town)
        assert sent_nothing(town) == [WAITS["contributed"].words]


def test_a_device_whose_limit_is_used_up_says_so(tmp_path):
    """One period is paid for, and there is no room for the next one."""
    with WaitsTown(tmp_path) as town:
        town.join(0, 1, 2, choice=Choice(epsilon=1.0, total_epsilon=1.5))
        town.join(3)
        town.visit(0, 1, 2, 3)
        town.round(0, 1, 2, 3)
        assert sent_nothing(town, 0) == [WAITS["limit"].words]
        assert sent_nothing(town, 3) == []
