"""What a run's report says of a secure sum: what it means, and an ε only where there is noise."""

import html
import re

import numpy as np
import pyarrow as pa
import pytest

import sottovoce.cli
from sottovoce.core import ledger as ledgers
from sottovoce.core.links import NOISY_SUMS, OPEN_SUMS, SUMMED, Direct, SecureSum
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.central import noise_for, price
from sottovoce.privacy.mechanisms import EVERYTHING, SHARES, Everything, ShareFraction
from sottovoce.privacy.updates import FILTERED, NOISY, NOISY_FILTERS, SUMMED_FILTERS, Clipped
from sottovoce.runs.report import budget_sections, honest_notes, sum_sections

OPEN = SecureSum(min_devices=5)
NOISE = SecureSum(min_devices=5, clip=2.0, noise=3.0)
FPL = [
    "run", "tuned/fpl", "--set", "town.residents=60", "--set", "town.venues=40",
    "--set", "algorithm.embedding_size=3", "--set", "algorithm.rounds=4",
]  # fmt: skip
LINKS = {
    "open": "link={name='secure-sum',min_devices=20}",
    "noisy": "link={name='secure-sum',min_devices=20,clip=1.0,noise=5.0}",
}


def table(user, round):
    return pa.table({"user": np.array(user, np.int64), "round": np.array(round, np.int64)})


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "link", "said"),
    [
        (ShareFraction(), OPEN, [SUMMED, OPEN_SUMS]),
        (ShareFraction(), NOISE, [SUMMED, NOISY_SUMS]),
        (Everything(), OPEN, [SUMMED, OPEN_SUMS]),
        (Clipped(), OPEN, [SUMMED, OPEN_SUMS, SUMMED_FILTERS]),
        (Clipped(), NOISE, [SUMMED, NOISY_SUMS, NOISY_FILTERS]),
        (Clipped(clip=4.0, norm="l1", epsilon=1.0), OPEN, [SUMMED, NOISY]),
        (ShareFraction(), Direct(), [SHARES]),
        (Everything(), None, [EVERYTHING]),
        (Clipped(), Direct(), [FILTERED]),
    ],
)
def test_the_words_are_those_of_the_link(release, link, said):
    assert honest_notes([release], [link]).text.split("\n\n") == said


def test_every_kind_is_said_once_and_links_may_be_left_out():
    assert honest_notes([ShareFraction(), Everything()]).text == f"{SHARES}\n\n{EVERYTHING}"
    both = honest_notes([ShareFraction()] * 3, [OPEN, NOISE, OPEN]).text.split("\n\n")
    assert both == [SUMMED, OPEN_SUMS, NOISY_SUMS]


def test_what_a_secure_sum_rests_on_is_said_whatever_else_is():
    for link in (OPEN, NOISE):
        text = honest_notes([ShareFraction()], [link]).text
        for words in ("do not put together", "made up hide nobody", "who takes part"):
            assert words in text
    assert "there is no ε" in honest_notes([ShareFraction()], [OPEN]).text
    assert "one device alone" in honest_notes([ShareFraction()], [OPEN]).text
    assert "there is no ε" not in honest_notes([ShareFraction()], [NOISE]).text


# --- the certificate ------------------------------------------------------------------------------


def test_the_certificate_is_that_of_the_user_who_took_part_most_often():
    rows = table([1, 2, 3, 1, 2, 1], [0, 0, 0, 1, 1, 5])
    ((section),) = sum_sections(NOISE, rows)
    (shown,) = section.blocks
    (row,) = shown.rows
    assert (row["rounds"], row["devices"]) == (3, 1)
    assert row["epsilon"] == rounded_up(price(3.0, 3))
    assert row["needed"] >= noise_for(1.0, 3)
    assert price(row["needed"], 3) <= 1.0
    (note,) = shown.notes
    for words in ("δ = 1e-06", "counted or left out", "does not collude", "nothing is promised"):
        assert words in note


def test_without_noise_there_is_no_certificate(tmp_path):
    rows = table([1, 2], [0, 0])
    for link in (OPEN, SecureSum(clip=2.0), Direct(), None):
        assert sum_sections(link, rows) == []
        assert budget_sections(ShareFraction(), rows, tmp_path, link) == []
    assert sum_sections(NOISE, table([], [])) == []
    assert len(budget_sections(ShareFraction(), rows, tmp_path, NOISE)) == 1


# --- the page -------------------------------------------------------------------------------------


def page_of(path):
    """The words of a report."""
    text = re.sub(r"<style.*?</style>|<img[^>]*>", " ", path.read_text(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("sums")
    for name, link in LINKS.items():
        assert sottovoce.cli.call([*FPL, "--set", link, "--out", str(root / name)]) == 0
    return root


def test_the_report_of_a_run_says_it(runs):
    page = page_of(runs / "open/report.html")
    assert SUMMED in page
    assert OPEN_SUMS in page
    assert SHARES not in page, "which is true where the server sees single rows"
    assert "Certificate" not in page


def test_the_report_of_a_run_with_noise_has_its_certificate(runs):
    page = page_of(runs / "noisy/report.html")
    assert NOISY_SUMS in page
    assert OPEN_SUMS not in page
    users = ledgers.read(runs / "noisy/ledger.parquet")["user"].to_numpy()
    rounds = int(np.bincount(users).max())
    assert "Certificate of the noisy sums" in page
    assert f"{rounded_up(price(5.0, rounds)):,.10g}" in page
