"""A federation whose parties are the real ones, in this process: a server's application over its
folder, what moves its rounds, agents with stores, helpers, aggregators. Time is moved by hand."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

from app_world import HeardLines, InProcess, exposed
from checked_world import AggregatorApp, checked_folders
from fake_server import FakeServer, Reply
from secure_sum_world import TOKEN, MaskerApp
from server_world import quick_rules

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.cli.serve_status import status_of
from sottovoce.core.consent import Choice
from sottovoce.core.links import Direct, Proxied, SecureSum
from sottovoce.engines.client import Answer as Told
from sottovoce.errors import ServiceError, SottovoceError, Unreachable
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.services.agent.agent import Agent
from sottovoce.services.copies.copying import restore_backup
from sottovoce.services.kit.application import Hosting
from sottovoce.services.server import process
from sottovoce.services.server.application import ServerApplication, ServerLimits
from sottovoce.services.server.checked_rounds import CheckedSums
from sottovoce.services.server.operator import status
from sottovoce.services.server.shuffled_rounds import ShuffledBatches
from sottovoce.services.server.state import RoundState
from sottovoce.services.server.summed_rounds import MaskedSums
from sottovoce.stores.acts import Actor, Acts
from sottovoce.stores.aggregator_folder import first_rules
from sottovoce.stores.coordinator import Awaiting, Coordinator
from sottovoce.stores.device import CohortStore
from sottovoce.stores.helper_folder import HelperIntroduction, create_helper, init_helper
from sottovoce.stores.keys import (
    CA_CERTIFICATE,
    OPERATOR_TOKEN,
    ReportKeys,
    RoleTokens,
    authority_pem,
)
from sottovoce.stores.locking import write_ready_file
from sottovoce.stores.operating import LastContacts
from sottovoce.stores.server import catalogue_name, require_catalogue
from sottovoce.stores.server_folder import ShufflerSecrets, create_folder, invite, open_folder
from sottovoce.web.console import Console, ConsoleViews
from sottovoce.web.entrance import Guest, PageSession
from sottovoce.wire.invitations import keep_invitation
from sottovoce.wire.refusals import RefusalCounts
from sottovoce.wire.terms import Terms

ITEMS, LEAST = 12, 3
CATALOGUE = [(f"v{n}", f"Venue {n}") for n in range(ITEMS)]
TIERS = (Tier(2.0, 2),)
CHOICES = {
    "direct": Choice(share_positives=0.5),
    "gram": Choice(epsilon=1.0, total_epsilon=4.0),
    "checked": Choice(epsilon=1.0, total_epsilon=4.0),
    "shuffled": Choice(epsilon=2.0, max_reports=2, total_epsilon=100.0),
}


class WaitsTown(InProcess):
    """`kind` is one of `CHOICES`."""

    def __init__(self, path, kind="gram", *, devices=4, rounds=6, batches=1, days=0, **rules):
        self.path, self.kind, self.devices = path, kind, devices
        self.time, self.down, self.events = 0.0, set(), []
        self.stack, self.stores, self.lines = contextlib.ExitStack(), {}, HeardLines()
        self.server_token = TOKEN
        terms = self._terms(kind, batches, days)
        given = {"min_devices": devices, "deadline_seconds": 100.0, **rules}
        self.folder = create_folder(
            path / "server", terms, CATALOGUE, rounds=rounds, rules=quick_rules(**given)
        )
        self._open()

    def _open(self):
        """What a server has while it runs from its folder."""
        self.database = self.folder.database(None)
        with self.database.writing() as link:
            self.folder = self.folder.caught_up(link)
            self.catalogue = self.folder.catalogue(link)
            self._coordinator(self.folder.plan.terms).start(link)
            require_catalogue(link, self.catalogue)
        self.state = RoundState(self.database, self.folder.plan, catalogue_name(self.catalogue))
        self.running = process.Running(self.folder, self.database, self.state)
        self.rounds = process.RoundsThread(
            self.database,
            self._coordinator(self.folder.plan.terms),
            self.state,
            SimpleNamespace(info=self.lines.info, warning=self.lines.info, error=self.lines.info),
            LastContacts(),
            self._follow,
            plan=lambda: self.running.folder.plan,
        )
        self.tokens = RoleTokens(self.folder.keys)

    # --- the parties ------------------------------------------------------------------------------

    def _terms(self, kind, batches, days):
        self.helper, self.aggregators = None, {}
        if kind == "direct":
            settings = FPLConfig(embedding_size=4, triples=5)
            return Terms("town", ITEMS, settings, ShareFraction(), Direct())
        if kind == "shuffled":
            link = Proxied("https://127.0.0.1:1", "")
            return Terms("town", ITEMS, FMFConfig(embedding_size=3), KReports(2, TIERS), link)
        config = GramConfig(popularity_share=1.0, least_head=4, batches=batches)
        if kind == "checked":
            terms, folders = checked_folders(
                self.path, ITEMS, config, server="server/keys", min_devices=LEAST
            )
            self.aggregators = {n: AggregatorApp(one) for n, one in folders.items()}
            for one in self.aggregators.values():
                self.stack.enter_context(one)
            return terms
        self.helper_key = init_helper(self.path / "helper")
        terms = self.summed_terms(config, days)
        folder = create_helper(self.path / "helper", HelperIntroduction(terms, TOKEN))
        self.helper = self.stack.enter_context(MaskerApp(folder))
        return terms

    def summed_terms(self, config, days=0, least=LEAST):
        link = SecureSum(
            min_devices=least,
            bits=32,
            url="https://127.0.0.1:1",
            key=self.helper_key,
            authority=authority_pem(self.path / "helper" / "keys"),
        )
        return Terms("town", ITEMS, config, OwnEpsilon(8.0, period_days=days), link)

    def amended_without_server(self):
        """Helper and aggregators go by changed terms, and the server was put back from a copy of
        before."""
        for app in [self.helper, *self.aggregators.values()]:
            if app is not None:
                ours = app.folder.introduction
                release = replace(ours.terms.release, period_days=9)
                later = replace(ours, terms=replace(ours.terms, release=release))
                app.folder.agree(later)
                app.folder.begin(later)
                app.__exit__()
                app.folder = replace(app.folder, introduction=later)
                app.__enter__()

    def _coordinator(self, terms):
        plan = self.folder.plan

        def clock():
            return self.time

        if self.kind == "direct":
            return Coordinator(plan, clock)
        if self.kind == "shuffled":
            return Coordinator(plan, clock, ShuffledBatches(plan, ReportKeys(self.folder.keys)))
        if self.kind == "gram":
            return Coordinator(plan, clock, MaskedSums(plan, self._ask_helper))
        asks = {n: lambda question, path, n=n: self._ask(n, question, path) for n in (1, 2)}
        rules = first_rules(terms, self.folder.keys)
        return Coordinator(plan, clock, CheckedSums(plan, *rules, asks))

    def _follow(self):
        coordinator = self.running.follow()
        self.folder = self.running.folder
        return self._coordinator(self.folder.plan.terms) if coordinator else None

    def _ask_helper(self, question, path):
        if "helper" in self.down:
            raise Unreachable("nobody answers")
        bearer = {"authorization": f"Bearer {self.server_token}"}
        got = self.helper.ask("POST", path, question, bearer)
        return Told(got.status, "", got.body)

    def _ask(self, number, question, path):
        if number in self.down:
            raise Unreachable("nobody answers")
        return self.aggregators[number].post(path, question, self.server_token_of(number))

    def server_token_of(self, number):
        return "00" * 32 if self.server_token != TOKEN else None

    async def make(self):
        hosting = Hosting(self.tokens, RefusalCounts(), ServerLimits())
        proxied = self.folder.plan.proxied
        made = ServerApplication(
            hosting,
            self.folder.plan,
            self.catalogue,
            self.database,
            self.state,
            moved=lambda: None,
            proxy=ShufflerSecrets.of(self.folder.keys) if proxied else None,
        )
        self.running.serve(made)
        return made

    def __enter__(self):
        super().__enter__()
        self.front = self.stack.enter_context(FakeServer(self._passed_on))
        self._ready()
        return self

    def _ready(self):
        ready = self.folder.ready_file(self.front.port, shared=False)
        write_ready_file(ready, self.front.url, self.front.port)
        self.step()

    def set_back(self, copy):
        """The server is stopped, its folder is replaced by a copy, and it is started again; what
        the command says."""
        self.folder.ready_file(self.front.port, shared=False).unlink()
        super().__exit__()
        self.database.close()
        done = restore_backup(copy, self.folder.path)
        self.folder = open_folder(self.folder.path)
        self._open()
        super().__enter__()
        self._ready()
        return " ".join(done.settled.means)

    def __exit__(self, *_):
        for store in self.stores.values():
            store.close()
        self.stack.close()
        super().__exit__()
        self.database.close()

    def close(self):
        self.__exit__()

    def stop_server(self):
        self.front.__exit__()
        self.folder.ready_file(self.front.port, shared=False).unlink()

    def _passed_on(self, request):
        heads = {k: v for k, v in request.headers.items() if k != "content-length"}
        if heads.get("authorization", "").startswith("bearer "):
            heads["authorization"] = "B" + heads["authorization"][1:]
        got = self.ask(request.method, request.path, request.body, heads)
        heads = {k: v for k, v in got.headers.items() if k != "content-length"}
        return Reply(got.status, got.body, heads)

    # --- what happens -----------------------------------------------------------------------------

    def step(self, seconds=0.0):
        """What the thread of the rounds does in one turn, so much later."""
        self.time += seconds
        events = []
        try:
            with self.database.leading() as leader:
                events = [one.what for one in self.rounds._coordinator.step(leader)]
            self.state.refresh()
            if self.state.outdated:
                self.rounds._coordinator = self.rounds._follow()
        except ServiceError as error:
            if not isinstance(error, Awaiting):
                self.rounds._in_trouble(str(error))
        self.rounds._next_reason = 0.0
        self.rounds._say_why()
        return events

    def join(self, *numbers, items=(0, 1, 2, 3), choice=None):
        """Invited, with a history and a choice; nothing has left yet."""
        for invitation in invite(self.folder, self.database, self.front.url, list(numbers)):
            number = invitation.number
            store = CohortStore.create(self.path / f"d{number}", [(number, "me")])
            keep_invitation(store, invitation)
            store.set_catalogue(CATALOGUE)
            if items:
                store.add_history(number, [CATALOGUE[n][0] for n in items], None)
            store.set_choice(number, choice or CHOICES[self.kind])
            self.stores[number] = store

    def visit(self, *numbers):
        """One visit of each of these devices; what its agent logs."""
        heard = []
        for number in numbers:
            store = self.stores[number]

            def log(event, number=number, **details):
                heard.append((number, event, details))

            terms = self.terms_seen.digest() if hasattr(self, "terms_seen") else ""
            foreseen = terms or self.folder.plan.terms.digest()
            agent = Agent(store, plaintext=True, foreseen=foreseen, log=log)
            asyncio.run(self._visit(agent, log))
        return heard

    async def _visit(self, agent, log):
        try:
            await agent.visit()
        except SottovoceError as error:
            log("failed", why=str(error))
        finally:
            await agent.close()

    def round(self, *numbers):
        """A round in which these contribute, to its end."""
        self.step()
        self.visit(*numbers)
        for _ in range(3):
            self.step(1000.0)

    def acts(self):
        return Acts(self.folder, self.database, Actor("anna", "command"))

    # --- what everybody says ----------------------------------------------------------------------

    def said(self):
        """The reason as each place has it: `serve status` by address and by folder, the console,
        the figures and the agent of a device. None if nobody waits."""
        keys = self.folder.keys
        by_url = status_of(self.front.url, keys / CA_CERTIFICATE, keys / OPERATOR_TOKEN)
        by_folder = status_of(str(self.folder.path), None, None)
        found = {"url": by_url["reason"], "folder": by_folder["reason"]}
        found["console"] = self.console()["reason"]
        return found

    def console(self):
        def stands():
            now = self.running.folder.plan
            return status(self.database, RefusalCounts(), 1, now, trouble=self.state.trouble)

        folder = lambda: self.running.folder  # noqa: E731
        running = process.RunningServer(
            folder, self.database, self.tokens, stands, lambda: None, self.lines
        )
        session = PageSession("", "", 0.0, Guest("look", "anna"))
        return Console(ConsoleViews.of(running), session).state()

    def labels(self):
        """The labels of the figure that says why rounds wait."""
        bearer = {
            "authorization": f"Bearer {(self.folder.keys / OPERATOR_TOKEN).read_text().strip()}"
        }
        got = self.ask("GET", "/metrics", b"", bearer)
        series = exposed(got.body)["sottovoce_waiting_reason"]
        return [labels for labels, value in series.items() if value]
