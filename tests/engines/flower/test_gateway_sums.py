"""gram with gateways: the conductor of a secure sum, real stores and the helper's own rules, in one
process. A gateway is one participant; its people's contributions are added up before they are
masked, each through the door of its store."""

import json
from dataclasses import replace

import numpy as np
import pytest
import test_conductor
from flower_world import COHORTS, ITEMS, KEY, TRAIN, Town
from test_conductor import Crash, Office, allotments

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.engines.client import Answer
from sottovoce.engines.flower.node import answer_task
from sottovoce.engines.flower.summed_conductor import GatewaySums, SummedConductor
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, Unreachable
from sottovoce.parties.helper import Helper, noise_spans
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.secure_sum import summed
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.services.helper import Answering, Unopened
from sottovoce.stores.conductor import Checkpoint, read_status
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import (
    NOISE_SECRET,
    HelperIntroduction,
    create_helper,
    init_helper,
)
from sottovoce.stores.prepared import sealed_by, signing_key
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.sum_folder import simulate_noise
from sottovoce.wire import masked
from sottovoce.wire.cohort_rounds import CohortTask
from sottovoce.wire.masked import LONGEST_QUESTION
from sottovoce.wire.refusals import Refused
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import encode_model

pytestmark = pytest.mark.usefixtures("quick_stores")

RULES = RoundRules(over_selection=0.0, deadline_seconds=20.0, min_devices=5)
NOISE_KEY = bytes(range(32))
EPSILONS = [0.5, 4.0, 1.0, 2.0, 4.0, 0.25, 8.0, 1.0]
USERS = np.arange(8, dtype=np.int64)
CHOICES = [Choice(epsilon=epsilon) for epsilon in EPSILONS]
CONFIG = GramConfig(embedding_size=4, popularity_share=0.2, least_head=5, most_head=8)
ALBA, BORA, CORSO = 10, 11, 12
LEAST = 2


class Line:
    """The way to the helper, whose rules answer from its folder."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []
        self.down, self.twist = 0, lambda told: told

    def __call__(self, question, path):
        assert path == "/v1/sums"
        assert len(question) < LONGEST_QUESTION
        if self.down:
            self.down -= 1
            raise Unreachable("no server answers")
        self.asked.append(question)
        return self.twist(self._told(question))

    def _told(self, question):
        answering = Answering(self.folder)  # anew each time: all that it knows is on its disk
        try:
            return Answer(200, "", answering.answer(question))
        except Unopened as error:
            content = {"error": "undecryptable", "detail": "no", "which": error.which}
            return Answer(409, "", json.dumps(content).encode())
        except Refused as error:
            content = {"error": error.reason, "detail": "no"}
            return Answer(error.status, "", json.dumps(content).encode())


class SummedTown(Town):
    def simulate(self, asked):
        """The devices of every round: model and ledger."""
        link, rng, ledger = self.terms.link, Streams(KEY), Ledger()
        algorithm, release = self.terms.build(), self.terms.release
        consent = Consent.of(USERS, CHOICES, USERS)
        cohort = Cohort(USERS, TRAIN, consent, algorithm.device_init(USERS, rng))
        devices = SimulatedDevices.behind_door(algorithm, cohort, release, ledger, rng, link=link)
        server = Server.start(algorithm, TRAIN.n_items, rng)
        helper = Helper(link, 0, NOISE_KEY, noise_spans(algorithm, release))
        for rows in asked:
            view = server.publish()
            (numbers, _) = algorithm.report_shape(view)
            sums = devices.report_summed(view, np.array(rows)).dense(numbers)
            noisy = sums + helper.noise(view.round, numbers)[:, None]
            server.fold(summed(view.round, noisy, len(rows)))
        rows = sorted(ledger.pending().to_pylist(), key=lambda row: (row["round"], row["user"]))
        return server.items, rows


@pytest.fixture
def town(tmp_path):
    return made(tmp_path, CONFIG)


def made(path, config):
    key = init_helper(path / "helper")
    simulate_noise(path / "helper" / NOISE_SECRET, NOISE_KEY)
    link = SecureSum(min_devices=LEAST, bits=32, url="https://127.0.0.1:1", key=key)
    terms = Terms.of("town", TRAIN.n_items, config, 0, OwnEpsilon(epsilon=4.0), link)
    helper = create_helper(path / "helper", HelperIntroduction(terms, "ab" * 32))
    stores = {name: path / name for name in COHORTS}
    for name, numbers in COHORTS.items():
        people = [(number, f"user {number}") for number in numbers]
        with CohortStore.create(stores[name], people, root_key=KEY) as store:
            store.set_catalogue([(item, item.title()) for item in ITEMS])
            for number in numbers:
                store.add_history(number, [ITEMS[i] for i in TRAIN.row(number)], None)
                store.set_choice(number, CHOICES[number])
            DeviceSession(store).agree(terms)
    found = SummedTown(path / "server", stores, terms)
    found.line = Line(helper)
    return found


def conduct(town, plan, office, nodes=3, **options):
    with Checkpoint(town.folder) as checkpoint:
        if not checkpoint.allotted():
            checkpoint.allot(allotments())
        conductor = SummedConductor(
            town.folder, plan, checkpoint, office, town.line, nodes=nodes, **options
        )
        conductor.run()
        return conductor.server.items, checkpoint.rounds(), checkpoint.refused()


def test_two_rounds_equal_simulation(town):
    items, rounds, refused = conduct(town, town.found(rounds=2, rules=RULES), Office(town))
    expected, rows = town.simulate([USERS, USERS])
    assert expected.any()
    assert np.array_equal(items, expected), "to the last bit"
    assert town.ledger() == rows
    assert [r.outcome for r in rounds] == ["goal", "goal"]
    assert not refused
    assert town.states() == {"arrived"}
    assert len(town.line.asked) == 2, "one question a round"


class Away(Office):
    """Bora is away."""

    def online(self):
        return [node for node in super().online() if node.node != BORA]


def test_a_gateway_that_was_away_for_the_first_stage_is_in_the_second_at_its_own_price(town):
    plan = town.found(rounds=2, rules=RULES)
    conduct(town, plan, Away(town), nodes=2, target=1)
    items, rounds, _ = conduct(town, plan, Office(town))
    there = sorted({*USERS.tolist()} - {*COHORTS["bora"]})
    expected, rows = town.simulate([there, USERS])
    assert np.array_equal(items, expected)
    assert town.ledger() == rows
    assert [r.reported for r in rounds] == [6, 8]
    both = town.simulate([USERS, USERS])[1]
    for user in COHORTS["bora"]:
        (mine,) = [row["epsilon"] for row in rows if row["user"] == user]
        first, second = [row["epsilon"] for row in both if row["user"] == user]
        assert second < mine < first + second


def test_a_message_that_is_lost_is_spent_and_its_round_closes_without_it(town):
    def lost(node, kind, asked, answer):
        return None if (node, kind, asked.round) == (BORA, "train", 0) else answer

    plan = town.found(rounds=2, rules=RULES)
    items, rounds, refused = conduct(town, plan, Office(town, lost))
    there = sorted({*USERS.tolist()} - {*COHORTS["bora"]})
    expected, _ = town.simulate([there, USERS])
    assert np.array_equal(items, expected)
    assert town.ledger() == town.simulate([USERS, USERS])[1], "what has left is spent, once"
    assert [(r.outcome, r.missing) for r in rounds] == [("deadline", (0, 7)), ("goal", ())]
    assert not refused


def test_a_helper_that_is_away_is_waited_for(town):
    town.line.down = 4
    seen = []

    class Watched(Office):
        def wait(self, seconds):
            seen.append(read_status(town.folder).get("state"))
            super().wait(seconds)

    items, _, refused = conduct(town, town.found(rounds=2, rules=RULES), Watched(town))
    assert np.array_equal(items, town.simulate([USERS, USERS])[0])
    assert seen.count("summing") == 4
    assert not refused


def test_whenever_the_conductor_is_killed_nothing_is_lost_or_spent_twice(town):
    """Each time a step later, and when the helper has answered."""
    plan, at = town.found(rounds=2, rules=RULES), 0
    again, answers = set(), []

    class Mortal(Office):
        def step(self):
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == at and at not in again:
                again.add(at)
                raise Crash

        def send(self, kind, letters, seconds):
            names = super().send(kind, letters, seconds)
            self.step()
            return names

        def collect(self, messages):
            """One after the other, so that some have come and others have not."""
            there = [name for name in messages if name in self.waiting]
            found = super().collect(there[:1])
            self.step()
            return found

    class Asking(Line):
        def __call__(self, question, path):
            told = super().__call__(question, path)
            answers.append((question, told.body))
            if len(answers) in (1, 3):
                raise Crash  # the helper has answered, and nobody has heard it
            return told

    town.line = Asking(town.line.folder)
    while True:
        at += 1
        assert at < 60, "the rounds do not move on"
        try:
            items, rounds, refused = conduct(town, plan, Mortal(town))
            break
        except Crash:
            continue
    expected, rows = town.simulate([USERS, USERS])
    assert np.array_equal(items, expected)
    assert town.ledger() == rows
    assert [r.outcome for r in rounds] == ["goal", "goal"]
    assert not refused
    assert len(again) >= 5, "it was killed often enough"
    assert [answers[0], answers[2]] == [answers[1], answers[3]], "the same question and answer"


def test_a_wrong_sum_gives_its_batch_up(town):
    """The next round is the first of the next period, in which everybody contributes anew."""
    spoil = {0}

    def wrong(told):
        changed = bytearray(told.body)
        if spoil and spoil.pop() == 0:
            changed[20:24] = b"\xff\xff\xff\x3f"
        return Answer(told.status, "", bytes(changed))

    town.line.twist = wrong
    items, rounds, refused = conduct(town, town.found(rounds=4, rules=RULES), Office(town))
    assert [(r.round, r.outcome) for r in rounds] == [(0, "abandoned"), (2, "goal"), (3, "goal")]
    assert refused == {"wrong_sum": 1}
    assert items.any()
    told = {(row["round"], row["user"]) for row in town.ledger()}
    assert told == {(round, user) for round in (0, 2, 3) for user in range(8)}


def test_with_too_few_gateways_a_round_waits_for_others(town):
    """Corso is not there at first, and bora does not answer any more when it was asked."""

    class Late(Office):
        def online(self):
            found = super().online()
            if self.time < 100:
                return [node for node in found if node.node != CORSO]
            return [node for node in found if node.node != BORA]

    def silent(node, kind, asked, answer):
        return None if (node, kind) == (BORA, "train") else answer

    plan = town.found(rounds=1, rules=replace(RULES, min_devices=3))
    office = Late(town, silent)
    items, rounds, _ = conduct(town, plan, office, nodes=2)
    there = sorted(COHORTS["alba"] + COHORTS["corso"])
    assert np.array_equal(items, town.simulate([there])[0])
    assert rounds[0].reported == 6
    assert set(rounds[0].missing) == set(COHORTS["bora"])
    assert office.time >= 100


@pytest.fixture
def foreign_alba(town, tmp_path, monkeypatch):
    """Alba seals its seeds to somebody else."""
    other = init_helper(tmp_path / "other")

    def elsewhere(terms, attempt, view, reports, seeds):
        link = replace(terms.link, key=other)
        with CohortStore.open(town.stores["alba"]) as store:
            key = signing_key(store)
        (update,), (seed,) = reports.masked, seeds.seeds
        bound = masked.binding(
            terms, view.round, attempt, masked.model_name(view.items), len(update)
        )
        record = masked.seal_seed(seed, key, link, bound)
        return masked.encode_masked(terms, update, record, view.round, attempt)

    monkeypatch.setattr(
        test_conductor,
        "sealed_by",
        lambda store: elsewhere if len(store.users) == 1 else sealed_by(store),
    )


@pytest.mark.usefixtures("foreign_alba")
def test_a_seed_that_the_helper_cannot_open_is_left_out(town):
    plan = town.found(rounds=2, rules=RULES)
    items, rounds, refused = conduct(town, plan, Office(town))
    there = sorted({*USERS.tolist()} - {*COHORTS["alba"]})
    assert np.array_equal(items, town.simulate([there, there])[0])
    assert refused == {"undecryptable": 2}
    assert [(r.outcome, r.missing) for r in rounds] == [("deadline", (4,))] * 2


@pytest.mark.usefixtures("foreign_alba")
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed when it is open again"])
def test_a_bad_gateway_does_not_cost_the_good_ones_their_round(town, monkeypatch, killed):
    """Alba and bora are there, and alba's seed cannot be opened: one is left, where two are needed.
    What bora's people have paid for waits until corso comes, and alba is not asked again."""
    tasks, reopen = [], Checkpoint.reopen

    class Late(Office):
        def online(self):
            found = super().online()
            return found if self.time > 100 else [one for one in found if one.node != CORSO]

    def seen(node, kind, asked, answer):
        if kind == "train":
            tasks.append((node, asked.round))
        return answer

    def dies(checkpoint):
        reopen(checkpoint)
        monkeypatch.setattr(Checkpoint, "reopen", reopen)
        raise Crash

    plan, office = town.found(rounds=1, rules=replace(RULES, min_devices=3)), Late(town, seen)
    if killed:
        monkeypatch.setattr(Checkpoint, "reopen", dies)
        with pytest.raises(Crash):
            conduct(town, plan, office, nodes=2)
    items, rounds, refused = conduct(town, plan, office, nodes=2)
    there = sorted(COHORTS["bora"] + COHORTS["corso"])
    assert np.array_equal(items, town.simulate([there])[0])
    assert [(one.round, one.outcome, one.reported) for one in rounds] == [(0, "goal", 7)]
    assert refused == {"undecryptable": 1}
    assert sorted(tasks) == [(ALBA, 0), (BORA, 0), (CORSO, 0)], "everybody is asked once"
    assert len(town.line.asked) == 2, "for all, which tells nothing, and for the good ones"


def test_what_is_not_of_this_round_or_not_signed_is_refused(town):
    def forged(node, kind, asked, answer):
        if kind == "train" and node == ALBA:
            changed = bytearray(answer.sum)
            changed[-1] ^= 1  # the signature
            return replace(answer, sum=bytes(changed))
        return answer

    plan = town.found(rounds=1, rules=RULES)
    _, rounds, refused = conduct(town, plan, Office(town, forged))
    assert refused == {"malformed": 1}
    assert rounds[0].missing == (4,)


def test_two_gateways_with_one_key_are_one(town):
    with CohortStore.open(town.stores["alba"]) as store:
        key = signing_key(store)
    with CohortStore.open(town.stores["bora"]) as store:
        store.set_secret("signing-key", key.private_bytes_raw())
    plan = town.found(rounds=1, rules=RULES)
    _, rounds, refused = conduct(town, plan, Office(town))
    assert refused == {"malformed": 1}
    assert rounds[0].outcome == "deadline"


def test_the_checkpoint_holds_nothing_that_can_be_read(town):
    """Of a cohort of one, what it sends is as good as drawn at random."""
    kept = {}

    def wait(told):
        with Checkpoint(town.folder, readonly=True) as checkpoint:
            for part in checkpoint.masked():
                kept[part.devices] = part.body
        return told

    town.line.twist = wait
    conduct(town, town.found(rounds=1, rules=RULES), Office(town))
    assert sorted(kept) == [1, 2, 5]
    assert len({len(body) for body in kept.values()}) == 1, "nor how many they are"
    numbers = np.frombuffer(kept[1][16:-176], "<u4").astype(np.float64)
    assert len(numbers) == TRAIN.n_items + 1
    assert abs(numbers.mean() / 2**32 - 0.5) < 0.25
    assert (numbers > 2**24).sum() > 0.8 * len(numbers)


# --- a gateway whose people have contributed -----------------------------------------------------


def task(terms, round, numbers, items=None):
    algorithm = terms.build()
    table = algorithm.server_init(terms.n_items, Streams(KEY)) if items is None else items
    model = encode_model(ModelView(round, table))
    return CohortTask(terms, round, 0, None, model, numbers=np.array(numbers))


def test_who_has_contributed_to_a_stage_of_the_period_is_not_in_its_next_batch(tmp_path):
    town = made(tmp_path, replace(CONFIG, batches=2))
    late = COHORTS["corso"][0]
    with CohortStore.open(town.stores["corso"]) as store:
        hosted = DeviceSession(store, pack=sealed_by(store))
        store.set_choice(late, Choice(takes_part=False))
        first = answer_task(hosted, task(town.terms, 0, COHORTS["corso"]))
        assert len(first.sum.booked.who) == 4
        again = answer_task(hosted, task(town.terms, 0, COHORTS["corso"]))
        assert again.to_content()["sum"] == first.to_content()["sum"], "the same bytes"
        rows = store.ledger().num_rows
        assert rows == 4
        # Round 2 is the first stage of the second batch.
        nobody = answer_task(hosted, task(town.terms, 2, COHORTS["corso"]))
        assert (nobody.sum, nobody.problem) == (None, "")
        assert store.ledger().num_rows == rows, "nothing is spent twice"
        store.set_choice(late, CHOICES[late])
        joined = answer_task(hosted, task(town.terms, 2, COHORTS["corso"]))
        assert joined.sum.booked.who == (late,)
        # The next period is everybody's.
        period = answer_task(hosted, task(town.terms, 4, COHORTS["corso"]))
        assert len(period.sum.booked.who) == 5


def test_rows_of_a_model_are_not_added_up_before_they_are_masked():
    link = SecureSum(min_devices=2, url="https://127.0.0.1:1", key="ab" * 32)
    terms = Terms.of("town", 40, FPLConfig(embedding_size=4, triples=6), 6, ShareFraction(), link)
    with pytest.raises(ConfigError, match="contributions alone"):
        GatewaySums(terms, lambda question, path: None)
    assert "masks its own update" in link.hosts(terms.release)
    assert link.hosts(OwnEpsilon()) == ""
