// Never send: a switch for each thing of hers and rules by category, which hold at once.

import { Part } from "./desk.js";
import { button, h, more, put, set, toggle } from "./dom.js";
import { ask } from "./sv-confirm.js";
import { Rows } from "./sv-list.js";
import { day, said } from "./words.js";

const PAUSE = 200;

export class Things extends Part {
	pause = 0;
	drawnFor = "";
	lawsFor = "";
	query = h("input", { type: "search", id: "things-query", autocomplete: "off" });
	count = h("p", { role: "status", class: "count" });
	help = h("p");
	rules = h("ul", { class: "rules", tabindex: 0, "aria-label": said("page.categories") });
	advance = h("ul", { class: "advance" });
	others = more(said("page.rules_all"), this.advance);
	/** @type {Map<string, string>} */
	titles = new Map();
	/** @type {Rows<Thing>} */
	rows = new Rows();
	ruleName = h("input", { type: "text", id: "things-rule", autocomplete: "off" });

	connectedCallback() {
		this.query.addEventListener("input", () => {
			clearTimeout(this.pause);
			this.pause = setTimeout(() => void this.find(true), PAUSE);
		});
		this.ruleName.addEventListener("keydown", (event) => event.key === "Enter" && this.add());
		put(
			this,
			this.help,
			h("h3", {}, said("page.categories")),
			h("p", { class: "help" }, said("page.categories_help")),
			this.rules,
			h(
				"div",
				{ class: "add" },
				h("label", { for: "things-rule" }, said("page.category_name")),
				h("div", { class: "press" }, this.ruleName, button(said("page.category_add"), () => this.add())),
			),
			this.others,
			h("h3", {}, said("page.things")),
			h("div", { class: "add" }, h("label", { for: "things-query" }, said("page.search_things")), this.query),
			this.count,
			this.rows,
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const now = JSON.stringify([store.choice.never_send, store.history]);
		put(this.help, store.fields.find((one) => one.kind === "things")?.help);
		if (fresh) this.query.value = "";
		if (fresh || now !== this.drawnFor) void this.find(fresh);
		this.drawnFor = now;
	}

	/** @returns {string[]} */
	get never() {
		return /** @type {string[]} */ (this.desk.store.choice.never_send ?? []);
	}

	/** @param {boolean} fresh */
	async find(fresh) {
		const store = this.desk.store.id;
		const query = this.query.value.trim();
		/** @param {number} offset @param {number} limit */
		const load = async (offset, limit) => {
			const page = await this.desk.ask(() =>
				this.desk.provider.things(store, { query, offset, limit }),
			);
			for (const one of page?.things ?? []) this.titles.set(one.item, one.title);
			return page;
		};
		const first = await load(0, 100);
		if (!first || store !== this.desk.store.id || query !== this.query.value.trim()) return;
		const none = query ? said("page.search_none", { query }) : said("page.things_empty");
		put(this.count, first.total ? said("page.things_total", { n: first.total }) : none);
		this.laws(first.categories);
		this.rows.hidden = first.total === 0;
		this.rows.show(
			{
				total: first.total,
				load: async (offset, limit) =>
					offset === 0 ? first.things : ((await load(offset, limit))?.things ?? null),
				draw: (thing) => this.line(thing),
				height: 5.25,
				label: said("page.things"),
			},
			fresh,
		);
	}

	/**
	 * The rules: a switch per category of hers; names that are none of them stand below.
	 * @param {Category[]} categories
	 */
	laws(categories) {
		const now = JSON.stringify([categories, this.never, this.titles.size]);
		if (now === this.lawsFor) return; // drawn anew while she presses it, a switch hears nothing
		this.lawsFor = now;
		/** @param {Category} one */
		const law = (one) => {
			const many = said("page.category_count", { n: one.count });
			const label = h("span", {}, one.name, " ", h("span", { class: "quiet" }, many, " · ", standing(one.on)));
			const rule = { "data-rule": one.name };
			return h("li", {}, toggle(label, one.on, (on, self) => void this.turn([one.name], on, self), rule));
		};
		put(this.rules, ...categories.map(law));
		const known = new Set(categories.map((one) => one.name));
		const others = this.never.filter((name) => !known.has(name));
		this.others.hidden = others.length === 0;
		put(
			this.advance,
			...others.map((rule) => {
				const name = this.titles.get(rule) || rule;
				const props = { class: "small", "aria-label": said("page.lift_name", { name }) };
				const lift = () => void this.turn([rule, name], true);
				return h("li", {}, h("span", {}, name), button(said("page.lift"), lift, props));
			}),
		);
	}

	add() {
		const name = this.ruleName.value.trim();
		if (!name) return;
		this.ruleName.value = "";
		void this.turn([name], false);
	}

	/** @param {Thing} thing */
	line(thing) {
		const name = thing.title || thing.item;
		const ruled = !thing.on && thing.by === "category";
		const names = [thing.item, ...(thing.former ?? []), thing.title];
		const rules = thing.categories.filter((one) => this.never.includes(one));
		const quiet = ruled
			? [said("page.thing_by_category", { name: rules })]
			: [standing(thing.on), " · ", () => about(thing)];
		return h(
			"div",
			{ class: "thing" },
			toggle(name, thing.on, (on, self) => ruled || void this.turn(names, on, self), {
				"aria-disabled": ruled && "true",
			}),
			h("span", { class: "quiet" }, ...quiet),
			button(said("page.remove"), () => void this.forget(thing), {
				class: "plain",
				"aria-label": said("page.remove_name", { name }),
			}),
		);
	}

	/**
	 * A rule is made or lifted, and holds at once.
	 * @param {string[]} names the first of which makes the rule
	 * @param {boolean} on
	 * @param {HTMLElement} [self]
	 */
	async turn(names, on, self) {
		if (self) set(self, "aria-checked", on);
		const { store, provider } = this.desk;
		const done = await this.desk.act(() => {
			const rest = this.never.filter((name) => !names.includes(name));
			return provider.choose(store.id, { never_send: on ? rest : [...rest, names[0]] });
		}, said(on ? "page.thing_may" : "page.thing_never", { name: names.at(-1) || names[0] }));
		if (done) return;
		// The switch shows what she asked for, which did not come about.
		this.lawsFor = "";
		void this.find(false);
	}

	/** @param {Thing} thing */
	async forget(thing) {
		const name = thing.title || thing.item;
		if (!(await ask(said("page.remove_name", { name }), [said("erase.remove_before")], said("page.remove")))) return;
		const { store, provider } = this.desk;
		void this.desk.act(() => provider.remove(store.id, [thing.item]), said("erase.removed", { n: 1 }));
	}
}
customElements.define("sv-things", Things);

/** @param {boolean} on */
const standing = (on) => said(on ? "page.thing_on" : "page.thing_off");

/** @param {Thing} thing */
const about = (thing) =>
	[thing.when === null ? "" : day(thing.when), ...thing.categories].filter(Boolean).join(" · ");
