// Ledger: all that left or was asked for, on a line and as a table, with a receipt for each.

import { Part } from "./desk.js";
import { button, drawing, facts, h, put, save } from "./dom.js";
import { Rows } from "./sv-list.js";
import { moment, number, percent, said, say } from "./words.js";

const PAUSE = 250;
const MANY = 5000;

export class Ledger extends Part {
	pause = 0;
	seen = "";
	/** @type {Row[] | null} all rows, once she filters */
	all = null;
	filter = h("input", { type: "search", id: "ledger-filter", autocomplete: "off" });
	count = h("p", { role: "status", class: "count" });
	line = h("div", { class: "timeline" });
	/** @type {Rows<Row>} */
	rows = new Rows();
	end = button(said("page.oldest"), () => this.rows.scrollTo(0, this.rows.scrollHeight), {
		class: "small",
	});
	tools = h(
		"div",
		{ class: "press" },
		button(said("ledger.csv"), () => void this.export("csv"), { class: "small" }),
		button(said("ledger.ndjson"), () => void this.export("ndjson"), { class: "small" }),
		this.end,
	);

	connectedCallback() {
		this.filter.addEventListener("input", () => {
			clearTimeout(this.pause);
			this.pause = setTimeout(() => void this.sift(), PAUSE);
		});
		this.rows.classList.add("ledger");
		put(
			this,
			h("p", {}, said("ledger.receipt_help")),
			this.line,
			h("div", { class: "add" }, h("label", { for: "ledger-filter" }, said("page.search_ledger")), this.filter),
			this.count,
			this.rows,
			this.tools,
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const seen = JSON.stringify([store.id, store.contributions, store.last, store.terms?.agreed, store.history]);
		if (fresh) this.filter.value = "";
		if (fresh || seen !== this.seen) {
			this.all = null;
			void this.sift();
		}
		this.seen = seen;
	}

	/** What is asked for is shown: everything, or what the filter leaves. */
	async sift() {
		const store = this.desk.store.id;
		const wanted = this.filter.value.trim().toLowerCase();
		/** @param {number} offset @param {number} limit */
		const load = (offset, limit) =>
			this.desk.ask(() => this.desk.provider.ledger(store, { offset, limit }));
		if (!wanted) {
			const first = await load(0, 100);
			if (!first || this.other(store, wanted)) return;
			this.lay(first.total, first.total, first.rows, async (offset, limit) =>
				offset === 0 ? first.rows : ((await load(offset, limit))?.rows ?? null),
			);
			return;
		}
		const all = this.all ?? (await this.everything(store, wanted, load));
		if (!all || this.other(store, wanted)) return;
		this.all = all;
		const left = all.filter((row) => words(row).includes(wanted));
		this.lay(left.length, all.length, left, async (offset, limit) => left.slice(offset, offset + limit));
	}

	/** @param {string} store @param {string} wanted */
	other(store, wanted) {
		return store !== this.desk.store.id || wanted !== this.filter.value.trim().toLowerCase();
	}

	/**
	 * @param {string} store
	 * @param {string} wanted
	 * @param {(offset: number, limit: number) => Promise<{total: number, rows: Row[]} | null>} load
	 */
	async everything(store, wanted, load) {
		/** @type {Row[]} */
		const found = [];
		for (;;) {
			const page = await load(found.length, MANY);
			if (!page || this.other(store, wanted)) return null;
			found.push(...page.rows);
			if (found.length >= page.total || page.rows.length === 0) return found;
			put(this.count, said("page.learn_progress", { done: found.length, total: page.total }));
		}
	}

	/**
	 * @param {number} total
	 * @param {number} of
	 * @param {Row[]} rows those that are known, newest first
	 * @param {(offset: number, limit: number) => Promise<Row[] | null>} load
	 */
	lay(total, of, rows, load) {
		const all = of === 0 ? said("ledger.empty") : said("ledger.total", { n: of });
		put(this.count, total < of ? said("page.of", { part: total, whole: of }) : all);
		this.rows.hidden = this.tools.hidden = total === 0;
		this.end.hidden = total < 20;
		put(this.line, ...timeline(rows, total));
		this.rows.show({
			total,
			load,
			draw: (row) => this.entry(row),
			height: 6,
			label: said("page.ledger"),
			head: h(
				"div",
				{ role: "row", class: "head", "aria-rowindex": 1 },
				...["when", "what", "to", "size", "used", "state", "receipt"].map((name) =>
					h("span", { role: "columnheader", class: name }, said(`ledger.${name}`)),
				),
			),
		});
	}

	/** @param {Row} row */
	entry(row) {
		return h(
			"div",
			{},
			h("span", { role: "cell", class: "when" }, () => moment(row.when)),
			h("span", { role: "cell", class: "what" }, row.what),
			h("span", { role: "cell", class: "to" }, row.to),
			h("span", { role: "cell", class: "size" }, said("page.size", { size: row.bytes })),
			h("span", { role: "cell", class: "used" }, used(row)),
			h("span", { role: "cell", class: "state" }, row.state ?? "–"),
			h(
				"span",
				{ role: "cell", class: "receipt" },
				button(said("ledger.receipt"), () => void this.open(row), { class: "plain" }),
			),
		);
	}

	/** @param {Row} row */
	async open(row) {
		const { store, provider } = this.desk;
		const booked = await this.desk.ask(() => provider.row(store.id, row.id));
		if (!booked) return;
		const text = JSON.stringify(booked.receipt, null, 2);
		const items = booked.items.map((one) =>
			h("li", {}, one.title || one.item, " ", h("span", { class: "quiet" }, () => percent(Math.round(one.weight * 100) / 100))),
		);
		const dialog = h(
			"dialog",
			{ "aria-labelledby": "receipt-head", class: "receipt" },
			h("h2", { id: "receipt-head" }, said("page.receipt")),
			facts([
				["ledger.what", booked.row.what],
				["ledger.to", booked.row.to],
				["ledger.when", () => moment(booked.row.when)],
				["ledger.size", said("page.size", { size: booked.row.bytes })],
				["ledger.used", used(booked.row)],
				["ledger.state", booked.row.state],
			]),
			h("h3", {}, said("ledger.items_n", { n: booked.row.items })),
			booked.row.items > 0 && items.length === 0 && h("p", {}, said("ledger.no_names")),
			items.length > 0 && h("ul", { class: "things", tabindex: 0, "aria-label": said("ledger.items") }, ...items),
			h("pre", { tabindex: 0, "aria-label": said("page.receipt") }, text),
			h(
				"div",
				{ class: "press" },
				button(said("page.receipt_save"), () =>
					save(`receipt-${row.id}.json`, new Blob([text], { type: "application/json" })),
				),
				button(said("page.close"), () => dialog.close(), { class: "main" }),
			),
		);
		dialog.addEventListener("close", () => dialog.remove());
		document.body.append(dialog);
		dialog.showModal();
	}

	/** @param {"csv" | "ndjson"} format */
	async export(format) {
		const { store, provider } = this.desk;
		const file = await this.desk.ask(() => provider.export(store.id, format));
		if (file) save(`ledger-${store.name}.${format}`, file);
	}
}
customElements.define("sv-ledger", Ledger);

/** @param {Row} row */
const words = (row) =>
	[say(row.what), say(row.to), row.state ? say(row.state) : "", moment(row.when), row.sha256 ?? ""]
		.join(" ")
		.toLowerCase();

/** @param {Row} row */
function used(row) {
	if (!row.bounded) return said("ledger.no_bound");
	const { epsilon } = row;
	return epsilon ? () => number(epsilon) : said("ledger.free");
}

/**
 * When something left: one stroke for each, from the first to the last.
 * @param {Row[]} rows
 * @param {number} total
 */
function timeline(rows, total) {
	const newest = rows.at(0);
	const oldest = rows.at(-1);
	if (!newest || !oldest) return [];
	const span = Math.max(1, newest.when - oldest.when);
	const places = new Set(rows.map((row) => Math.round(((row.when - oldest.when) / span) * 590) + 5));
	return [
		drawing("0 0 600 40", "line", [
			["line", { x1: 0, x2: 600, y1: 32, y2: 32, class: "axis" }],
			...[...places].map(
				(x) =>
					/** @type {[string, Record<string, number>]} */ (["line", { x1: x, x2: x, y1: 10, y2: 32 }]),
			),
		]),
		h("div", { class: "ends" }, h("span", {}, () => moment(oldest.when)), h("span", {}, () => moment(newest.when))),
		rows.length < total && h("p", { class: "help" }, said("page.newest", { n: rows.length })),
	].filter((one) => one instanceof Node);
}
