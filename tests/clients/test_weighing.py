"""What a tab says of a choice, of who sees what and of terms is what an agent says of the same."""

import json
import math
import re
import subprocess

import pytest
from consent_world import gram_terms
from tab_world import CLIENT, installed

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice
from sottovoce.core.links import Direct, SecureSum
from sottovoce.core.words import LANGUAGES, catalogue
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.web.weighing import weigh
from sottovoce.wire.plainly import agreed_to, is_printed, onlookers
from sottovoce.wire.terms import Terms

ASK = """
import { agreedTo, isPrinted, onlookers, weigh } from "./src/weighing.ts";
import { termsFromTable } from "./src/wire/terms.ts";
import { readFileSync } from "node:fs";
const found = JSON.parse(readFileSync(0, "utf8")).map(({ table, choice, changed, used }) => {
  const terms = table && termsFromTable(table);
  const own = { ...choice, totalEpsilon: choice.totalEpsilon ?? Infinity };
  return {
    weighed: weigh(own, changed, terms, used),
    ...(terms && { seen: onlookers(terms), agreed: agreedTo(terms), printed: isPrinted(terms) }),
  };
});
console.log(JSON.stringify(found));
"""


def asked(questions, folder):
    installed()
    bundle = folder / "ask.mjs"
    build = ["node_modules/.bin/esbuild", "--bundle", "--platform=node", "--format=esm"]
    made = subprocess.run(
        [*build, "--loader=ts", f"--outfile={bundle}"], input=ASK.encode(), cwd=CLIENT,
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr.decode()
    told = subprocess.run(
        ["node", str(bundle)], input=json.dumps(questions).encode(), capture_output=True, check=True
    )
    return json.loads(told.stdout)


def question(terms, choice, changed, used):
    own = {
        "takesPart": choice.takes_part, "sharePositives": choice.share_positives,
        "epsilon": choice.epsilon, "neverSend": [],
        "totalEpsilon": choice.total_epsilon if math.isfinite(choice.total_epsilon) else None,
    }  # fmt: skip
    table = None if terms is None else terms.to_table()
    return {"table": table, "choice": own, "changed": changed, "used": used}


@pytest.fixture
def kinds(tmp_path):
    plain = gram_terms(tmp_path)
    quiet = gram_terms(tmp_path, epsilon=0.7)
    period = Terms("town", 30, plain.algorithm, OwnEpsilon(epsilon=64.0, period_days=7), plain.link)
    fpl = FPLConfig(embedding_size=4, triples=3)
    summed = SecureSum(min_devices=9, url="https://h.example", key=plain.link.key, bits=64)
    return [
        plain, quiet, period, Terms("f", 30, fpl, ShareFraction(), Direct()),
        Terms("f", 30, fpl, ShareFraction(), summed),
    ]  # fmt: skip


def test_a_tab_says_what_an_agent_says(tmp_path, kinds):
    cases = [
        (terms, Choice(takes_part=part, epsilon=epsilon, total_epsilon=limit), changed, used)
        for terms in kinds
        for part, epsilon in ((False, 0.0), (True, 0.0), (True, 0.25), (True, 1.0), (True, 20.0))
        for limit, changed in (
            (math.inf, []), (math.inf, ["total_epsilon"]), (0.5, ["total_epsilon"]),
            (4.0, ["total_epsilon"]), (9.0, []), (40.0, ["total_epsilon"]),
        )
        for used in (0.0, 3.5)
        if terms.contributes or not math.isfinite(limit)
    ]  # fmt: skip
    told = asked([question(*case) for case in cases], tmp_path)
    for (terms, choice, changed, used), answer in zip(cases, told, strict=True):
        expected = weigh(choice, dict.fromkeys(changed), terms, used).to_json()
        weighed = {name: answer["weighed"][name] for name in expected}
        assert plain(weighed) == plain(expected), (terms.federation, choice, changed, used)
    for terms in kinds:
        answer = told[[case[0] for case in cases].index(terms)]
        seen = [{"who": o.who.to_json(), "sees": o.sees.to_json()} for o in onlookers(terms)]
        assert plain(answer["seen"]) == plain(seen), terms
        assert plain(answer["agreed"]) == plain([one.to_json() for one in agreed_to(terms)])
        assert answer["printed"] == is_printed(terms)


def plain(found):
    """Numbers as the catalogue writes them; 1 is 1.0."""
    return json.loads(json.dumps(found), parse_int=float)


def test_every_sentence_of_a_tab_is_in_both_catalogues():
    pattern = re.compile(r"""\bsaid\(\s*"([a-z_]+(?:\.[\w-]+)+)\"""")
    sources = [place.read_text(encoding="utf-8") for place in (CLIENT / "src").glob("*.ts")]
    keys = {key for text in sources for key in pattern.findall(text)}
    assert len(keys) > 50
    for language in LANGUAGES:
        known = catalogue(language)
        assert not {key for key in keys if not {key, f"{key}.other"} & known.keys()}
        instead = [key for key in known if key.startswith(("tab.instead.", "tab.by_itself."))]
        assert instead
        assert not [key for key in instead if key.split(".", 2)[2] not in known]
