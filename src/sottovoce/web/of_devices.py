"""A store in a federation of devices, or in none yet, at the consent centre."""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from sottovoce.core.choice import ASKED
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.words import Said, said
from sottovoce.errors import (
    ConsentError,
    DataNotFound,
    KeyTrouble,
    MessageError,
    Told,
    Unreachable,
)
from sottovoce.privacy.accountant import rounded_up
from sottovoce.privacy.central import price
from sottovoce.services.agent.by_hand import ByHand, Shown, ShownMessage
from sottovoce.stores import timeline, word
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_limits import (
    plain_releases,
    rounds_sent,
    spent_before,
    spent_on_sums,
    sum_noise,
)
from sottovoce.stores.session import DeviceSession, expelled
from sottovoce.stores.timeline import Line
from sottovoce.web.desk import RECOMMENDED, Runner, StoreDesk, plain_value
from sottovoce.web.weighing import in_the_way, weigh
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.invitations import kept_invitation
from sottovoce.wire.plainly import (
    Onlooker,
    agreed_to,
    changes,
    is_bounded,
    is_printed,
    of_change,
    onlookers,
    settings,
    short,
)
from sottovoce.wire.terms import Terms

_SHOWN_ITEMS, _SHOWN_BYTES = 500, 512
_QUIET = {
    "stopped": "quiet.stopped",
    "no part": "quiet.off",
    "no round": "quiet.waiting",
    "not asked": "quiet.waiting",
    "sent": "quiet.period_open",
    "declined": "quiet.declined",
}
_ASKS = "asks_first"
_OWN = "strength:"
"""The name of a field for the strength of one attribute begins so."""
_LOOKS, _LOOK_SECONDS = 40, 0.25
"""How many times the page checks whether the agent has sent a message, and the seconds between."""


class DeviceDesk(StoreDesk[CohortStore]):
    def __init__(
        self,
        name: str,
        store: CohortStore,
        runner: Runner,
        *,
        serves: bool,
        reached: Mapping[str, Any],
    ) -> None:
        """`reached`: how the agent reaches the server, where that is not as the invitation says."""
        super().__init__(name, store, runner, serves=serves)
        self.session = DeviceSession(store)
        self._reached = reached
        self._shown: Shown | None = None
        self._agent: ByHand | None = None
        self._listed: tuple[object, Any] | None = None

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "alone" if kept_invitation(self.store) is None else "devices"

    def close(self) -> None:
        if self._agent is not None:
            self.runner.run(self._agent.close())
        super().close()

    # --- where she stands -------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        store, invitation = self.store, kept_invitation(self.store)
        pending, agreed = self.session.pending, self.session.terms
        terms = pending or agreed
        choice, federation = store.choice(self.number), invitation and invitation.federation
        lines = timeline.lines(store.file, self.number, 0, 1)
        reports = sum(spent.releases for spent in store.budget(self.number))
        off = self._off()
        return {
            **self.base(),
            "federation": federation,
            "address": invitation.server if invitation else None,
            "stands": self._stands(choice, reports, lines).to_json(),
            "quiet": _json(self._quiet(choice, terms, pending is not None)),
            "printed": terms is not None and is_printed(terms),
            "fields": self._fields(choice, terms),
            "meter": self._meter(choice, terms),
            "terms": None if terms is None else self._terms(terms, agreed, pending),
            "readers": [] if terms is None else _readers(onlookers(terms)),
            "history": {
                "items": store.count_history(),
                "off": len(off),
                "unknown": len(store.unknown()),
                "version": store.history_version,  # another if names or categories have come
            },
            "contributions": reports,
            "last": lines[0].when if lines else None,
        }

    def _stands(self, choice: Choice, reports: int, lines: Sequence[Line]) -> Said:
        if self.store.stopped:
            return said("stands.stopped")
        if kept_invitation(self.store) is None:
            return said("stands.alone")
        if not lines:
            return said("stands.nothing" if choice.takes_part else "stands.nothing_off")
        values: dict[str, Any] = {"n": reports, "last": lines[0].when}
        if not reports:
            return said("stands.presence", last=lines[0].when)
        if plain_releases(self.store)[0]:
            return said("stands.no_bound", **values)
        values["spent"] = self._used()
        if math.isfinite(choice.total_epsilon):
            return said("stands.spent", **values, limit=choice.total_epsilon)
        return said("stands.no_limit", **values)

    def _quiet(self, choice: Choice, terms: Terms | None, waits: bool) -> Said | None:
        """Why nothing leaves now, as far as this device knows."""
        if self.store.stopped:
            return said("quiet.stopped")
        if kept_invitation(self.store) is None:
            return said("quiet.alone")
        if not choice.takes_part:
            return said("quiet.off")
        out = expelled(self.store)
        if out is not None:
            return out.said
        if terms is None:
            return said("quiet.no_terms")
        if waits:
            return said("quiet.terms" if self.session.offered is None else "quiet.terms_changed")
        why = in_the_way(choice, terms, *self._before(terms))
        if why is not None:
            return why
        if _needs_history(terms):
            if not self.store.count_history():
                return said("quiet.no_history")
            if len(self._off()) == self.store.count_history():
                return said("quiet.all_off")
        return None

    def _before(self, terms: Terms | None) -> tuple[float, int]:
        """What counts against her limit under these terms: ε, and rounds of noisy sums."""
        noise = sum_noise(terms)
        used, rounds = spent_before(self.store, terms), rounds_sent(self.store, noise)
        return float(used[0]), int(rounds[0])

    def _used(self) -> float:
        return rounded_up(float(self.store.spent()[0] + spent_on_sums(self.store)[0]))

    def _meter(self, choice: Choice, terms: Terms | None) -> dict[str, Any] | None:
        used, limit = self._used(), choice.total_epsilon
        if not used and (terms is None or not is_bounded(terms)):
            return None
        words = said("stands.meter_plain", spent=used, limit=plain_value(limit))
        if math.isinf(limit):
            words = said("stands.meter_open", spent=used)
        return {"spent": used, "limit": plain_value(limit), "said": words.to_json()}

    def _fields(self, choice: Choice, terms: Terms | None) -> list[dict[str, Any]]:
        asked = [ASKED["takes_part"]]
        if terms is not None:
            asked += [*terms.release.asked_for(), *terms.algorithm.asked_for()]
            if is_bounded(terms) and ASKED["total_epsilon"] not in asked:  # by noise on sums
                asked.append(ASKED["total_epsilon"])
        known = self.store.attributes(self.number)
        drawn = [
            self.field(
                one, choice, self._options(terms, choice, known) * (one.drawn == "attributes")
            )
            for one in (*asked, ASKED["never_send"])
        ]
        drawn = [more for one in drawn for more in (one, *self._own_strengths(one, choice))]
        if kept_invitation(self.store) is not None:
            drawn.insert(1, self._asks())
        for each in drawn:
            if each["kind"] == "epsilon":
                self._weigh_steps(each["steps"], choice, terms)
        return drawn

    def _own_strengths(self, drawn: dict[str, Any], choice: Choice) -> list[dict[str, Any]]:
        """A field for each attribute that she hides, after the one for all; none if it is the only
        one."""
        if drawn["name"] != "strength" or len(choice.hidden_attributes) < 2:
            return []
        return [
            {
                **drawn,
                "name": f"{_OWN}{name}",
                "label": said("field.strength_of.label", name=name).to_json(),
                "help": said("field.strength_of.help").to_json(),
                "value": value,
            }
            for name, value in choice.hiding()
        ]

    def _asks(self) -> dict[str, Any]:
        """Return the switch "Ask me each time"."""
        return {
            "name": _ASKS,
            "kind": "switch",
            "label": said(f"field.{_ASKS}.label").to_json(),
            "help": said(f"field.{_ASKS}.help").to_json(),
            "value": word.asks_first(self.store),
            "least": 0.0,
            "most": 1.0,
            "steps": [],
            "options": [],
        }

    def _weigh_steps(
        self, steps: list[dict[str, Any]], choice: Choice, terms: Terms | None
    ) -> None:
        """Of each step, how many of 100 guesses would be right."""
        for step in steps:
            taken = replace(choice, takes_part=True, epsilon=step["value"], total_epsilon=math.inf)
            right = weigh(taken, {}, terms).right
            step["right"] = None if right is None else round(right)

    def _options(
        self, terms: Terms | None, choice: Choice, known: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Attributes that can be hidden; on: it is."""
        if terms is None:
            return []
        found = []
        hidings = self.store.hidings(self.number)
        at_once = {n: (one, at) for one, at in hidings if one.moved for n in one.attributes}
        for each in terms.algorithm.attributes:
            hidden = each.name in choice.hidden_attributes
            words = "hidden" if hidden else "not_known" if each.name not in known else "shared"
            told = said(f"attributes.{words}")
            if hidden and each.name in at_once:
                moved, when = at_once[each.name]
                way = float(f"{moved.moved:.3g}")
                told = said("attributes.hidden_at", when=when, moved=way)
            found.append(
                {
                    "name": each.name,
                    "label": each.name,
                    "on": hidden,
                    "said": told.to_json(),
                }
            )
        return found

    def _terms(self, terms: Terms, agreed: Terms | None, pending: Terms | None) -> dict[str, Any]:
        differs = changes(agreed, pending) if pending is not None and agreed != pending else []
        return {
            "digest": terms.digest(),
            "agreed": pending is None,
            "said": [one.to_json() for one in agreed_to(terms)],
            "changes": [
                {
                    "setting": name,
                    "before": "" if before is None else str(before),
                    "after": "" if after is None else str(after),
                    "said": _means(name, before, after),
                }
                for name, before, after in differs
            ],
            "settings": [
                {"name": name, "value": str(short(value))}
                for name, value in sorted(settings(terms).items())
            ],
        }

    # --- choices ----------------------------------------------------------------------------------

    def weigh(self, choice: Choice, change: Mapping[str, Any]) -> dict[str, Any]:
        terms = self.session.pending or self.session.terms
        found = weigh(choice, change, terms, *self._before(terms)).to_json()
        exact = "" if terms is None else terms.release.objection(
            choice, noisy_sums=bool(sum_noise(terms))
        )  # fmt: skip
        at_once = [one.to_json() for one in self._hides_anew(choice)]
        technical = [exact] if exact and choice.takes_part else []
        return {**found, "said": [*found["said"], *at_once], "technical": technical}

    def _hides_anew(self, choice: Choice) -> list[Said]:
        """What happens at once if she keeps this choice, and what that cannot take back."""
        now = self.store.choice(self.number).hidden_attributes
        names = [name for name in choice.hidden_attributes if name not in now]
        if not names:
            return []
        if self.session.model_round() is None:
            return [said("hiding.first", names=names)]
        return [said("hiding.will", names=names), said("hiding.cannot")]

    def changed(self, change: Mapping[str, Any]) -> Choice:
        if not isinstance(change.get(_ASKS, False), bool):
            raise Told("trouble.bad_input", what=f"{_ASKS} must be true or false")
        own = {n.removeprefix(_OWN): v for n, v in change.items() if n.startswith(_OWN)}
        plain = {n: v for n, v in change.items() if n != _ASKS and not n.startswith(_OWN)}
        terms = self.session.pending or self.session.terms
        filters = {each.name for each in terms.algorithm.attributes} if terms else set()
        if own.keys() - filters:
            raise Told("trouble.bad_input", what=f"there is no filter for {min(own)}")
        if own or "strength" in plain:
            kept = {} if "strength" in plain else dict(self.store.choice(self.number).strengths)
            plain["strengths"] = {**kept, **own}
        return super().changed(plain)

    def choose(self, change: Mapping[str, Any]) -> None:
        with self.store.file.transaction():
            choice = self.changed(change)
            if _ASKS in change:
                word.set_asks_first(self.store, change[_ASKS])
            if change.keys() - {_ASKS}:
                self.keep(choice)

    def keep(self, choice: Choice) -> None:
        self.session.change_choice(self.number, lambda _: choice)

    # --- her things -------------------------------------------------------------------------------

    def things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        with self.store.file.snapshot():
            key = self.store.history_version, self.store.latest_choice(), self.store.count_items()
            if self._listed is not None and self._listed[0] == key:
                found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = self._listed[1]
                return found
            listed = self._list_things()
        self._listed = key, listed
        return listed

    def _list_things(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        store, never = self.store, set(self.store.choice(self.number).never_send)
        catalogue, categories, former = store.catalogue(), store.categories(), store.former_titles()
        place = {item: at for at, (item, _) in enumerate(catalogue)}
        found, counts = [], Counter[str]()
        for item, when in reversed(store.interactions(self.number)):
            at = place.get(item)
            title = item if at is None else catalogue[at][1] or item
            of = [] if at is None else list(categories[at])
            had = [] if at is None else list(former[at])
            counts.update(of)
            called = never & {item, title, *had}
            by = "item" if called else "category" if never & set(of) else None
            found.append(
                {"item": item, "title": title, "when": when, "categories": of, "on": by is None}
                | {"by": by, "former": had}
            )
        names = sorted({name for of in categories for name in of})
        kinds = [{"name": name, "count": counts[name], "on": name not in never} for name in names]
        return found, kinds

    def names(self) -> set[str]:
        return {name for names in self.store.names() for name in names}

    def _off(self) -> list[dict[str, Any]]:
        """What of her history is never sent."""
        if not self.store.choice(self.number).never_send:
            return []
        return [one for one in self.things()[0] if not one["on"]]

    def remove(self, items: Sequence[str]) -> int:
        return self.store.remove_items(self.number, items)

    def forget_history(self) -> int:
        return self.store.forget_history(self.number)

    # --- what is published ------------------------------------------------------------------------

    def look(self) -> Descriptor:
        """Where the federation is."""
        return self.runner.run(self._by_hand().look())

    def read(self) -> Descriptor:
        """The same; terms, catalogue and model are kept."""
        return self.runner.run(self._by_hand().read())

    # --- what would leave -------------------------------------------------------------------------

    def _by_hand(self) -> ByHand:
        if kept_invitation(self.store) is None:
            raise Told("quiet.alone")
        if self._agent is None:
            self._agent = ByHand(self.store, **self._reached)
        return self._agent

    def base(self) -> dict[str, Any]:
        found = super().base()
        if kept_invitation(self.store) is not None:
            found["choice"] = {**found["choice"], _ASKS: word.asks_first(self.store)}
        return found

    @property
    def sends(self) -> bool:
        """Whether a message can be sent from here: by this process, or by an agent that asks."""
        return self.serves or word.asks_first(self.store)

    def require_sending(self) -> None:
        self.require_looking()
        if not self.sends:
            raise Told("busy.sends")

    def preview(self) -> dict[str, Any]:
        self._shown = None
        shown = self.runner.run(self._by_hand().show())
        self._shown = shown
        terms, report = self.session.terms, shown.report
        inside = None if report is None else self.session.inside(report)
        items: list[dict[str, Any]] = []
        if inside is not None and len(inside.items):
            catalogue, largest = self.store.catalogue(), float(inside.weight.max()) or 1.0
            order = np.argsort(-inside.weight, kind="stable")[:_SHOWN_ITEMS]
            for at in order.tolist():
                item, title = catalogue[int(inside.items[at])]
                weight = float(inside.weight[at]) / largest
                items.append({"item": item, "title": title or item, "weight": weight})
        cost = None if inside is None else _bounded(inside.epsilon, terms)
        words = said("preview.ready")
        if not shown.messages:
            words = self._nothing_leaves(shown, terms)
        elif report is not None and report.state == "left":
            words = said("preview.left")
        elif not self.sends:
            words = said("busy.sends")
        return {
            "ready": bool(shown.messages),
            "said": words.to_json(),
            "why": shown.detail,
            "nonce": (self.sends and shown.name) or None,
            "round": None if report is None else report.round,
            "epsilon": None if cost is None else plain_value(rounded_up(cost)),
            "cost": None if cost is None else self._cost(cost, terms).to_json(),
            "items": items,
            "total": 0 if inside is None else len(inside.items),
            "others": 0 if inside is None else inside.others,
            "kept_back": len(self._off()),
            "messages": [self._message(one, terms) for one in shown.messages],
            "readers": [] if terms is None else _readers(onlookers(terms)),
        }

    def _nothing_leaves(self, shown: Shown, terms: Terms | None) -> Said:
        if shown.why == "not agreed":
            return said("quiet.terms" if self.session.offered is None else "quiet.terms_changed")
        if shown.why in ("choice", "nothing"):
            known = self._quiet(self.store.choice(self.number), terms, False)
            return known or said("quiet.choice" if shown.why == "choice" else "preview.nothing")
        return said(_QUIET.get(shown.why, "preview.nothing"))

    def _cost(self, epsilon: float, terms: Terms | None) -> Said:
        """What a message uses, and the period that it is of, where there are such."""
        if math.isinf(epsilon):
            return said("preview.no_bound")
        used = rounded_up(epsilon)
        choice = self.store.choice(self.number)
        if terms is not None and terms.contributes:
            period = terms.release.cost(choice) or epsilon
            return said("preview.uses_part", epsilon=used, period=rounded_up(period))
        return said("preview.uses", epsilon=used)

    def _message(self, message: ShownMessage, terms: Terms | None) -> dict[str, Any]:
        what = _KINDS.get(message.what) or _report_words(terms, "preview")
        return {
            "what": what.to_json(),
            "to": said(f"reads.{message.to}").to_json(),
            "bytes": len(message.body),
            "sha256": hashlib.sha256(message.body).hexdigest(),
            "start": base64.b64encode(message.body[:_SHOWN_BYTES]).decode(),
            "exact": message.exact,
        }

    def body(self, index: int) -> bytes:
        if self._shown is None or not 0 <= index < len(self._shown.messages):
            raise Told("trouble.not_found")
        return self._shown.messages[index].body

    def send(self, nonce: str) -> tuple[str, Said]:
        if not self.serves:
            return self._leave_to_agent(nonce)
        before = timeline.count(self.store.file, self.number)
        try:
            sent = self.runner.run(self._by_hand().press(nonce))
        except ConsentError:
            raise Told("preview.changed") from None
        except (KeyTrouble, MessageError, Unreachable):
            # What is in the ledger has left, or may have.
            unsure = self.session.unresolved() is not None
            if unsure or timeline.count(self.store.file, self.number) > before:
                raise Told("trouble.maybe_sent") from None
            raise
        self._shown = None
        if sent.report is None:
            return "arrived", said("preview.arrived")
        return self._fate()

    def _fate(self) -> tuple[str, Said]:
        """Return what became of the latest report."""
        latest = self.session.latest()
        state = "nothing" if latest is None or latest.state == "dropped" else latest.state
        words = {"arrived": "arrived", "refused": "refused", "left": "left"}
        return state, said(f"preview.{words.get(state, 'nothing_sent')}")

    def _leave_to_agent(self, nonce: str) -> tuple[str, Said]:
        """Note her yes for the agent that runs, and wait a little until it has sent."""
        before = timeline.count(self.store.file, self.number)
        try:
            shown = self.runner.run(self._by_hand().allow(nonce))
        except ConsentError:
            raise Told("preview.changed") from None
        self._shown = None
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            if shown.report is None:
                if timeline.count(self.store.file, self.number) > before:
                    return "arrived", said("preview.arrived")
                continue
            latest = self.session.latest()
            if latest is None or latest.nonce != shown.report.nonce:
                continue
            if latest.state in ("arrived", "refused"):
                return self._fate()
        return "left", said("preview.agent_will")

    def decline(self, nonce: str) -> Said:
        try:
            self.runner.run(self._by_hand().decline(nonce))
        except ConsentError:
            raise Told("preview.changed") from None
        self._shown = None
        return said("preview.declined")

    # --- what has left ----------------------------------------------------------------------------

    def _era(self, line: Line) -> Terms | None:
        return self.session.terms_then(line.terms)

    def epsilon(self, line: Line) -> float:
        return _bounded(line.epsilon, self._era(line)) if line.is_report else line.epsilon

    def line_words(self, line: Line) -> tuple[Said, Said]:
        if line.is_report:
            terms = self._era(line)
            mixed = terms is not None and terms.link.mixing is not None
            to = said("reads.shuffler" if mixed else "reads.server")
            return _report_words(terms, "ledger"), to
        known = {"enrolment": "enrolment", "check-in": "check_in"}.get(line.what)
        what = said(f"ledger.{known}") if known else said("ledger.other", what=line.what)
        return what, said("reads.server" if line.party == "server" else "reads.shuffler")

    def inside(self, line: Line) -> list[tuple[str, str, float]]:
        if not line.is_report:
            return []
        return timeline.things(self.store, self.number, line.terms, line.round, line.attempt)

    def terms_at(self, line: Line) -> dict[str, Any]:
        terms, invitation = self._era(line), kept_invitation(self.store)
        return {
            "federation": None if invitation is None else invitation.federation,
            "controller": None if invitation is None else invitation.server,
            "terms": None if terms is None else terms.digest(),
            "round": line.round if line.is_report else None,
        }

    def agree(self, digest: str) -> None:
        shown = self.session.pending or self.session.terms
        if shown is None:
            raise Told("trouble.no_terms")
        if shown.digest() != digest:
            raise Told("trouble.terms_other")
        self.session.agree(shown)

    # --- at home ----------------------------------------------------------------------------------

    def recommend(self, choice: Choice | None) -> list[tuple[str, str]]:
        try:
            found = self.session.recommend(self.number, RECOMMENDED, choice)
        except (DataNotFound, ConsentError):
            return []
        return [(item, title) for item, title, _ in found]


_KINDS = {"enrolment": said("preview.enrolment"), "check-in": said("preview.check_in")}


def _bounded(epsilon: float, terms: Terms | None) -> float:
    """ε of what left under these terms; where noise on the sum bounds it, of this round alone."""
    noise = sum_noise(terms)
    return _of_one_round(noise) if math.isinf(epsilon) and noise else epsilon


@lru_cache(maxsize=16)
def _of_one_round(noise: float) -> float:
    return price(noise, 1)  # which takes a moment, and ledgers are long


def _needs_history(terms: Terms) -> bool:
    """Whether somebody with nothing to tell sends nothing."""
    nobody, alone = np.zeros(0, np.int64), np.zeros(1, np.int64)
    empty = Interactions.from_pairs(nobody, nobody, n_users=1, n_items=terms.n_items)
    vectors = np.zeros((1, terms.algorithm.embedding_size), np.float32)
    cohort = Cohort(alone, empty, Consent.uniform(alone, Choice()), vectors)
    return not terms.build().device_able(cohort)[0]


def _report_words(terms: Terms | None, where: str) -> Said:
    """What a report under these terms is called: a page knows no system."""
    if terms is None:
        return said(f"{where}.update")
    if terms.reporting is not None:
        if where == "preview":
            return said("preview.reports", n=terms.reporting.max_reports)
        return said("ledger.reports")
    if terms.link.adds_up is not None:
        shared = where == "preview" and terms.link.checking is not None
        return said(f"{where}.share" if shared else f"{where}.contribution")
    return said(f"{where}.update_noise" if terms.release.dense else f"{where}.update")


def _means(setting: str, before: Any, after: Any) -> dict[str, Any] | None:
    """What the change of a setting means to her."""
    found = of_change(setting, before, after)
    return None if found is None else found.to_json()


def _readers(found: Sequence[Onlooker]) -> list[dict[str, Any]]:
    return [{"who": one.who.to_json(), "sees": one.sees.to_json()} for one in found]


def _json(words: Said | None) -> dict[str, Any] | None:
    return None if words is None else words.to_json()
