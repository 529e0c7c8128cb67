"""A consent centre without an agent: the page, its words, and a provider that is made up.

Five stores: gram, FPL as printed, DRIFT, one whose terms have changed, and a very large one. All is
in memory; tests may end the session, let calls fail, and stop and start the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import threading
import time
import tomllib
from collections import Counter
from functools import cache, partial
from pathlib import Path

import uvicorn
from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import sottovoce
from sottovoce.core.words import catalogue
from sottovoce.web.page import ELSEWHERE, LOOK, as_served

PAGES = next(p for p in sottovoce.__path__) + "/web/pages"
WORDS = next(p for p in sottovoce.__path__) + "/core/words"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TOKEN = "a token of the mock's"
NOW = 1_762_160_400
DAY = 86_400
LARGE = 100_000
KINDS = {"css": "text/css", "js": "text/javascript"}


def said(key, **values):
    return {"key": key, "values": values}


class Wrong(Exception):
    def __init__(self, status, key, **values):
        super().__init__(key)
        self.status, self.said = status, said(key, **values)


# --- stores ---------------------------------------------------------------------------------------

FILMS = {
    "Horror": ["Alien (1979)", "The Thing (1982)", "Suspiria (1977)", "Ringu (1998)"],
    "Comedy": ["Playtime (1967)", "Big Deal on Madonna Street (1958)", "Airplane! (1980)"],
    "Drama": ["Tokyo Story (1953)", "La Strada (1954)", "Ikiru (1952)", "The Leopard (1963)"],
    "Western": ["Once Upon a Time in the West (1968)", "Johnny Guitar (1954)"],
}


def films():
    found = []
    for category, titles in FILMS.items():
        for title in titles:
            number = len(found)
            found.append(
                {
                    "item": f"f{number}",
                    "title": title,
                    "when": NOW - number * 3 * DAY,
                    "categories": [category] + (["Classic"] if "(19" in title else []),
                }
            )
    return found


@cache
def crowd():
    return [
        {
            "item": f"p{number}",
            "title": f"Place {number:06d}",
            "when": NOW - number * 60,
            "categories": [f"Quarter {number % 40:02d}"],
        }
        for number in range(LARGE)
    ]


def field(name, kind, value, least=None, most=None, steps=(), options=()):
    return {
        "name": name,
        "kind": kind,
        "label": said(f"field.{name}.label"),
        "help": said(f"field.{name}.help"),
        "value": value,
        "least": least,
        "most": most,
        "steps": [{"value": at, "label": said(f"step.{step}")} for step, at in steps],
        "options": list(options),
    }


VOICES = (("whisper", 0.25), ("low", 1.0), ("normal", 2.0), ("loud", 4.0))
SHARES = (("none", 0.0), ("half", 0.5), ("all", 1.0))
OWNERS = ("Cinema Aurora", "Video Nord", "Kino Sud")

GRAM_READERS = [
    {"who": said("reads.server"), "sees": said("sees.masked")},
    {"who": said("reads.helper"), "sees": said("sees.seed")},
    {"who": said("reads.everybody"), "sees": said("sees.sum", n=100)},
]


def terms(agreed=True, changes=()):
    return {
        "digest": hashlib.sha256(repr(changes).encode()).hexdigest(),
        "agreed": agreed,
        "said": [
            said("terms.runs_server", address="https://films.example"),
            said("terms.runs_helper", address="https://helper.example"),
            said("terms.least_people", n=100),
            said("terms.chance", n=1_000_000),
            said("terms.no_end"),
            said("terms.helper_apart"),
        ],
        "changes": list(changes),
        "settings": [
            {"name": "least_people", "value": 100},
            {"name": "delta", "value": 1e-6},
            {"name": "server", "value": "https://films.example"},
        ],
    }


class Shop:
    """One store: what it holds, and what it answers."""

    def __init__(self, name, federation, kind, choice, things, *, printed=False, agreement=None):
        self.name, self.federation, self.kind, self.printed = name, federation, kind, printed
        self.choice = {"takes_part": False, "never_send": [], **choice}
        self.things = things
        self.terms = agreement
        self.stopped = False
        self.beside = False
        """Whether an agent runs that sends by itself."""
        self.rows = []
        self.large = 0
        self.sent = 0
        self.bodies = []
        self.nonce = None
        self.learnt = None
        self.seeds = 0

    def off(self, thing):
        never = self.choice["never_send"]
        if thing["item"] in never or thing["title"] in never:
            return "item"
        return "category" if any(one in never for one in thing["categories"]) else None

    def fields(self):
        choice = self.choice
        switches = ("takes_part", "asks_first")
        drawn = [field(name, "switch", choice[name]) for name in switches if name in choice]
        if "epsilon" in choice:
            drawn.append(field("epsilon", "epsilon", choice["epsilon"], 0.1, 8, VOICES))
            drawn.append(field("total_epsilon", "limit", choice["total_epsilon"], 0.1, 100))
        if "share_positives" in choice:
            share = choice["share_positives"]
            drawn.append(field("share_positives", "share", share, 0, 1, SHARES))
        if "refused_owners" in choice:
            refused = choice["refused_owners"]
            options = [
                {
                    "name": one,
                    "label": one,
                    "on": one not in refused,
                    "said": said("sees.interactions" if one not in refused else "sees.nothing"),
                }
                for one in OWNERS
            ]
            drawn.append(field("refused_owners", "owners", refused, options=options))
        drawn.append(field("never_send", "things", choice["never_send"]))
        return drawn

    def store(self, place):
        spent, limit = self.sent * self.choice.get("epsilon", 0), self.choice.get("total_epsilon")
        count = self.large or self.sent
        quiet = None
        if self.stopped:
            quiet = said("quiet.stopped")
        elif not self.choice["takes_part"]:
            quiet = said("quiet.off")
        elif self.terms and not self.terms["agreed"]:
            quiet = said("quiet.terms_changed")
        stands = said("stands.nothing")
        if count:
            stands = said("stands.left", n=count, last=NOW)
        meter = None
        if "epsilon" in self.choice:
            key = "stands.meter_plain" if limit is not None else "stands.meter_open"
            meter = {"spent": spent, "limit": limit, "said": said(key, spent=spent, limit=limit)}
        return {
            "id": f"s{place}",
            "name": self.name,
            "federation": self.federation,
            "kind": self.kind,
            "address": "https://films.example",
            "stands": stands,
            "quiet": quiet,
            "takes_part": self.choice["takes_part"],
            "stopped": self.stopped,
            "printed": self.printed,
            "fields": self.fields(),
            "choice": dict(self.choice),
            "meter": meter,
            "terms": self.terms,
            "readers": self.readers(),
            "history": {
                "items": len(self.things),
                "off": sum(self.off(one) is not None for one in self.things)
                if self.choice["never_send"]
                else 0,
                "unknown": 0,
            },
            "contributions": count,
            "last": NOW if count else None,
        }

    def readers(self):
        if self.kind == "owners":
            return [
                {"who": said("reads.owner", name=one), "sees": said("sees.interactions")}
                for one in OWNERS
                if one not in self.choice["refused_owners"]
            ]
        if self.printed:
            return [{"who": said("reads.server"), "sees": said("sees.update")}]
        return GRAM_READERS

    def weigh(self, change):
        choice = {**self.choice, **change}
        if not choice["takes_part"]:
            words = {"odds": None, "verdict": "good", "said": [said("verdict.no_part")]}
            return {**words, "objection": None, "technical": []}
        if "epsilon" not in choice:
            words = {"odds": None, "verdict": "none", "said": [said("verdict.none")]}
            return {**words, "objection": None, "technical": []}
        epsilon, limit = choice["epsilon"], choice["total_epsilon"]
        right = round(100 * 0.5 * (1 + math.erf(epsilon / 4 / math.sqrt(2) * 0.5)))
        over = limit is not None and limit < epsilon
        return {
            "odds": {"right": right, "of": 100, "said": said("odds.said", right=right)},
            "verdict": "good" if epsilon <= 1 else "weak" if epsilon <= 4 else "nothing",
            "said": [
                said("verdict.good" if epsilon <= 1 else "verdict.weak"),
                said("costs.round", cost=epsilon),
            ],
            "objection": said("objection.limit", cost=epsilon, limit=limit) if over else None,
            "technical": [f"Gaussian sum, ε = {epsilon}, δ = 10⁻⁶."],
        }

    def page_of_things(self, query, offset, limit):
        wanted = query.lower()
        found = [one for one in self.things if wanted in one["title"].lower()]
        never = self.choice["never_send"]
        counts = Counter(name for one in self.things for name in one["categories"])
        shown = []
        for one in found[offset : offset + limit]:
            by = self.off(one)
            shown.append({**one, "on": by is None, "by": by})
        categories = [
            {"name": name, "count": count, "on": name not in never}
            for name, count in sorted(counts.items())
        ]
        return {"total": len(found), "things": shown, "categories": categories}

    def preview(self):
        if not self.choice["takes_part"] or (self.terms and not self.terms["agreed"]):
            self.nonce, self.bodies = None, []
            empty = {"nonce": None, "round": None, "epsilon": None, "items": [], "total": 0}
            empty |= {"others": 0, "kept_back": 0, "messages": [], "readers": []}
            return {"ready": False, "said": said("preview.nothing"), **empty}
        kept = [one for one in self.things if self.off(one) is None]
        basis = json.dumps([self.choice, [one["item"] for one in kept]]).encode()
        part = b"".join(hashlib.sha256(basis + bytes([n])).digest() for n in range(64))
        self.bodies = [part, hashlib.sha256(b"seed" + basis).digest() * 3]
        self.nonce = hashlib.sha256(basis).hexdigest()
        whats = ("preview.contribution", "preview.seed")
        tos = ("reads.server", "reads.helper")
        if self.printed:
            self.bodies, whats = self.bodies[:1], ("preview.update",)
        return {
            "ready": True,
            "said": said("busy.sends" if self.beside else "preview.ready"),
            "nonce": None if self.beside else self.nonce,
            "round": 7,
            "epsilon": self.choice.get("epsilon"),
            "items": [
                {"item": one["item"], "title": one["title"], "weight": 1 / (1 + place / 4)}
                for place, one in enumerate(kept[:500])
            ],
            "total": len(kept),
            "others": 3 if self.printed else 0,
            "kept_back": len(self.things) - len(kept),
            "messages": [
                {
                    "what": said(what),
                    "to": said(to),
                    "bytes": len(body),
                    "sha256": hashlib.sha256(body).hexdigest(),
                    "start": base64.b64encode(body[:512]).decode(),
                    "exact": what != "preview.seed",
                }
                for what, to, body in zip(whats, tos, self.bodies, strict=False)
            ],
            "readers": self.readers(),
        }

    def row(self, number):
        """Row `number`, the oldest being 0."""
        if not self.large:
            return self.rows[number]
        return {
            "id": str(number),
            "when": NOW - (self.large - number) * 600,
            "what": said("ledger.check_in" if number % 5 else "ledger.contribution"),
            "to": said("reads.server"),
            "bytes": 2048 + number % 100,
            "epsilon": None if number % 5 else 0.5,
            "bounded": True,
            "state": said("ledger.states.arrived"),
            "items": 0,
            "sha256": hashlib.sha256(str(number).encode()).hexdigest(),
        }

    def page_of_ledger(self, offset, limit):
        total = self.large or len(self.rows)
        numbers = range(total - 1 - offset, max(-1, total - 1 - offset - limit), -1)
        return {"total": total, "rows": [self.row(number) for number in numbers]}

    def send(self):
        self.sent += 1
        for body, what in zip(self.bodies, ("contribution", "enrolment"), strict=False):
            self.rows.append(
                {
                    "id": str(len(self.rows)),
                    "when": NOW + self.sent * DAY,
                    "what": said(f"ledger.{what}"),
                    "to": said("reads.server"),
                    "bytes": len(body),
                    "epsilon": self.choice.get("epsilon"),
                    "bounded": not self.printed,
                    "state": said("ledger.states.arrived"),
                    "items": sum(self.off(one) is None for one in self.things),
                    "sha256": hashlib.sha256(body).hexdigest(),
                }
            )

    def findings(self):
        if self.printed:
            items = [
                {"item": one["item"], "title": one["title"], "right": place != 2}
                for place, one in enumerate(self.things[:6])
            ]
            return [
                {
                    "attack": "pairs",
                    "who": said("reads.server"),
                    "promise": said("learn.promise.other"),
                    "said": said("learn.out"),
                    "items": items,
                    "hits": 5,
                    "claims": 6,
                    "chance": 2,
                    "right": 83,
                    "verdict": "broken",
                }
            ]
        return [
            {
                "attack": "one_shot",
                "who": said("reads.everybody"),
                "promise": said("learn.promise.a12"),
                "said": said("learn.coin", right=51, tries=100),
                "items": [],
                "hits": 51,
                "claims": 100,
                "chance": 50,
                "right": 51,
                "verdict": "holds",
            }
        ]


def shops():
    gram = {"epsilon": 1.0, "total_epsilon": 4.0}
    changes = [
        {
            "setting": "least_people",
            "before": 100,
            "after": 20,
            "said": said("terms.fewer_people"),
        },
        {"setting": "max_epsilon", "before": 4, "after": 8, "said": said("terms.louder")},
    ]
    large = Shop("places", "Places of the town", "devices", gram, crowd(), agreement=terms())
    large.large = LARGE
    waiting = Shop("books", "Book club", "devices", gram, films(), agreement=terms(False, changes))
    waiting.choice["takes_part"] = True
    return [
        Shop("films", "Film club", "devices", gram, films(), agreement=terms()),
        Shop(
            *("old", "FPL, as printed", "devices", {"share_positives": 0.5}, films()),
            printed=True,
            agreement=terms(),
        ),
        Shop("cinemas", "Cinemas together", "owners", {"refused_owners": []}, films()),
        waiting,
        large,
    ]


# --- the provider ---------------------------------------------------------------------------------


class Mock:
    """What the page asks, answered from memory."""

    def __init__(self):
        self.shops = shops()
        self.version = 1
        self.over = False
        self.fail = {}
        """By path: what the next call there is answered with."""
        self.calls = Counter()
        self.delay = 0.0

    def shop(self, name):
        place = int(name.removeprefix("s"))
        if place >= len(self.shops) or self.shops[place] is None:
            raise Wrong(404, "trouble.not_found")
        return self.shops[place]

    def state(self):
        known = [(at, shop) for at, shop in enumerate(self.shops) if shop is not None]
        return {"version": self.version, "stores": [shop.store(at) for at, shop in known]}

    def changed(self, store):
        self.version += 1
        return self.shop(store).store(int(store[1:]))

    def weigh(self, store, change):
        return self.shop(store).weigh(change)

    def choose(self, store, change):
        choice = self.shop(store).choice
        for name, value in change.items():
            if isinstance(value, dict):
                kept = [one for one in choice[name] if one not in value["drop"]]
                value = [*kept, *value["add"]]
            choice[name] = value
        return self.changed(store)

    def things(self, store, query="", offset="0", limit="100"):
        return self.shop(store).page_of_things(query, int(offset), int(limit))

    def preview(self, store):
        time.sleep(self.delay)
        return self.shop(store).preview()

    def body(self, store, index):
        return self.shop(store).bodies[int(index)]

    def send(self, store, nonce):
        shop = self.shop(store)
        if nonce != shop.nonce:
            raise Wrong(409, "preview.changed")
        shop.send()
        shop.nonce = None
        answer = {"state": "arrived", "said": said("preview.arrived")}
        return {**answer, "store": self.changed(store)}

    def ledger(self, store, offset="0", limit="100"):
        return self.shop(store).page_of_ledger(int(offset), int(limit))

    def row(self, store, row):
        shop = self.shop(store)
        kept = [one for one in shop.things[:20] if shop.off(one) is None]
        found = shop.row(int(row))
        items = [{"item": one["item"], "title": one["title"], "weight": 0.5} for one in kept]
        receipt = {"version": "ISO/IEC TS 27560", "id": found["id"], "sha256": found["sha256"]}
        return {"row": found, "items": items if found["items"] else [], "receipt": receipt}

    def export(self, store, format):
        page = self.ledger(store, 0, 10)
        return "\n".join(json.dumps(row) for row in page["rows"]).encode()

    def agree(self, store, digest):
        shop = self.shop(store)
        if digest != shop.terms["digest"]:
            raise Wrong(409, "trouble.terms_other")
        shop.terms = {**shop.terms, "agreed": True, "changes": []}
        return self.changed(store)

    def stop(self, store=None, everything=False):
        for shop in self.shops if store is None else [self.shop(store)]:
            shop.choice["takes_part"] = False
            shop.stopped = everything
        self.version += 1
        return self.state()

    def start(self, store):
        self.shop(store).stopped = False
        self.version += 1
        return self.state()

    def remove(self, store, items):
        shop = self.shop(store)
        shop.things = [one for one in shop.things if one["item"] not in items]
        return self.changed(store)

    def erase(self, store, what):
        if what == "history":
            self.shop(store).things = []
        else:
            self.shops[int(store[1:])] = None
        self.version += 1
        return self.state()

    def learn(self, store):
        self.shop(store).seeds = 0
        return {"done": 0, "total": 3, "findings": None, "error": None}

    def learnt(self, store):
        shop = self.shop(store)
        shop.seeds += 1
        found = shop.findings() if shop.seeds >= 2 else None
        return {"done": shop.seeds, "total": 3, "findings": found, "error": None}

    def recommend(self, store, change=None):
        now = [{"item": f"r{n}", "title": f"Rear Window {n}"} for n in range(5)]
        return {"now": now, "after": now[::-1] if change else None}


CALLS = {
    "state": ("GET", "state"),
    "weigh": ("POST", "weigh"),
    "choose": ("POST", "choose"),
    "things": ("GET", "things"),
    "preview": ("POST", "preview"),
    "preview/body": ("GET", "body"),
    "send": ("POST", "send"),
    "ledger": ("GET", "ledger"),
    "ledger/row": ("GET", "row"),
    "ledger/export": ("GET", "export"),
    "agree": ("POST", "agree"),
    "stop": ("POST", "stop"),
    "start": ("POST", "start"),
    "remove": ("POST", "remove"),
    "erase": ("POST", "erase"),
    "recommend": ("POST", "recommend"),
}


def words(language):
    """What a page may say, by its key."""
    every = catalogue(language).items()
    return {key: text for key, text in every if not key.startswith((*ELSEWHERE, "shop."))}


# --- the server -----------------------------------------------------------------------------------


class Served:
    """The mock on a port of loopback; it can be stopped, and started at the same port."""

    def __init__(self):
        self.mock = Mock()
        self.language = "en"
        self.port = 0
        environment = Environment(loader=FileSystemLoader(PAGES), autoescape=True)
        self._template = environment.get_template("consent.html")
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._static),
            Route("/words/glossary.json", self._glossary),
            Route("/words/{language}.json", self._words),
            Route("/api/learn", partial(self._answer, "learn", "learn"), methods=["POST"]),
            Route("/api/learn", partial(self._answer, "learn", "learnt"), methods=["GET"]),
        ]
        for path, (method, name) in CALLS.items():
            answer = partial(self._answer, path, name)
            routes.append(Route(f"/api/{path}", answer, methods=[method]))
        self.app = Starlette(routes=routes)
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        quiet = {"log_level": "error", "lifespan": "off", "ws": "none"}
        config = uvicorn.Config(self.app, port=self.port, **quiet)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the mock's server did not start")
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self):
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _page(self, request):
        waiting = words(self.language)["page.working"]
        given = {"language": self.language, "token": TOKEN, "version": "0", "waiting": waiting}
        text = self._template.render(**given)
        headers = {"content-security-policy": POLICY}
        return Response(text, media_type="text/html", headers=headers)

    def _static(self, request):
        name = request.path_params["name"]
        kind = KINDS.get(name.rpartition(".")[2])
        if kind is None or "/" in name:
            return Response(status_code=404)
        place = LOOK if name == LOOK.name else Path(PAGES) / name
        return Response(as_served(place, Path(PAGES)), media_type=kind)

    def _words(self, request):
        return JSONResponse(words(request.path_params["language"]))

    def _glossary(self, request):
        with open(f"{WORDS}/glossary.toml", "rb") as file:
            return JSONResponse(tomllib.load(file))

    async def _answer(self, path, name, request):
        self.mock.calls[name] += 1
        body = await request.body()
        try:
            if self.mock.over:
                raise Wrong(401, "trouble.session")
            if path in self.mock.fail:
                raise self.mock.fail.pop(path)
            if request.method == "POST" and request.headers.get("x-sottovoce-token") != TOKEN:
                raise Wrong(403, "trouble.token")
            given = json.loads(body) if request.method == "POST" else dict(request.query_params)
            found = getattr(self.mock, name)(**given)
        except Wrong as wrong:
            return JSONResponse({"error": wrong.said}, wrong.status)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return JSONResponse(found)


if __name__ == "__main__":
    served = Served()
    print(served.url, flush=True)
    threading.Event().wait()
