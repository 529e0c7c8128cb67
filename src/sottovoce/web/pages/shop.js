// The shop: a town's places, her visits, two lists, and her consent centre as a panel. She is a
// device by herself: this page has the library of tabs (`clients/browser`) beside it, and what she
// clicks stays in this browser.

import { consent } from "./consent.js";
import { button, h, more, put, set } from "./dom.js";
import { LONG, line, token } from "./loopback.js";
import { Trouble } from "./trouble.js";
import { said } from "./words.js";

/** @typedef {import("./desk.js").Desk} Desk */
/** @typedef {{item: string, title: string, category: string, kind?: string, district?: string}} Place */
/** @typedef {{version: number, before: Place[], after: Place[]}} Changed */
/**
 * What is hers, and is known in this browser alone.
 * @typedef {object} Hers
 * @property {Place[]} visited
 * @property {Place[]} recommended
 * @property {number | null} version
 * @property {Changed | null} changed
 * @property {boolean} enrolled
 * @property {number | null} last round in which a part of hers arrived
 * @property {string} why something stands in the way
 */
/**
 * What everybody is told.
 * @typedef {object} Told
 * @property {string[]} popular
 * @property {{number: number, state: string, stage: number, first: number} | null} round none where nobody answers
 * @property {number} spent
 * @property {number} limit
 * @property {boolean} console
 */
/**
 * The library's device, as far as it is asked here.
 * @typedef {EventTarget & {
 *   visited: (item: string) => Promise<void>,
 *   remove: (item: string) => Promise<number>,
 *   things: () => Promise<{id: string}[]>,
 *   recommend: (n: number) => Promise<{id: string}[]>,
 *   status: () => Promise<{model: number | null, enrolled: boolean, trouble: string, stopped: boolean, report: {round: number, state: string} | null}>,
 * }} Device
 */

/** What is hers once all is forgotten. @type {Hers} */
const NOBODY = { visited: [], recommended: [], version: null, changed: null, enrolled: false, last: null, why: "" };
const BEAT = 2000;
const SOON = 200;
const POLL = 1;
const SOME = 5;
const LISTED = 10;

/** Files of the library, which lie beside this one where it is served. */
/** @type {(name: string) => Promise<any>} */
const library = (name) => import(`./${name}.js`);

/** What goes wrong in the device is said as everything else is. @template T @param {() => Promise<T>} work */
async function asked(work) {
	try {
		return await work();
	} catch (error) {
		if (error instanceof Trouble || !(error instanceof Error)) throw error;
		throw new Trouble("said", said("trouble.other", { why: error.message }));
	}
}

async function counter() {
	const { call, read, send } = line(token());
	/** @type {[{openDevice: (options: object) => Promise<Device>}, {tab: (device: Device, options: object) => Provider}]} */
	const [{ openDevice }, { tab }] = await Promise.all([library("sottovoce"), library("provider")]);
	/** @type {{places: Place[], federation: string, residents: number, take_part: number}} */
	const { federation, places, ...people } = await (await read("places")).json();
	const device = await openDevice({ federation, automatic: false, poll: POLL });
	/** Within this page's session, without which nothing is served. @param {string} name @param {string} [folder] */
	const sentences = async (name, folder = "static/words") => (await call(`${folder}/${name}.json`)).json();
	const centre = tab(device, { words: (/** @type {string} */ name) => sentences(name) });
	const known = new Map(places.map((one) => [one.item, one]));
	/** @param {{id: string}[]} found */
	const named = (found) => found.flatMap(({ id }) => known.get(id) ?? []);
	/** @type {Hers | null} */
	let before = null;
	let gone = false;
	/** @type {Promise<unknown>} */
	let turn = Promise.resolve();

	/** @returns {Promise<Hers>} */
	async function hers() {
		for (;;) {
			const { model } = await device.status();
			const visited = named(await device.things());
			const recommended = model === null ? [] : named(await device.recommend(LISTED));
			const { report, ...status } = await device.status();
			if (status.model !== model) continue; // a list of the one, and a version of the other
			const last = report?.state === "arrived" ? report.round : null;
			const other = before && before.version !== null && model !== null && before.version !== model;
			const changed = other ? { version: model, before: before?.recommended ?? [], after: recommended } : (before?.changed ?? null);
			const why = status.stopped ? "" : status.trouble;
			before = { visited, recommended, version: model, changed, enrolled: status.enrolled, last, why };
			return before;
		}
	}

	/** One after the other, so that lists before and after a model are of the same visits. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
	function inTurn(work) {
		const next = turn.then(() => asked(work));
		turn = next.catch(() => undefined);
		return next;
	}

	return {
		device,
		places,
		people,
		gone: () => gone,
		/** The centre's, which also knows the shop's own sentences. @type {Provider} */
		centre: {
			...centre,
			words: async (language) => {
				const [all, own] = await Promise.all([centre.words(language), sentences(`${language}-shop`, "words")]);
				return { ...all, ...own };
			},
			send: async (store, nonce) => {
				const sent = await centre.send(store, nonce);
				const { report } = await asked(() => device.status());
				if (report?.state === "arrived") await send("go_on", {}).catch(() => undefined); // else they wait for her
				return sent;
			},
			erase: async (store, what) => {
				const left = await centre.erase(store, what);
				gone ||= what === "everything";
				before = null; // and no list of what she had is shown beside another
				return left;
			},
		},
		hers: () => inTurn(hers),
		/** @returns {Promise<Told>} */
		town: async () => (await read("town")).json(),
		/** @param {string} item @param {boolean} there @returns {Promise<Hers>} */
		visit: (item, there) =>
			inTurn(async () => {
				await (there ? device.visited(item) : device.remove(item));
				return hers();
			}),
		/** @returns {Promise<{url: string}>} */
		console: async () => (await send("console", {}, LONG)).json(),
	};
}

/** @param {HTMLElement} root */
async function shop(root) {
	const till = await counter();
	const panel = h("aside", { class: "panel", id: "privacy", tabindex: -1, "aria-label": said("shop.privacy") });
	const inside = h("div", { class: "inside" });
	const { desk, languages } = await consent(inside, till.centre, "shop.title");
	const { places, people } = till;
	let [mine, town] = await Promise.all([till.hers(), till.town()]);
	/** What is wrong with her device, and with what serves this page. */
	/** @type {(Said | null)[]} */
	let [amiss, stopped] = [null, null];
	let over = false;
	let opener = document.body;
	let hinted = "";

	// --- her way, step by step ---------------------------------------------------------------------

	const way = h("ol", { class: "way" });
	const next = h("div", { class: "next", role: "status" });
	const where = h("p", { class: "where" });
	const left = h("p", { class: "left" });
	const trouble = h("p", { class: "objection", role: "alert", hidden: true });
	const costs = h("div", { class: "costs" });

	const STEPS = ["visit", "agree", "take_part", "send", "see"];

	/** Of what she sent last: whether it is in the open round, in an earlier one of the same period,
	 * and whether a model came of it. */
	function part() {
		const { last, version } = mine;
		const { round } = town;
		if (last === null || !round) return { sent: false, part: false, seen: false };
		return {
			sent: last === round.number,
			part: last >= round.first && last < round.number,
			seen: version !== null && version > last,
		};
	}

	function step() {
		const store = desk.store;
		const { sent, part: counts, seen } = part();
		if (sent || (seen && !counts && store?.takes_part)) return 4;
		if (!store || mine.visited.length < SOME) return 0;
		if (store.terms && !store.terms.agreed) return 1;
		return store.takes_part ? 3 : 2;
	}

	function hint() {
		if (desk.store?.stopped) return "stopped";
		const now = STEPS[step()] ?? "";
		if (now === "see") return part().sent ? "see" : "seen";
		if (now === "send" && part().part) return "more";
		return now === "send" && !mine.enrolled ? "place" : now;
	}

	/** Where the next step is done, if not here. */
	/** @type {Record<string, string>} */
	const ROOMS = { agree: "terms", take_part: "choices", place: "preview", send: "preview", more: "preview", seen: "preview", stopped: "stop" };

	function steps() {
		const now = step();
		put(
			way,
			...STEPS.map((name, at) =>
				h(
					"li",
					{ class: at < now ? "done" : at === now ? "now" : "", "aria-current": at === now ? "step" : null },
					said(`shop.step.${name}`),
				),
			),
		);
		if (till.gone()) {
			if (hinted === "gone") return;
			hinted = "gone";
			put(next, button(said("stop.start"), () => location.reload(), { class: "main", "data-deed": "go" }));
			if (!panel.hidden) hide(); // nothing is in it
			return;
		}
		const name = hint();
		const room = ROOMS[name];
		const n = Math.max(0, SOME - mine.visited.length);
		const words = JSON.stringify([name, n]);
		if (words === hinted) return; // a reader that speaks says it once
		hinted = words;
		put(
			next,
			h("p", { class: "hint" }, said(`shop.hint.${name}`, { n })),
			room && button(said(`shop.go.${room}`), () => show(room), { class: "main", "data-deed": "go" }),
		);
	}

	function troubled() {
		if (till.gone()) return said("shop.erased");
		if (stopped || amiss) return stopped ?? amiss ?? null;
		if (!town.round) return said("trouble.server_gone");
		return mine.why ? said("trouble.other", { why: mine.why }) : null;
	}

	function strip() {
		const round = town.round;
		const why = troubled();
		set(root, "data-version", mine.version);
		set(root, "data-round", round?.number ?? null);
		trouble.hidden = !why;
		put(trouble, why);
		put(left, desk.store?.stands);
		if (!round || round.state !== "open") put(where, said(round?.state === "finished" ? "shop.round.over" : "shop.round.waits"));
		else if (part().sent) put(where, said("shop.round.sent", { number: round.number }));
		else put(where, said(round.stage === 0 ? "shop.round.first" : "shop.round.second", { number: round.number }));
		put(
			costs,
			more(
				said("shop.costs"),
				h("p", {}, said("shop.cost", { spent: town.spent, limit: town.limit })),
				h("p", {}, said("shop.cost_real")),
			),
		);
		operator.hidden = !town.console;
	}

	// --- places ------------------------------------------------------------------------------------

	/** @type {Map<string, Place[]>} */
	const kinds = new Map();
	for (const place of places) kinds.set(place.category, [...(kinds.get(place.category) ?? []), place]);
	const names = [...kinds.keys()].sort();
	/** @type {Map<string, HTMLButtonElement>} */
	const cards = new Map();

	/** @param {Place} place */
	function card(place) {
		const element = h(
			"button",
			{ type: "button", class: "place", "data-item": place.item, "aria-pressed": "false" },
			h("span", { class: "name" }, place.title),
			h("span", { class: "about" }, [place.kind, place.district].filter(Boolean).join(" · ")),
		);
		element.addEventListener("click", () => void visit(place.item, element));
		cards.set(place.item, element);
		return element;
	}

	const market = h(
		"div",
		{ class: "market" },
		...names.map((name, at) =>
			h(
				"section",
				{ class: `kind k${at % 9}`, "aria-labelledby": `kind-${at}` },
				h("h3", { id: `kind-${at}` }, h("span", { class: "dot", "aria-hidden": "true" }), name),
				h("div", { class: "cards" }, ...(kinds.get(name) ?? []).map(card)),
			),
		),
	);

	/** What was clicked, and is not stored yet. @type {Map<string, {there: boolean}>} */
	const wanted = new Map();

	/** @param {string} item @param {HTMLElement} element */
	async function visit(item, element) {
		if (till.gone()) return;
		const there = element.getAttribute("aria-pressed") !== "true";
		const want = { there };
		wanted.set(item, want);
		set(element, "aria-pressed", there);
		const found = await desk.act(() => till.visit(item, there));
		if (wanted.get(item) === want) wanted.delete(item);
		if (found) mine = found;
		draw();
	}

	// --- lists -------------------------------------------------------------------------------------

	const own = h("ol", { class: "list mine" });
	const common = h("ol", { class: "list" });
	const been = h("ul", { class: "list been", tabindex: 0, "aria-labelledby": "head-been" });
	const changes = h("section", { class: "changes-made", "aria-labelledby": "head-changed", hidden: true });

	/** @param {Place} place @param {Said | null} [mark] */
	const entry = (place, mark = null) =>
		h(
			"li",
			{ class: `k${Math.max(0, names.indexOf(place.category)) % 9}`, "data-item": place.item },
			h("span", { class: "dot", "aria-hidden": "true" }),
			h("span", { class: "name" }, place.title, h("span", { class: "about" }, place.kind ?? place.category)),
			mark && h("span", { class: "mark" }, mark),
		);

	function lists() {
		const visited = new Set(mine.visited.map((one) => one.item));
		const popular = town.popular.flatMap((item) => places.find((one) => one.item === item) ?? []);
		for (const [item, element] of cards) set(element, "aria-pressed", wanted.get(item)?.there ?? visited.has(item));
		put(own, ...mine.recommended.map((one) => entry(one)));
		put(common, ...popular.map((one) => entry(one, visited.has(one.item) ? said("shop.been") : null)));
		put(been, ...(mine.visited.length ? mine.visited.map((one) => entry(one)) : [h("li", { class: "quiet" }, said("shop.nowhere"))]));
	}

	function compare() {
		const found = mine.changed;
		changes.hidden = !found;
		if (!found) {
			put(changes);
			delete changes.dataset.version;
		}
		if (!found || changes.dataset.version === String(found.version)) return;
		changes.dataset.version = String(found.version);
		const before = found.before.map((one) => one.item);
		const fresh = found.after.filter((one) => !before.includes(one.item));
		put(
			changes,
			h("h2", { id: "head-changed" }, said("shop.changed")),
			h("p", {}, said(fresh.length ? "shop.changed_by" : "shop.changed_none", { n: fresh.length })),
			h(
				"div",
				{ class: "columns" },
				h("div", {}, h("h3", {}, said("shop.before")), h("ol", { class: "list before" }, ...found.before.map((one) => entry(one)))),
				h(
					"div",
					{},
					h("h3", {}, said("shop.after")),
					h("ol", { class: "list after" }, ...found.after.map((one, at) => entry(one, moved(before.indexOf(one.item), at)))),
				),
			),
			h("p", { class: "help" }, said("shop.changed_help")),
		);
	}

	/** @param {number} was @param {number} is */
	function moved(was, is) {
		if (was < 0) return said("shop.new");
		if (was === is) return null;
		return said(was > is ? "shop.up" : "shop.down", { by: Math.abs(was - is) });
	}

	// --- the panel ---------------------------------------------------------------------------------

	const ask = button(said("shop.privacy"), () => (panel.hidden ? show("stands") : hide()), { class: "ask-privacy", "aria-expanded": "false", "aria-controls": "privacy" });

	/** @param {string} section */
	function show(section) {
		if (document.activeElement instanceof HTMLElement && !panel.contains(document.activeElement)) opener = document.activeElement;
		panel.hidden = false;
		document.body.classList.add("beside");
		set(ask, "aria-expanded", "true");
		const there = document.getElementById(section);
		there?.scrollIntoView();
		(there ?? panel).focus({ preventScroll: true });
	}

	function hide() {
		panel.hidden = true;
		document.body.classList.remove("beside");
		set(ask, "aria-expanded", "false");
		(opener.isConnected ? opener : ask).focus();
	}
	panel.addEventListener("keydown", (event) => {
		if (event.key === "Escape" && !document.querySelector("dialog[open]")) hide();
	});

	const operator = button(said("shop.operator"), () => void look(), { class: "small", hidden: true });
	async function look() {
		const found = await desk.ask(() => till.console());
		if (found) window.open(found.url, "_blank", "noopener");
	}

	// --- all together ------------------------------------------------------------------------------

	/** What is hers is read anew. */
	async function follow() {
		if (till.gone()) return draw();
		try {
			mine = await till.hers();
			amiss = null;
		} catch (error) {
			if (!(error instanceof Trouble)) throw error;
			amiss = error.said;
		}
		draw();
	}

	function draw() {
		if (till.gone()) mine = NOBODY;
		steps();
		strip();
		lists();
		compare();
	}

	put(
		panel,
		h("div", { class: "panel-head" }, h("h2", {}, said("shop.privacy")), button(said("shop.close"), hide, { class: "small" })),
		inside,
	);
	panel.hidden = true;
	put(
		root,
		h("a", { class: "skip", href: "#places" }, said("shop.skip")),
		h("header", {}, h("p", { class: "brand" }, "Sottovoce"), h("h1", {}, said("shop.title")), languages, ask),
		h(
			"div",
			{ class: "floor" },
			h(
				"main",
				{},
				h(
					"section",
					{ class: "lead", "aria-labelledby": "head-lead" },
					h("h2", { id: "head-lead" }, said("shop.lead")),
					h("p", {}, said("shop.about", { people: people.residents, others: people.take_part })),
					way,
					next,
					trouble,
					h("div", { class: "strip" }, where, left),
				),
				changes,
				h(
					"div",
					{ class: "two" },
					h(
						"section",
						{ id: "places", tabindex: -1, "aria-labelledby": "head-places" },
						h("h2", { id: "head-places" }, said("shop.places")),
						h("p", { class: "help" }, said("shop.places_help")),
						market,
					),
					h(
						"div",
						{ class: "side" },
						h("section", { "aria-labelledby": "head-mine" }, h("h2", { id: "head-mine" }, said("shop.for_you")), h("p", { class: "help" }, said("shop.for_you_help")), own),
						h("section", { "aria-labelledby": "head-common" }, h("h2", { id: "head-common" }, said("shop.popular")), h("p", { class: "help" }, said("shop.popular_help")), common),
						h("section", { "aria-labelledby": "head-been" }, h("h2", { id: "head-been" }, said("shop.visited")), h("p", { class: "help" }, said("shop.visited_help")), been),
					),
				),
				h("section", { class: "more", "aria-labelledby": "head-more" }, h("h2", { id: "head-more" }, said("shop.behind")), h("p", {}, said("shop.behind_help")), costs, h("div", { class: "press" }, operator)),
			),
		),
		panel,
	);
	desk.addEventListener("store", draw);
	let soon = 0;
	till.device.addEventListener("change", () => {
		clearTimeout(soon);
		soon = setTimeout(() => {
			if (till.gone()) return draw();
			void follow();
			void desk.read();
		}, SOON);
	});
	setInterval(async () => {
		if (!desk.attended() || over) return;
		try {
			town = await till.town();
			stopped = null;
		} catch (error) {
			if (!(error instanceof Trouble)) throw error;
			over = error.kind === "over";
			stopped = error.said;
		}
		draw();
	}, BEAT);
	draw();
	root.setAttribute("data-open", "");
}

const root = document.querySelector("#page");
if (root instanceof HTMLElement) {
	// Without a device there is no shop: she reads why, and nothing has left.
	await shop(root).catch((error) => {
		const why = error instanceof Trouble ? "The shop does not answer. Load this page again. Nothing was lost." : error.message;
		put(root, h("main", { class: "floor" }, h("p", { role: "alert", lang: "en" }, why)));
		throw error;
	});
}
