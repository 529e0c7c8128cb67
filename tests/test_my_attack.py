"""A stranger's attack: one file, loaded by the command, and in the report beside ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.attacks.views import ATTACKS
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment
from sottovoce.registry import use_file
from sottovoce.runs.train import run_experiment

EXAMPLE = Path(__file__).parents[1] / "examples" / "my_attack.py"
TABLE = {
    "name": "tiny",
    "town": {"residents": 40, "venues": 60, "visits_per_resident": 15.0},
    "algorithm": {"configuration": "pFPL", "embedding_size": 3, "epochs": 2},
}
# In a process of its own, so that the attacks of this one stay as they are.
COMMAND = """
import sys
from sottovoce.registry import use_file
use_file(sys.argv[1])
import sottovoce.cli
sys.exit(sottovoce.cli.call(["attack", *sys.argv[2:]]))
"""


def test_a_strangers_attack_is_run_with_ours(tmp_path):
    run_experiment(Experiment.from_table(TABLE), tmp_path / "run")
    more = ["--rounds", "2", "--only", "A3,popular items", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, EXAMPLE, tmp_path / "run", *more],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ours, theirs = json.loads(done.stdout)["attacks"]
    assert (ours["code"], ours["attack"]) == ("A3", "sign")
    assert set(theirs) == set(ours)
    assert (theirs["code"], theirs["attack"], theirs["party"]) == ("X", "popular items", "server")
    assert theirs["claims"] > 0
    assert "popular items" in (tmp_path / "run" / "report-card.html").read_text()


HEAD = "from sottovoce.attacks.views import ATTACKS, Attack\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('ATTACKS.add("a", Attack("a", "server", "No."))', "the attack 'a' lacks guess"),
        ('ATTACKS.add("a", Attack("a", "baker", "No.", id))', "is by 'baker'; parties are"),
        ('ATTACKS.add("a", Attack("a", "server", "No.", id, against="fpl"))', "in a set"),
        ('ATTACKS.add("A a", Attack("a", "server", "No.", id))', "small letters"),
        ('ATTACKS.add("a", id)', "does not derive from Attack"),
        (
            'ATTACKS.add("sign", Attack("a", "server", "No.", id))',
            r"two attacks are called 'sign', sottovoce\.attacks\.suite\.a03_sign, line \d+ and "
            r"\S+mine.py, line \d+; give one of them another name",
        ),
    ],
)
def test_an_attack_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, code, words):
    before = list(ATTACKS)
    (tmp_path / "mine.py").write_text(HEAD + code + "\n")
    with pytest.raises(ConfigError, match=words) as refused:
        use_file(tmp_path / "mine.py")
    assert "\n" not in str(refused.value)
    assert list(ATTACKS) == before


def test_ours_are_in_the_order_of_their_files():
    homes = [ATTACKS.place(name).partition(",")[0].rpartition(".")[2] for name in ATTACKS]
    assert homes == sorted(homes)
    assert [attack.code for attack in ATTACKS.values()][:4] == ["A1"] * 4
