"""Terms that are changed under way, without a network: when a change comes into force, what is
carried over, what a crash leaves behind, and what cannot be changed at all."""

import contextlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds_world import RoundsWorld, maker
from server_world import ITEMS, SEED, quick_rules, terms

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import CheckedSum, Direct, Proxied, SecureSum
from sottovoce.core.messages import DeviceReports
from sottovoce.errors import ServiceError, UsageError
from sottovoce.parties.server import Offered, Server
from sottovoce.privacy.base import RELEASES
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams, streams_of
from sottovoce.services.server.operator import status
from sottovoce.stores import amending, server_folder, versions
from sottovoce.stores import server as records
from sottovoce.stores.acts import Actor, Acts, past_acts
from sottovoce.stores.amending import Waits
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.database import MOST_ROUNDS
from sottovoce.stores.server_folder import amended, create_folder, open_folder, with_items
from sottovoce.wire.reports import encode_report
from sottovoce.wire.terms import Terms

ANNA = Actor("anna", "command")
ROOT = Streams.from_seed(SEED).key
EVERYTHING = RELEASES[FCFConfig.releases[0]]()


def items_of(many):
    return [(f"v{n}", f"Venue {n}") for n in range(many)]


class Town(RoundsWorld):
    """A federation in a folder, whose server is one process at a time that may be killed."""

    def __init__(self, path, first=None, *, rounds=20, devices=4, cohort_size="all", **rules):
        first = terms() if first is None else first
        rules = {"min_devices": devices, **rules}
        self.path = path
        create_folder(
            path, first, items_of(first.n_items), rounds=rounds, root_key=ROOT,
            rules=quick_rules(**rules), cohort_size=cohort_size,
        )  # fmt: skip
        self.time, self.coordinator = 1000.0, None
        self.start()
        self.enrol(range(devices))

    def start(self):
        """As a server process does."""
        self.folder = open_folder(self.path)
        self.database = self.folder.database()
        with self.database.writing() as link:
            self.folder = self.folder.caught_up(link)
            self.follow(link)
        self.folder.write_down(self.catalogue)

    def follow(self, link):
        self.catalogue = self.folder.catalogue(link)
        self.coordinator = Coordinator(self.folder.plan, lambda: self.time)
        self.coordinator.start(link)

    def kill(self):
        self.close()

    def step(self):
        """One look of the rounds thread, which takes up what has changed."""
        with self.database.leading() as leader:
            said = [event.what for event in self.coordinator.step(leader)]
        with self.database.writing() as link:
            if records.position(link).terms != self.folder.plan.terms.digest():
                self.folder = self.folder.caught_up(link)
                self.follow(link)
        self.folder.write_down(self.catalogue)
        return said

    def steps(self, many):
        for _ in range(many):
            self.step()

    @property
    def acts(self):
        return Acts(self.folder, self.database, ANNA)

    @property
    def now(self):
        with self.database.reading() as link:
            return records.position(link)

    def model(self, round):
        return self.read(records.model, round, self.folder.plan.terms.width)

    def check_in(self, *numbers):
        with self.database.writing() as link:
            records.seen(link, numbers)

    def report(self, *numbers):
        """What honest devices could have sent."""
        now, width = self.now, self.folder.plan.terms.width
        sent = []
        for number in numbers:
            values = np.full((2, width), 1 + number, np.int64)
            who = np.full(2, number)
            body = encode_report(
                DeviceReports(now.round, who, np.array([0, number + 1], np.int32), values)
            )
            mark = records.mark_of(bytes([number]) * 16, body)
            sent.append(records.Submission(now.round, now.attempt, number, mark, body))
        with self.database.writing() as link:
            return records.accept(link, sent)

    def change(self, more=0, **algorithm):
        """Propose other settings of the algorithm, and more items."""
        table = json.loads(json.dumps(self.folder.plan.terms.to_table()))
        table["algorithm"] |= algorithm
        before = self.read(lambda link: self.folder.catalogue(link))
        first = table["n_items"]
        new = [(f"new-{n}", f"New {n}") for n in range(first, first + more)]
        catalogue = with_items(before, new, (), (), more) if more else None
        table["n_items"] += more
        return self.acts.propose(table, catalogue)


town = maker(lambda path, *given, **options: Town(path / "town", *given, **options))


def test_a_change_comes_into_force_between_rounds_and_model_and_budgets_of_time_go_on(town):
    here = town()
    assert here.step() == ["opened"]
    here.report(0, 1, 2, 3)
    assert here.step() == ["goal", "opened"]
    first = here.folder.plan.terms
    here.change(more=5, learning_rate=0.07)
    here.report(0, 1)
    assert here.step() == []
    assert here.now.state == "open", "nobody who has reported is left alone"
    here.report(2, 3)
    assert here.step() == ["goal"], "and no other round begins first"
    before, target = here.model(2)[0], here.now.target
    assert here.step() == ["amended"]
    assert here.step() == []
    after, changed = here.model(3)
    assert np.array_equal(after[:ITEMS], before), "what was learnt is kept"
    fresh = first.build().server_init(ITEMS + 5, streams_of(ROOT))
    assert np.array_equal(after[ITEMS:], fresh[ITEMS:]), "as a fresh start has them"
    assert (changed == 3).all()
    assert here.now.target == target + 1, "rounds that were left out were not run"
    assert (here.now.round, here.now.state) == (3, "waiting")
    now = open_folder(here.path).plan.terms
    assert (now.n_items, now.algorithm.learning_rate) == (ITEMS + 5, 0.07)
    assert now.federation == first.federation
    assert len(json.loads(open_folder(here.path).catalogue())["items"]) == ITEMS + 5
    (_, entry) = here.read(amending.history)
    assert (entry["round"], entry["who"], entry["digest"]) == (3, "anna", now.digest())
    assert [name for name, *_ in entry["changes"]] == ["algorithm.learning_rate", "n_items"]
    (_, acts) = here.read(past_acts, 0, 9)
    assert [(one["what"], one["who"]) for one in acts] == [
        ("in_force", "server"), ("propose", "anna"),
    ]  # fmt: skip
    assert acts[0]["words"] == (
        "terms in force that anna proposed, from round 3 on: algorithm.learning_rate 0.05 → 0.07, "
        f"n_items {ITEMS} → {ITEMS + 5}, a new catalogue"
    )
    told = status(here.database, plan=open_folder(here.path).plan)
    assert (told["changed"]["who"], told["changed"]["round"]) == ("anna", 3)
    assert told["reason"]["since"] == told["changed"]["at"]
    # Three of four agree and say so; with most of them a round begins, and the fourth may join.
    assert here.read(records.pool).tolist() == []
    here.check_in(0, 2)
    assert here.step() == []
    here.check_in(3)
    assert here.step() == ["opened"]
    assert here.read(records.selected, 3, 0).tolist() == [0, 2, 3]
    here.report(0, 2, 3)
    assert here.step() == ["goal", "opened"]


def test_those_who_agree_in_the_time_of_a_round_are_enough(town):
    here = town(deadline_seconds=60.0)
    here.change(learning_rate=0.07)
    assert here.step() == ["amended"]
    here.check_in(1)
    assert here.step() == []
    here.time += 61
    assert here.step() == ["opened"]
    assert here.read(records.selected, 1, 0).tolist() == [1]
    assert here.read(records.fact, amending.GATHERING) is None


def test_a_round_that_nobody_comes_to_gives_way_and_one_with_a_report_does_not(town):
    here = town(deadline_seconds=60.0, min_fraction=0.2)
    here.step()
    here.change(learning_rate=0.07)
    assert here.step() == []
    here.time += 61
    assert here.step() == ["abandoned"]
    assert here.step() == ["amended"]
    here.check_in(0, 1, 2, 3)
    assert here.step() == ["opened"]
    here.change(learning_rate=0.08)
    here.report(2)
    here.time += 61
    assert here.step() == ["deadline"]
    assert here.step() == ["amended"]


def test_a_change_waits_for_whoever_keeps_terms_of_their_own_and_rounds_go_on(town):
    here = town()
    said = [Waits("helper", "the helper does not keep the new terms yet", "have it agree")]
    here.change(learning_rate=0.07)
    asked = []

    def objection(after):
        asked.append(after.digest())
        return said[0] if said else None

    here.coordinator.collection.objection = objection
    assert here.step() == ["opened"]
    waits = here.read(amending.proposed)
    assert (waits.state, waits.party, waits.do) == ("asked", "helper", "have it agree")
    here.report(0, 1, 2, 3)
    assert here.step() == ["goal", "opened"], "under the former terms"
    assert len(asked) == 1, "nobody is asked all the time"
    said.clear()
    here.time += 3
    assert here.step() == []
    assert here.read(amending.proposed).state == "ready"
    here.report(0, 1, 2, 3)
    assert here.step() == ["goal"]
    assert here.step() == ["amended"]
    assert here.folder.plan.terms.digest() == asked[0]


def test_the_last_round_of_all_stays_the_target(town):
    here = town()
    here.acts.raise_target(MOST_ROUNDS)
    here.change(learning_rate=0.02)
    here.step()
    assert here.read(amending.proposed) is None, "it is in force"
    assert here.now.target == MOST_ROUNDS
    with pytest.raises(UsageError, match="has at most"), here.database.writing() as link:
        here.coordinator.skip_to(link, MOST_ROUNDS + 1)


def test_one_change_waits_at_a_time_and_may_be_withdrawn(town):
    here = town()
    here.step()
    told = here.change(learning_rate=0.07)
    with pytest.raises(UsageError, match=r"a change that anna proposed at .* waits already"):
        here.change(learning_rate=0.08)
    with pytest.raises(UsageError, match="look again"):
        here.acts.propose(here.folder.plan.terms.to_table(), seen="another")
    assert here.acts.withdraw()["digest"] == told["digest"]
    with pytest.raises(UsageError, match="no change of terms waits"):
        here.acts.withdraw()
    here.report(0, 1, 2, 3)
    assert here.step() == ["goal", "opened"]
    assert here.read(amending.history) == []


def secure(**changes):
    link = SecureSum(min_devices=3, url="https://h:1", authority="a", key="ab" * 32, bits=64)
    return gram(link=replace(link, **changes))


def gram(link=None, epsilon=8.0, n_items=ITEMS, **changes):
    settings = GramConfig(**{"popularity_share": 0.3, "least_head": 8, **changes})
    chosen = SecureSum(min_devices=3) if link is None else link
    return Terms("little-town", n_items, settings, OwnEpsilon(epsilon), chosen)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (terms(), terms(), "these already"),
        (terms(), replace(terms(), federation="other"), "name of a federation never changes"),
        (terms(), replace(terms(), n_items=ITEMS - 1), "cannot be fewer"),
        (terms(), replace(terms(), algorithm=FPLConfig(embedding_size=5, triples=10)), "carried"),
        (
            terms(),
            replace(terms(), algorithm=FCFConfig(embedding_size=5), release=EVERYTHING),
            "another algorithm",
        ),
        (terms(), replace(terms(), link=SecureSum(min_devices=3, bits=64)), "new federation"),
        (secure(), secure(url="https://other:1"), "answers to the same name"),
        (secure(), secure(key="cd" * 32), "link.key says who"),
        (secure(), secure(bits=32, min_devices=10**6), "room for"),
    ],
)
def test_what_cannot_be_changed_is_said_in_a_sentence(before, after, why):
    with pytest.raises(UsageError, match=why):
        amending.check_change(before, after)


def test_terms_that_make_no_sense_or_items_without_names_change_nothing(town):
    here = town()
    table = here.folder.plan.terms.to_table()
    with pytest.raises(UsageError, match="nothing was done"):
        here.acts.propose(table | {"algorithm": {"name": "nobody"}})
    with pytest.raises(UsageError, match="catalogue that names them"):
        here.acts.propose(table | {"n_items": ITEMS + 1})
    moved = json.dumps({"items": [["x", "X"], *map(list, items_of(ITEMS))]}).encode()
    with pytest.raises(UsageError, match="keep their places"):
        here.acts.propose(table | {"n_items": ITEMS + 1}, moved)
    assert here.read(amending.proposed) is None


def test_items_come_at_once_but_not_beside_a_change_that_has_items_of_its_own(town):
    here = town(replace(terms(), n_items=ITEMS))
    here.step()
    here.change(more=1)
    with pytest.raises(UsageError, match="with a catalogue of its own"):
        here.acts.change_items([], ["v3"])
    here.acts.withdraw()
    here.acts.change_items([], ["v3"])
    assert here.now.state == "open", "a round goes on"
    assert json.loads(open_folder(here.path).catalogue())["items"][3] == ["v3", ""]


# --- what is carried over, by algorithm -----------------------------------------------------------


def carried(before, after, items, memory):
    rng = streams_of(ROOT)
    more = after.n_items - before.n_items
    return after.build().server_carried(items, memory, before.n_items, more, rng)


def kinds():
    fmf = FMFConfig(embedding_size=4)
    reports = RELEASES[FMFConfig.releases[0]]()
    yield "fpl", terms(), {}
    yield "fcf", Terms("t", ITEMS, FCFConfig(embedding_size=4), EVERYTHING, Direct()), {}
    yield "fmf", Terms("t", ITEMS, fmf, reports, Proxied()), {}
    rotated = FMFConfig(embedding_size=4, variant="rotated")
    yield "rotated", Terms("t", ITEMS, rotated, reports, Proxied()), {"zero": True}
    yield "gram", gram(), {"zero": True}
    yield "gram-batches", gram(batches=3, quality_share=0.2), {"zero": True}
    checked = Terms("t", ITEMS, GramConfig(popularity_share=0.3), OwnEpsilon(), CheckedSum())
    yield "checked", checked, {"zero": True}


@pytest.mark.parametrize(("name", "before", "how"), [*kinds()])
def test_every_algorithm_goes_on_with_more_items(name, before, how):
    rng = streams_of(ROOT)
    server = Server.start(before.build(), before.n_items, rng)
    items = server.items + np.float32(0.5)
    memory = server.memory + np.float32(1.0)
    after = replace(before, n_items=ITEMS + 3)
    grown, kept = carried(before, after, items, memory)
    assert grown.shape == (after.n_rows, after.width)
    assert np.array_equal(grown[:ITEMS], items)
    fresh = after.build().server_init(ITEMS + 3, rng)
    expected = np.zeros_like(grown[ITEMS:]) if how.get("zero") else fresh[ITEMS:]
    assert np.array_equal(grown[ITEMS:], expected)
    start = after.build().server_memory(ITEMS + 3)
    assert kept.shape == start.shape
    if name == "fcf":
        assert np.array_equal(kept[:ITEMS], memory)
        assert not kept[ITEMS:].any()
    assert Server(after.build(), grown, rng, 7, kept).memory is kept, "the next round folds it"


def test_a_memory_of_another_kind_begins_anew():
    before = Terms("t", ITEMS, FCFConfig(embedding_size=4), EVERYTHING, Direct())
    after = replace(before, algorithm=FCFConfig(embedding_size=4, variant="fpl"))
    server = Server.start(before.build(), ITEMS, streams_of(ROOT))
    _, kept = carried(before, after, server.items, server.memory + 1)
    assert kept.shape == (ITEMS, 0)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("round", [1, 2, 5, 6, 7, 100])
def test_changed_terms_begin_a_period_of_which_nobody_has_seen_a_round(batches, share, round):
    algorithm = gram(batches=batches, popularity_share=share).build()
    first = algorithm.begins_anew(round)
    assert first >= round
    assert algorithm.stage(first) == algorithm.batch(first) == 0
    assert all(algorithm.period(r) < algorithm.period(first) for r in range(round))


def test_what_devices_recommend_by_is_published_with_more_items(town):
    """gram: the published version, not a model in the middle of a period."""
    here = town(gram(), devices=4)
    with here.database.writing() as link:
        algorithm = here.folder.plan.terms.build()
        shown = np.full((ITEMS, gram().width), 2.0, np.float32)
        memory = algorithm.server_memory(ITEMS)
        changed = np.full(ITEMS, 2, np.int32)
        records.save_model(link, 1, shown, changed, memory)
        records.save_model(link, 2, shown, changed, memory)
        versions.keep(link, Offered(2), "now")
        records.save_model(link, 3, shown + 1, changed, memory)
    here.change(memory=4.0)
    assert here.step() == ["amended"]
    assert (here.now.round, here.now.published) == (4, 2), "with as many items, it stays"
    here.change(more=2)
    assert here.step() == ["amended"]
    assert (here.now.round, here.now.published) == (6, 6)
    grown = here.model(6)[0]
    assert np.array_equal(grown[:ITEMS], shown)
    assert not grown[ITEMS:].any()
    with here.database.writing() as link, pytest.raises(UsageError, match="version 2 is not here"):
        versions.publish(link, 2)


# --- crashes --------------------------------------------------------------------------------------


class Killed(Exception):
    """In the place of kill -9."""


@contextlib.contextmanager
def killed_at(monkeypatch, where, name, after):
    """The process ends when this is called for the `after`-th time."""
    calls, real = [0], getattr(where, name)

    def die(*given, **named):
        calls[0] += 1
        if calls[0] > after:
            raise Killed
        return real(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(where, name, die)
        yield


POINTS = [
    (amending, "answered", 0),
    (amending, "_carry", 0),
    (amending, "_remember", 0),
    (amending, "set_catalogue", 0),
    (amending, "_forget", 0),
    (records, "save_model", 0),
    (records, "raise_target", 0),
    (server_folder, "replace_file", 0),
    (server_folder, "replace_file", 1),
    (server_folder.os, "replace", 0),
    (server_folder.os, "replace", 1),
]


@pytest.mark.parametrize(("where", "name", "after"), POINTS)
def test_killed_anywhere_nothing_is_lost_and_nothing_done_twice(
    town, monkeypatch, where, name, after
):
    here = town()
    here.step()
    here.report(0, 1, 2, 3)
    here.step()
    here.report(0, 1, 2, 3)
    told = here.change(more=5, learning_rate=0.07)
    with killed_at(monkeypatch, where, name, after), pytest.raises(Killed):
        here.steps(4)
    here.kill()
    here.start()
    here.steps(4)
    assert here.folder.plan.terms.digest() == told["digest"]
    assert (here.now.round, here.now.terms) == (3, told["digest"])
    assert len(here.read(amending.history)) == 2
    assert here.read(amending.proposed) is None
    agrees(here)
    assert np.array_equal(here.model(3)[0][:ITEMS], here.model(2)[0])


def agrees(here):
    """Files, database and model are of one federation."""
    on_disk, now = open_folder(here.path), here.now
    terms = on_disk.plan.terms
    assert terms.digest() == now.terms
    catalogue = on_disk.catalogue()
    assert here.read(lambda link: records.fact(link, "catalogue")) in (
        None, amending.catalogue_name(catalogue),
    )  # fmt: skip
    assert len(json.loads(catalogue)["items"]) == terms.n_items
    items, changed = here.model(now.round)
    assert items.shape == (terms.n_rows, terms.width)
    assert len(changed) == terms.n_rows
    here.read(records.memory, now.round, terms.n_rows)
    past = here.read(amending.history)
    assert not past or past[-1]["digest"] == now.terms
    rounds = [one["round"] for one in past]
    assert rounds == sorted(set(rounds))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(0, 3), st.integers(1, 9)),
        st.tuples(st.just("items"), st.integers(0, 30)),
        st.tuples(st.just("withdraw")),
        st.tuples(st.just("step")),
        st.tuples(st.just("round")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("kill"), st.sampled_from(POINTS)),
        st.tuples(st.just("old files")),
    ),
    max_size=25,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_whatever_is_proposed_killed_and_run_database_and_files_agree(monkeypatch, steps):
    with tempfile.TemporaryDirectory() as place:
        here = Town(Path(place) / "town", deadline_seconds=60.0)
        first = {p: (here.path / p).read_bytes() for p in ("federation.json", "catalogue.json")}
        names, last = [here.folder.plan.terms.digest()], here.now
        try:
            for what, *how in steps:
                if what == "kill":
                    with killed_at(monkeypatch, *how[0]), contextlib.suppress(Killed):
                        here.step()
                        here.step()
                    here.kill()
                    here.start()
                elif what == "old files":
                    # Another process that shares the database, with files of long ago.
                    here.kill()
                    for name, content in first.items():
                        (here.path / name).write_bytes(content)
                    here.start()
                else:
                    with contextlib.suppress(UsageError):
                        play(here, what, *how)
                now = here.now
                assert now.round >= last.round, "no round comes twice"
                if now.terms != names[-1]:
                    names.append(now.terms)
                    assert now.round > last.round
                last = now
            here.kill()
            here.start()
            agrees(here)
            past = [one["digest"] for one in here.read(amending.history)]
            assert past == (names if len(names) > 1 else past)
        finally:
            here.kill()


def play(here, what, *how):
    if what == "change":
        more, rate = how
        here.change(more=more, learning_rate=rate / 100)
    elif what == "items":
        here.acts.change_items([], [f"v{how[0]}"])
    elif what == "withdraw":
        here.acts.withdraw()
    elif what == "wait":
        here.time += 61
        here.step()
    elif what == "round":
        here.check_in(0, 1, 2, 3)
        here.step()
        if here.now.state == "open":
            here.report(0, 1, 2, 3)
        here.step()
    else:
        here.step()


def test_files_of_another_federation_are_not_taken_for_old_ones(town):
    here = town()
    here.change(learning_rate=0.07)
    assert here.step() == ["amended"]
    here.kill()
    table = json.loads((here.path / "federation.json").read_text())
    table["terms"]["algorithm"]["learning_rate"] = 0.5
    (here.path / "federation.json").write_text(json.dumps(table))
    with pytest.raises(ServiceError, match="terms were changed; put the right"):
        here.start()
    table["terms"]["algorithm"]["learning_rate"] = 0.07
    (here.path / "federation.json").write_text(json.dumps(table))
    here.kill()
    here.start()


def test_a_coordinator_of_former_terms_moves_nothing(town):
    """A process that shares the database and has not looked yet."""
    here = town()
    former = here.coordinator
    here.change(learning_rate=0.07)
    assert here.step() == ["amended"]
    here.check_in(0, 1, 2, 3)
    with here.database.leading() as leader:
        assert former.step(leader) == []
    assert here.step() == ["opened"]
    here.report(0, 1, 2, 3)
    with here.database.writing() as link:  # where the one that coordinated was killed
        records.move_round(link, 1, 0, "open", "closing", outcome="goal")
    with here.database.leading() as leader:
        assert former.step(leader) == []
    assert here.now.state == "closing"
    assert here.step() == ["goal", "opened"]


def test_who_is_asked_follows_the_algorithm():
    first = replace(terms(), algorithm=FPLConfig(embedding_size=4, triples=10, cohort_size=3))
    after = replace(terms(), algorithm=FPLConfig(embedding_size=4, triples=10, cohort_size=2))
    plan = Plan(first, 3, 5, ROOT, quick_rules())
    assert amended(plan, after).cohort_size == 2
    assert amended(replace(plan, cohort_size="all"), after).cohort_size == "all"


def test_the_sum_of_what_was_sent_before_is_not_folded_under_other_terms(town):
    """Reports of the former terms are folded, or dropped; none of them waits for later."""
    here = town()
    here.step()
    here.report(0)
    here.change(more=1)
    here.time += 61
    here.step()
    here.step()
    while here.now.terms == terms().digest():
        here.time += 61
        here.step()
    with here.database.reading() as link:
        assert not list(records.bodies(link, here.now.round, 0))
