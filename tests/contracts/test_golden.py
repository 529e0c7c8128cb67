"""What is, pinned: model, vectors, ledger, recommendations and results of small experiments, for
every algorithm with its releases and links, in simulation. A change of the code that should change
nothing shows here that it has not.

`golden.json` holds a digest of every array, and beside it a few numbers that sum it up. The ledger
must be the recorded one everywhere. Floating point may round otherwise on another processor or with
other libraries. So the digests of models and vectors, the recommendations and the results must be
the recorded ones on a machine of the same signature; on others the summaries must agree to 1e-4,
95% of the recommendations must be the same, and results may differ by 0.05.

Other engines are not run here. `test_engines.py`, `test_drift_engines.py` and
`test_secure_sum_https.py` hold them to the simulation to the last bit, and the experiments of the
first of these are among those below. What single parties see is pinned by `test_sight.py`,
`test_uc_sight.py` and `test_drift_sight.py`.

To write the file anew:

    python tests/contracts/test_golden.py --write --because "what was wrong, and is right now"

That is permitted where a defect was fixed on purpose, and its fix must change these numbers; or
where the machine of record changes, with no change of the code in the same commit. It is not
permitted to make a refactoring pass. Each time, the date, the reason and the experiments that
changed are listed in the file under "changed". New experiments need no reason.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import tempfile
import time
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from llvmlite import binding
from test_engines import EVERY, WORLDS

from sottovoce import Experiment, SottovoceError, run_experiment
from sottovoce.runs.read import FinishedRun

FILE = Path(__file__).with_name("golden.json")
USERS = 8
"""So many users' recommendations are kept, from first to last."""
PARTS = ("model", "vectors", "ledger", "recommendations", "results")

# --- the experiments ------------------------------------------------------------------------------

TOWN = {"residents": 80, "venues": 120, "districts": 3}
MIX = [
    {"weight": 2, "takes_part": False},
    {"weight": 1, "share_positives": 0.0},
    {"weight": 3, "share_positives": 0.5},
    {"weight": 3, "share_positives": 1.0},
]
ALL_OR_NOTHING = [{"weight": 1, "takes_part": False}, {"weight": 4, "share_positives": 1.0}]
SUM = {"name": "secure-sum", "min_devices": 20}
HIDING = [
    {"weight": 1, "takes_part": False},
    {"weight": 4, "share_positives": 1.0},
    {"weight": 2, "share_positives": 1.0, "hidden_attributes": ["gender"]},
    {
        "weight": 2,
        "share_positives": 0.5,
        "hidden_attributes": ["gender", "age"],
        "strength": 0.8,
    },
]
SHARING = [choice | {"share_positives": 1.0} for choice in HIDING]
TIERS = [{"epsilon": 1.0, "min_devices": 5}, {"epsilon": 2.5, "min_devices": 5}]
REPORTING = [
    {"weight": 1, "takes_part": False},
    {"weight": 3, "epsilon": 1.5, "max_reports": 20, "total_epsilon": 50.0},  # for two rounds
    {"weight": 3, "epsilon": 3.0, "max_reports": 50},
]
REFUSING = [
    {"weight": 3},
    {"weight": 1, "refused_owners": ["red"]},
    {"weight": 1, "takes_part": False},
]


def made(algorithm, consent, **others):
    """A table; `consent` is a mix, or one choice for everybody."""
    consent = {"mix": consent} if isinstance(consent, list) else consent
    return {"seed": 3, "town": TOWN, "algorithm": algorithm, "consent": consent, **others}


def fpl(configuration, consent, **others):
    rounds = 300 if configuration.startswith("s") else 6
    algorithm = {"embedding_size": 6, "rounds": rounds, "configuration": configuration}
    return made(algorithm, consent, **others)


def fpl_of_some(consent, **others):
    algorithm = {"embedding_size": 6, "rounds": 8, "cohort_size": 24, "triples": 5}
    return made(algorithm, consent, **others)


def fcf(variant="paper", **others):
    algorithm = {"name": "fcf", "variant": variant, "embedding_size": 4, "rounds": 6}
    return made(algorithm, others.pop("consent", ALL_OR_NOTHING), **others)


def fmf(consent, tiers, others=None, **algorithm):
    table = {"name": "fmf", "embedding_size": 3, "rounds": 5, **algorithm}
    release = {"max_reports": 20, "tiers": tiers}
    return made(table, consent, release=release, **(others or {}))


def uc(recommender, consent, attributes=(), others=None, **algorithm):
    table = {
        "name": "uc",
        "recommender": recommender,
        "embedding_size": 8,
        "item_rate": 4.0,
        "local_epochs": 3,
        "pairs": 16,
        "cohort_size": 30,
        "rounds": 4,
        "attributes": [{"name": name} for name in attributes],
        **algorithm,
    }
    return made(table, consent, **(others or {}))


def drift(others=None, **algorithm):
    # Recorded with ratings from 4 on as positive, which is no longer the default.
    table = {"name": "drift", "epochs": 4, "learning_rate": 0.05, "positive_from": 4.0, **algorithm}
    data = {"source": "shops", "test_fraction": 0.3}
    others = {"consent": {"mix": REFUSING}, **(others or {})}
    return {"seed": 5, "data": data, "algorithm": table, **others}


def link(**settings):
    return {"link": {**SUM, **settings}}


BOTH = ("gender", "age")
PER_DRAW = {"release": {"per": "draw"}}
CAPS = {"burst": 0.3, "refill_rounds": 5}
LIMITED = [*MIX[:3], {"weight": 3, "share_positives": 1.0, "total_epsilon": 3.0}]
L1 = {"norm": "l1", "clip": 1.0, "epsilon": 50.0}
SCALAR = {"norm": "scalar", "clip": 0.1, "epsilon": 8.0, "hiding_epsilon": 4.0}
OWN_EPSILON = [
    {"weight": 1, "takes_part": False},
    {"weight": 2, "share_positives": 1.0},
    {"weight": 2, "epsilon": 20.0, "total_epsilon": 30.0},
    {"weight": 1, "share_positives": 1.0, "hidden_attributes": ["gender"]},
]
NOISY = {"clip": 1.0, "noise": 2.0}
BASELINES = {
    "random": {},
    "top-pop": {},
    "user-knn": {"neighbors": 10},
    "item-knn": {"neighbors": 10},
    "bpr-mf": {"embedding_size": 4, "epochs": 3},
    "mf-np": {"embedding_size": 4, "epochs": 3},
    "mf-np-adam": {"name": "mf-np", "solver": "adam", "embedding_size": 4, "epochs": 5},
    "mult-vae": {"hidden_size": 16, "embedding_size": 8, "epochs": 3},
    "dplcf": {"neighbors": 10},
}

EXPERIMENTS = {
    "fpl-sfpl-pi-half": fpl("sFPL", {"share_positives": 0.5}),
    "fpl-sfpl-per-draw": fpl("sFPL", MIX, **PER_DRAW),
    "fpl-sfpl-plus": fpl("sFPL+", MIX),
    "fpl-pfpl-pi-one": fpl("pFPL", {"share_positives": 1.0}),
    "fpl-pfpl-plus-pi-zero": fpl("pFPL+", {"share_positives": 0.0}),
    "fpl-pfpl-plus-mix": fpl("pFPL+", MIX),
    "fpl-pfpl-plus-per-draw": fpl("pFPL+", MIX, **PER_DRAW),
    "fpl-secret": fpl("pFPL+", MIX, draws="secret"),
    "fpl-of-some-secret-per-draw": fpl_of_some(MIX, draws="secret", **PER_DRAW),
    "fpl-defence": fpl_of_some(MIX, defence=CAPS),
    "fpl-sum": fpl_of_some(MIX, **link()),
    "fpl-sum-secret": fpl("pFPL+", MIX, draws="secret", **link()),
    "fpl-sum-clip": fpl_of_some(MIX, **link(clip=0.2)),
    "fpl-sum-noise": fpl_of_some(MIX, **link(**NOISY), **PER_DRAW),
    "fpl-sum-noise-limited": fpl("pFPL+", LIMITED, **link(**NOISY)),
    "fpl-sum-defence": fpl_of_some(MIX, defence={"max_sum_norm": 1.5}, **link()),
    "fcf-paper": fcf(),
    "fcf-as-in-fpl": fcf("fpl"),
    "fcf-secret": fcf(consent={"share_positives": 1.0}, draws="secret"),
    "fcf-sum": fcf(**link()),
    "fcf-sum-clip": fcf(**link(clip=1.0)),
    "fcf-sum-noise": fcf(**link(**NOISY)),
    "fcf-as-in-fpl-sum-noise": fcf("fpl", **link(**NOISY)),
    "fmf-published": fmf({"epsilon": 2.5, "max_reports": 20}, TIERS[1:]),
    "fmf-published-two-tiers": fmf(REPORTING, TIERS),
    "fmf-rotated": fmf({"epsilon": 2.5, "max_reports": 20}, TIERS[1:], variant="rotated"),
    "fmf-rotated-two-tiers-secret": fmf(REPORTING, TIERS, {"draws": "secret"}, variant="rotated"),
    "uc-mf": uc("mf", ALL_OR_NOTHING),
    "uc-mf-few": uc("mf", HIDING, BOTH, cohort_size=8),
    "uc-mf-hiding": uc("mf", HIDING, BOTH),
    "uc-ncf-hiding-secret": uc("ncf", HIDING, BOTH, {"draws": "secret"}, filters="two-layer"),
    "uc-neumf-deep": uc(
        "neumf",
        HIDING[:3],
        ["gender"],
        filters="deep",
        target="uniform",
        cohort_size=17,
        rounds=2,
        local_epochs=2,
        pairs=8,
    ),
    "uc-gnn-hiding": uc("gnn", HIDING, BOTH),
    "uc-l1": uc("mf", SHARING, BOTH, {"release": L1}),
    "uc-l1-few": uc("mf", OWN_EPSILON, ["gender"], {"release": L1}, cohort_size=8),
    "uc-scalar": uc("ncf", SHARING, BOTH, {"release": SCALAR}, filters="two-layer"),
    "uc-sum": uc("mf", HIDING, BOTH, link()),
    "uc-gnn-sum": uc("gnn", HIDING, BOTH, link()),
    "uc-l1-sum": uc("mf", SHARING, BOTH, {"release": L1} | link()),
    "uc-scalar-sum": uc("mf", SHARING, BOTH, {"release": SCALAR} | link()),
    "uc-sum-noise": uc("ncf", HIDING, BOTH, link(**NOISY)),
    "drift-printed": drift(),
    "drift-printed-one-owner": drift({"owners": {"by": "one"}, "consent": {}}, order="user"),
    "drift-printed-window": drift(window=40, theta=3),
    "drift-aggregated": drift(release="aggregated", min_users=4),
    "drift-aggregated-window": drift(release="aggregated", min_users=4, window=60),
    "drift-aggregated-one-owner": drift(
        {"owners": {"by": "one"}, "consent": {"mix": [REFUSING[0], REFUSING[2]]}},
        release="aggregated",
        min_users=6,
    ),
    "split-random-sampled-candidates": fpl(
        "pFPL+",
        MIX,
        data={"split": "random", "test_fraction": 0.3, "min_item_users": 3},
        evaluation={"k": 5, "candidates": 20, "every_epochs": 1},
    ),
    "split-leave-one-out-validation": fcf(
        data={"split": "leave-one-out", "hold_out": "random", "part": "validation"}
    ),
    "baselines": made(
        {"embedding_size": 4, "rounds": 1}, {"share_positives": 1.0}, baselines=BASELINES
    ),
    "baselines-drift": drift({"baselines": {"saros": {"epochs": 3}, "top-pop": {}}}, epochs=1),
    **{f"engines-{name}": tomllib.loads(EVERY + world) for name, world in WORLDS.items()},
}
WRITTEN = (
    "fpl-sfpl-plus",
    "fpl-pfpl-plus-mix",
    "fpl-pfpl-plus-per-draw",
    "fpl-sum",
    "fpl-sum-noise-limited",
    "fcf-paper",
    "fcf-sum-noise",
    "fmf-published-two-tiers",
    "fmf-rotated",
    "uc-mf-few",
    "uc-mf-hiding",
    "uc-l1",
    "uc-scalar",
    "uc-gnn-hiding",
    "uc-sum-noise",
)
"""Experiments that are also run with every message written out, for a transcript, and by two
threads: to the same numbers as where devices' updates are added up at once."""
CASES = {name: (name, False) for name in EXPERIMENTS} | {
    f"{name}, written out": (name, True) for name in WRITTEN
}


def write_shops(root):
    """Data with ratings and categories, which the town has not, by whole numbers alone."""
    events = [
        (user, item, (user * 7919 + item * 104_729 + user * item * 31) % 9973)
        for user in range(40)
        for item in range(30)
        if (user * 31 + item * 17 + user * item) % 5 < 3
    ]
    kinds = ("red",), ("green",), ("blue",), ("red", "blue")
    folder = Path(root) / "shops"
    folder.mkdir(parents=True)
    columns = {
        "user": [user for user, _, _ in events],
        "item": [item for _, item, _ in events],
        "timestamp": [word * 101 for _, _, word in events],
        "rating": [float(1 + word % 5) for _, _, word in events],
    }
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    items = {"item": list(range(30)), "categories": [list(kinds[i % 4]) for i in range(30)]}
    pq.write_table(pa.table(items), folder / "items.parquet")


# --- what a run gives -----------------------------------------------------------------------------


def outcome(table, root, *, written=False):
    """Everything that is pinned of an experiment, run as `sottovoce run` does, and read from the
    run's folder as its other commands do."""
    with here(root) as out:
        experiment = Experiment.from_table({"name": "golden", **table})
        run_experiment(experiment, out, threads=2 if written else 1, transcript=written)
        run = FinishedRun.open(out)
        return {
            "model": about_array(run.folder.model()),
            "vectors": about_array(run.folder.vectors()),
            "ledger": about_table(run.folder.ledger()),
            "recommendations": {name: recommended(run, name) for name in some_users(run)},
            "results": run.folder.manifest()["results"],
        }


@contextlib.contextmanager
def here(root):
    """A place for a run, with the data beside it. Torch adds up with one thread, so that the number
    of processors does not matter."""
    root, before, threads = Path(root), os.environ.get("SOTTOVOCE_DATA"), torch.get_num_threads()
    torch.set_num_threads(1)
    write_shops(root / "sets")
    os.environ["SOTTOVOCE_DATA"] = str(root / "sets")
    try:
        yield root / "run"
    finally:
        torch.set_num_threads(threads)
        del os.environ["SOTTOVOCE_DATA"]
        if before is not None:
            os.environ["SOTTOVOCE_DATA"] = before


def some_users(run):
    names = run.split.train.users_vocabulary().names()
    places = np.linspace(0, len(names) - 1, USERS).round().astype(int)
    return [names[place] for place in dict.fromkeys(places.tolist())]


def recommended(run, user):
    """Items, best first; in DRIFT there are none for who takes no part."""
    try:
        return " ".join(entry.item for entry in run.recommend(user, 10))
    except SottovoceError:
        return "refused"


def digest(*chunks, size=16):
    return hashlib.blake2b(b"\0".join(chunks), digest_size=size).hexdigest()


def about_array(array):
    array = np.ascontiguousarray(array)
    kind = array.dtype.str, str(array.shape)
    return {
        "shape": list(array.shape),
        "digest": digest(*(word.encode() for word in kind), array.tobytes()),
        "summary": [float(f"{value:.9g}") for value in summary(array)],
    }


def summary(array):
    """Root mean square, mean of absolute values, extremes, and four sums with signs by place, each
    of about the size of the first."""
    flat = array.astype(np.float64).ravel()
    place = np.arange(1, len(flat) + 1, dtype=np.uint64)
    words = (place ^ (place >> np.uint64(3))) * np.uint64(0x9E3779B97F4A7C15)
    signs = [1.0 - 2.0 * ((words >> np.uint64(bit)) & np.uint64(1)) for bit in (63, 57, 51, 45)]
    sums = [(flat * sign).sum() / np.sqrt(len(flat)) for sign in signs]
    return [np.sqrt((flat**2).mean()), np.abs(flat).mean(), flat.min(), flat.max(), *sums]


def about_table(table):
    """Columns as plain arrays and words, so that an encoding does not matter, by rows in their
    order. What an ε is behind its twelfth digit is left to the mathematics of the machine."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            content = "\0".join(column.cast("string").to_pylist()).encode()
        elif pa.types.is_floating(column.type):
            content = "\0".join(f"{value:.12g}" for value in column.to_pylist()).encode()
        else:
            content = column.to_numpy().astype(np.int64).tobytes()
        columns[name] = digest(content, size=8)
    return {"rows": table.num_rows, "columns": columns}


def signature():
    """Of the machine: what floating point may depend on."""
    features = binding.get_host_cpu_features().flatten()
    return {
        "machine": platform.machine(),
        "cpu": binding.get_host_cpu_name(),
        "features": digest(features.encode()),
        **{name: version(name) for name in ("numpy", "scipy", "numba", "torch")},
    }


# --- the comparison -------------------------------------------------------------------------------


def differences(expected, got, *, same_machine):
    """By part that differs: how."""
    found = {}
    for part in PARTS:
        problem = _CHECKS[part](expected[part], got[part], same_machine)
        if problem:
            found[part] = problem
    return found


def _array(expected, got, same_machine):
    if expected["shape"] != got["shape"]:
        return f"its shape is {got['shape']}, not {expected['shape']}"
    was, now = np.array(expected["summary"]), np.array(got["summary"])
    gap = float(np.max(np.abs(now - was) / np.maximum(np.abs(was), was[0] or 1.0)))
    differs = expected["digest"] != got["digest"] if same_machine else not gap <= 1e-4
    return f"its summary differs by {gap:.2g}" if differs else ""


def _ledger(expected, got, same_machine):
    if expected["rows"] != got["rows"]:
        return f"{got['rows']} rows in place of {expected['rows']}"
    was, now = expected["columns"], got["columns"]
    others = [name for name in was | now if was.get(name) != now.get(name)]
    return f"columns {', '.join(others)}" if others else ""


def _recommendations(expected, got, same_machine):
    if expected.keys() != got.keys():
        return f"for users {list(got)}, not {list(expected)}"
    changed = [user for user, items in expected.items() if got[user] != items]
    if same_machine:
        return f"other lists for {', '.join(changed)}" if changed else ""
    pairs = [(set(items.split()), set(got[user].split())) for user, items in expected.items()]
    share = sum(len(was & now) for was, now in pairs) / sum(len(was | now) for was, now in pairs)
    return "" if share >= 0.95 else f"{share:.1%} of the items are the same"


def _results(expected, got, same_machine):
    was, now = ({k: sorted(v) for k, v in table.items()} for table in (expected, got))
    if was != now:
        return f"systems or metrics are others: {list(got)}"
    most = 1e-12 if same_machine else 0.05
    far = [
        f"{system} {metric} {got[system][metric]:.6g} in place of {value:.6g}"
        for system, metrics in expected.items()
        for metric, value in metrics.items()
        if not abs(got[system][metric] - value) <= most * max(1.0, abs(value))
    ]
    return "; ".join(far[:4])


_CHECKS = {
    "model": _array,
    "vectors": _array,
    "ledger": _ledger,
    "recommendations": _recommendations,
    "results": _results,
}


def told(name, found):
    return f"{name}: {', '.join(found)} changed: " + " | ".join(
        f"{part}: {how}" for part, how in found.items()
    )


# --- tests ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_an_experiment_gives_what_it_gave(case, golden, tmp_path):
    name, written = CASES[case]
    got = outcome(EXPERIMENTS[name], tmp_path, written=written)
    same_machine = golden["machine"] == signature()
    found = differences(golden["experiments"][name], got, same_machine=same_machine)
    assert not found, told(case, found)


def test_the_file_has_every_experiment_and_no_other(golden):
    assert sorted(golden["experiments"]) == sorted(EXPERIMENTS)
    for change in golden["changed"]:
        assert date.fromisoformat(change["date"])
        assert change["because"]
        assert change["experiments"]


@pytest.mark.parametrize("same_machine", [True, False])
def test_a_change_is_found(golden, tmp_path, same_machine):
    """A learning rate that is 0.1% larger: also on another machine that is no matter of rounding.
    It moves the model and the vectors, and not who sends how much."""
    name = "fpl-pfpl-plus-mix"
    table, expected = EXPERIMENTS[name], golden["experiments"][name]
    faster = table | {"algorithm": table["algorithm"] | {"learning_rate": 0.05005}}
    found = differences(expected, outcome(faster, tmp_path), same_machine=same_machine)
    assert {"model", "vectors"} <= set(found), found
    assert "ledger" not in found
    assert told(name, found).startswith(f"{name}: model, vectors")


def test_a_change_of_a_single_bit_row_or_place_is_found(golden):
    expected = golden["experiments"]["engines-fpl"]
    assert differences(expected, expected, same_machine=True) == {}
    table = pa.table({"user": [1, 2], "kind": ["a", "b"], "epsilon": [0.5, np.inf]})
    turned = about_table(table.take([1, 0]))
    assert about_table(table)["rows"] == turned["rows"]
    assert about_table(table) != turned
    for same_machine in (True, False):
        other = expected | {"ledger": turned}
        assert list(differences(expected, other, same_machine=same_machine)) == ["ledger"]
    array = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
    moved = array.copy()
    moved[7, 1] = np.nextafter(moved[7, 1], np.float32(2))
    one, other = (expected | {"model": about_array(a)} for a in (array, moved))
    assert list(differences(one, other, same_machine=True)) == ["model"]
    assert not differences(one, other, same_machine=False), "on another machine it is rounding"
    other = expected | {"model": about_array(array[::-1])}
    assert list(differences(one, other, same_machine=False)) == ["model"]
    first, *rest = expected["recommendations"]
    lists = expected["recommendations"]
    swapped = expected | {"recommendations": lists | {first: lists[rest[0]]}}
    assert list(differences(expected, swapped, same_machine=True)) == ["recommendations"]
    assert list(differences(expected, swapped, same_machine=False)) == ["recommendations"]


# --- writing the file -----------------------------------------------------------------------------


def write(because):
    """Run everything, and replace the file. Raises where a change has no reason."""
    old = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    before, found = old.get("experiments", {}), {}
    for case, (name, written) in CASES.items():
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as root:
            got = outcome(EXPERIMENTS[name], root, written=written)
        print(f"{time.perf_counter() - began:6.2f} s  {case}", flush=True)
        if gone := differences(found.setdefault(name, got), got, same_machine=True):
            raise SystemExit(f"nothing was written; {told(case, gone)}")
    changed = [name for name in before if found.get(name) != before[name]]
    if changed and not because:
        raise SystemExit(f"nothing was written; say --because of what these changed: {changed}")
    entry = {"date": date.today().isoformat(), "because": because, "experiments": changed}
    history = [*old.get("changed", []), *([entry] if changed else [])]
    FILE.write_text(laid_out(signature(), history, found), encoding="utf-8")


def laid_out(machine, changed, experiments):
    """A line for every part of an experiment, and for every user's list."""

    def lines(table, indent):
        inner = [f"{json.dumps(key)}: {value}" for key, value in table.items()]
        return "{\n" + ",\n".join(f"{indent} {line}" for line in inner) + f"\n{indent}}}"

    def plain(table):
        return {key: json.dumps(value) for key, value in table.items()}

    def parts(entry):
        nested = {key: lines(plain(entry[key]), "   ") for key in ("recommendations", "results")}
        return lines(plain(entry) | nested, "  ")

    about = lines({name: parts(entry) for name, entry in experiments.items()}, " ")
    history = "[" + ",".join(f"\n  {json.dumps(change)}" for change in changed) + "]"
    return (
        lines({"machine": lines(plain(machine), " "), "changed": history, "experiments": about}, "")
        + "\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("--because", default="", help="why experiments changed")
    write(parser.parse_args().because)
