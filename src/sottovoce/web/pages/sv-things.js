// Never send: a switch for each thing of hers and rules by category, which hold at once.

import { Part } from "./desk.js";
import { button, h, more, put, toggle } from "./dom.js";
import { ask } from "./sv-confirm.js";
import { Rows } from "./sv-list.js";
import { day, said } from "./words.js";

const PAUSE = 200;

export class Things extends Part {
	pause = 0;
	asked = 0;
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
	/** @type {Map<string, {on: boolean}>} what was pressed and is not stored yet */
	wanted = new Map();
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
		if (fresh) {
			this.query.value = "";
			this.wanted.clear();
		}
		if (fresh || now !== this.drawnFor) void this.find(fresh);
		this.drawnFor = now;
	}

	get never() {
		return never(this.desk.store);
	}

	/** @param {string} name @param {boolean} on as it is stored */
	shown(name, on) {
		return this.wanted.get(name)?.on ?? on;
	}

	/** @param {boolean} fresh */
	async find(fresh) {
		const [store, turn] = [this.desk.store.id, (this.asked += 1)];
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
		if (!first || turn !== this.asked) return;
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
		if (now === this.lawsFor) return; // a switch that is replaced while she presses it misses the click
		this.lawsFor = now;
		/** @param {Category} one */
		const law = (one) => {
			const many = said("page.category_count", { n: one.count });
			const quiet = h("span", { class: "quiet" });
			/** @param {boolean} on */
			const stand = (on) => put(quiet, many, " · ", standing(on));
			const on = this.shown(one.name, one.on);
			stand(on);
			const turn = (/** @type {boolean} */ now) => {
				stand(now);
				void this.turn([one.name], now);
			};
			return h("li", {}, toggle(h("span", {}, one.name, " ", quiet), on, turn, { "data-rule": one.name }));
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
		const quiet = h("span", { class: "quiet" }, ruled && said("page.thing_by_category", { name: rules }));
		/** @param {boolean} on */
		const stand = (on) => ruled || put(quiet, standing(on), " · ", () => about(thing));
		const on = this.shown(thing.item, thing.on);
		stand(on);
		const turn = (/** @type {boolean} */ now) => {
			stand(now);
			void this.turn(names, now);
		};
		return h(
			"div",
			{ class: "thing" },
			toggle(name, on, turn, { "aria-disabled": ruled || null }),
			quiet,
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
	 */
	async turn(names, on) {
		const { store, provider } = this.desk;
		const [name, want] = [names[0] ?? "", { on }];
		this.wanted.set(name, want);
		// Only what she pressed changes: another page or a command may have made rules meanwhile.
		const rules = { drop: names, add: on ? [] : [name] };
		const done = await this.desk.act(
			() => provider.choose(store.id, { never_send: rules }),
			said(on ? "page.thing_may" : "page.thing_never", { name: names.at(-1) || name }),
		);
		if (this.wanted.get(name) === want) this.wanted.delete(name);
		if (done) return;
		// The switch shows what she asked for, which was not stored: draw it again.
		this.drawnFor = this.lawsFor = "";
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

/** @param {Store} store */
const never = (store) => /** @type {string[]} */ (store.choice.never_send ?? []);

/** @param {boolean} on */
const standing = (on) => said(on ? "page.thing_on" : "page.thing_off");

/** @param {Thing} thing */
const about = (thing) =>
	[thing.when === null ? "" : day(thing.when), ...thing.categories].filter(Boolean).join(" · ");
