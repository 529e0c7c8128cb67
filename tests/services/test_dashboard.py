"""deploy/grafana.json and deploy/prometheus-alerts.yml name nothing that services do not expose,
and leave nothing of it out."""

import json
import re
from pathlib import Path

import orchestrator_world
import owner_world
import proxy_world
import pytest
from app_world import InProcess
from checked_world import CheckedWorld
from prometheus_client.parser import text_string_to_metric_families
from secure_sum_world import MaskerApp, SeedKeeper, masker_folder, question
from versions_world import BAD, GOOD, VersionsWorld, answering

from sottovoce.services.kit.application import Hosting
from sottovoce.services.kit.connections import Limits
from sottovoce.services.kit.metrics import exposition
from sottovoce.services.server.figures import figures
from sottovoce.services.superlink import FlowerApplication
from sottovoce.stores.keys import RoleTokens, operator_token
from sottovoce.wire.refusals import RefusalCounts

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
ALERTS = (DEPLOY / "prometheus-alerts.yml").read_text()
_SERIES = re.compile(r"\b((?:sottovoce|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
OF_PROMETHEUS = {"job", "instance"}
UNSHOWN = {
    "sottovoce_owner_held",
    "sottovoce_owner_in_flight_bytes",
    "sottovoce_owner_updates_total",
    "process_virtual_memory_bytes",
    "process_start_time_seconds",
    "python_info",
}
"""What a data owner looks at by itself, and what Prometheus's own collectors have besides."""


def scraped(app, keys):
    bearer = {"authorization": f"Bearer {operator_token(keys)}"}
    return app.ask("GET", "/metrics", headers=bearer).body


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """By the name of each series the labels that it has; None where there are no samples of it."""
    path, texts = tmp_path_factory.mktemp("services"), []
    with pytest.MonkeyPatch.context() as patch:
        answering(patch, GOOD, BAD)
        (path / "server").mkdir()
        server = VersionsWorld(path / "server", 9)
        for _ in range(5):
            server.run_round()
        tally = RefusalCounts()
        tally.count("malformed")
        texts.append(exposition("", figures(server.database, tally, 0, server.plan)))
        server.database.close()
    helper = masker_folder(path / "helper")
    with MaskerApp(helper) as app:
        devices = [SeedKeeper() for _ in range(3)]
        assert app.sums(question(helper.introduction.terms, 0, devices)).status == 200
        assert app.sums(b"").status == 400
        texts.append(scraped(app, helper.keys))
    (path / "checked").mkdir()
    checked = CheckedWorld(path / "checked")
    texts.append(scraped(checked.apps[1], checked.apps[1].folder.keys))
    checked.close()
    with proxy_world.proxied(path) as (_, folder), proxy_world.App(folder) as app:
        texts.append(scraped(app, folder.keys))
    folder = orchestrator_world.new_folder(path / "orchestrator")
    with orchestrator_world.App(folder) as app:
        texts.append(scraped(app, folder.keys))
    owner = owner_world.World(path)
    with owner_world.App(owner.folder) as app:
        texts.append(scraped(app, owner.folder.keys))
    with OfFlower(helper) as app:
        texts.append(scraped(app, helper.keys))
    found = {}
    for text in texts:
        for family in text_string_to_metric_families(text.decode()):
            ends = {"counter": "_total", "histogram": "_bucket"}
            name = family.name + ends.get(family.type, "")
            labels = {label for sample in family.samples for label in sample.labels}
            found[name] = (found.get(name) or labels) if family.samples else found.get(name)
    return found


class OfFlower(InProcess):
    """Of a training that has not begun."""

    def __init__(self, folder):
        self.folder = folder

    async def make(self):
        hosting = Hosting(RoleTokens(self.folder.keys), RefusalCounts(), Limits())
        return FlowerApplication(hosting, self.folder.path)


def named(expression):
    """Every series of an expression, with the labels by which it is chosen."""
    for name, labels in _SERIES.findall(expression):
        yield name, set(_LABEL.findall(re.sub(r'"[^"]*"', '""', labels))) - OF_PROMETHEUS


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from alerts()


def alerts():
    yaml = pytest.importorskip("yaml")
    for group in yaml.safe_load(ALERTS)["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_every_series_that_is_shown_or_watched_is_exposed_with_its_labels(everything):
    seen = 0
    for expression in expressions():
        for name, labels in named(expression):
            assert name in everything, f"{name} is exposed by nobody"
            has = everything[name]
            assert has is None or labels <= has, f"{name} has no {labels - has}"
            seen += 1
    assert seen > 100


def test_every_label_in_a_legend_is_there(everything):
    for panel in panels():
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - OF_PROMETHEUS
            (name, *_) = (name for name, _ in named(target["expr"]))
            has = everything[name]
            assert has is None or wanted <= has, f"{panel['title']}: {wanted - has}"


def test_everything_that_is_exposed_is_shown(everything):
    shown = {name for expression in expressions() for name, _ in named(expression)}
    assert set(everything) - shown == UNSHOWN


def test_most_series_have_samples_in_these_worlds(everything):
    """A check of labels that looks at nothing finds nothing."""
    empty = {name for name, labels in everything.items() if labels is None}
    assert len(empty) < 30, empty
    for name in ("state", "waiting", "quality", "rounds_total", "refused_total"):
        assert everything[f"sottovoce_{name}"], name


def test_every_panel_says_what_it_shows_in_which_unit():
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles) > 20
    for panel in panels():
        assert panel["title"], panel["id"]
        assert len(panel["description"]) > 15, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(t["datasource"]["uid"] == "${datasource}" for t in panel["targets"])


def test_the_dashboard_can_be_imported():
    assert DASHBOARD["schemaVersion"] >= 38  # of Grafana 10
    assert "id" not in DASHBOARD  # Grafana gives it
    source, job = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource", "datasource", "prometheus",
    )  # fmt: skip
    assert (job["name"], job["allValue"]) == ("job", ".+")
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        here = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert not here & taken, panel["title"]
        taken |= here


@pytest.mark.parametrize("prefix", ["sottovoce", "sottovoce_flower"])
def test_a_stage_of_thirty_days_is_no_alert_before_its_deadline(prefix):
    """It fired after a day. The rule is worked out here as Prometheus would: this one is Python,
    too."""
    yaml = pytest.importorskip("yaml")
    rules = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    (rule,) = [one["expr"] for one in rules if one["alert"] == "SottovoceRoundWaits"]
    day = 86_400

    def fires(open_for, deadline):
        nan = float("nan")  # no series, no alert
        known = dict.fromkeys((name for name, _ in named(rule)), nan)
        known |= {
            f"{prefix}_round_opened_timestamp_seconds": 1e9 - open_for,
            f"{prefix}_round_deadline_seconds": deadline,
        }
        return eval(rule, {"__builtins__": {}, "time": lambda: 1e9}, known)

    assert not fires(29 * day, 30 * day)
    assert not fires(30.9 * day, 30 * day)
    assert fires(31.1 * day, 30 * day)
    assert fires(1.1 * day, 600)


def test_every_alert_says_what_happened_and_what_to_do():
    yaml = pytest.importorskip("yaml")
    rules = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    assert 5 <= len(rules) <= 12
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["description"]) > 15
        assert {"sottovoce", "up"} & set(re.findall(r"^up|sottovoce", rule["expr"]))
