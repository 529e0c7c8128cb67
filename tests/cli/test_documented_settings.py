"""Every setting of an experiment file is named on their page, and not by an error alone."""

import dataclasses
import re
from pathlib import Path

import pytest

from sottovoce.algorithms.base import ALGORITHMS
from sottovoce.baselines import BASELINES
from sottovoce.core.consent import Choice
from sottovoce.core.links import LINKS
from sottovoce.data.town import TownConfig
from sottovoce.experiment import DataConfig, EvaluationConfig, HomeConfig, OwnersConfig
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import RoundRules
from sottovoce.privacy.base import RELEASES

PAGE = (Path(__file__).parents[2] / "docs" / "experiment-files.md").read_text(encoding="utf-8")
SECTIONS = {
    "data": [DataConfig], "evaluation": [EvaluationConfig], "home": [HomeConfig],
    "owners": [OwnersConfig], "town": [TownConfig], "service": [RoundRules],
    "defence": [Defence], "consent": [Choice], "algorithm": ALGORITHMS.values(),
    "release": RELEASES.values(), "link": LINKS.values(), "baselines": BASELINES.values(),
}  # fmt: skip


def named(setting, page=PAGE):
    """As a key of an example, or as code: alone, behind its section, or with a value."""
    code = rf"`([\w-]+\.)*{setting}( = [^`]*)?`"
    return re.search(rf"{code}|^{setting} = |[{{,] ?{setting} = ", page, re.MULTILINE) is not None


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_named_on_the_page_of_experiment_files(section):
    kinds = [kind for kind in SECTIONS[section] if kind.__module__.startswith("sottovoce.")]
    settings = {f.name for kind in kinds for f in dataclasses.fields(kind) if f.init}
    settings -= {"strengths"}  # a table of `consent.strength`
    assert settings
    assert not sorted(setting for setting in settings if not named(setting))


def test_a_word_of_the_text_names_no_setting():
    assert not named("support", "with the support of many")
    assert named("support", "| `algorithm.support` | …")
    assert named("support", "support = 0.0")
    assert not named("support", "`supported` and `most_support`")
