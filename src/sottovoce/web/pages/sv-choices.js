// Choices: moved, weighed as they move, and kept when she says so.

import { control } from "./controls.js";
import { Part } from "./desk.js";
import { button, h, put, technical } from "./dom.js";
import { Dots } from "./sv-dots.js";
import { said } from "./words.js";

const PAUSE = 250;

export class Choices extends Part {
	/** @param {import("./desk.js").Desk} desk */
	constructor(desk) {
		super(desk);
		/** @type {Change} what she has moved and not kept */
		this.draft = {};
		this.base = "";
		this.pause = 0;
		this.turn = 0;
		this.fields = h("div", { class: "fields" });
		this.weighed = h("div", { class: "weighed", "aria-live": "polite" });
		this.keep = button(said("page.keep"), () => void this.kept(), { class: "main" });
		this.undo = button(said("page.undo"), () => this.restart());
		this.unsaved = h("p", { class: "unsaved", role: "status" });
		this.taste = h("div", { class: "taste", "aria-live": "polite" });
		this.try = button(said("page.recommend_button"), () => void this.recommend());
	}

	connectedCallback() {
		put(
			this,
			this.fields,
			this.weighed,
			h("div", { class: "press" }, this.keep, this.undo),
			this.unsaved,
			h("h3", {}, said("page.recommend")),
			h("p", {}, said("page.recommend_help")),
			this.try,
			this.taste,
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const base = JSON.stringify([store.fields, store.choice]);
		if (fresh) this.draft = {};
		if (fresh || base !== this.base) {
			this.base = base;
			this.lay(store);
			put(this.taste);
		}
	}

	/** @param {Store} store */
	lay(store) {
		const focused = document.activeElement?.closest("[data-field]")?.getAttribute("data-field");
		put(
			this.fields,
			...store.fields
				.filter((field) => field.kind !== "things")
				.map((field) => {
					const value = field.name in this.draft ? this.draft[field.name] : field.value;
					return control(field, value, (now) => this.moved(field.name, now));
				}),
		);
		const again = focused && this.fields.querySelector(`[data-field="${CSS.escape(focused)}"] :is(button, input)`);
		if (again instanceof HTMLElement) again.focus();
		this.mark();
		void this.weigh();
	}

	restart() {
		this.draft = {};
		this.lay(this.desk.store);
	}

	/** @param {string} name @param {unknown} value */
	moved(name, value) {
		this.draft[name] = value;
		const field = this.desk.store.fields.find((one) => one.name === name);
		if (JSON.stringify(field?.value) === JSON.stringify(value)) delete this.draft[name];
		this.mark();
		clearTimeout(this.pause);
		this.pause = setTimeout(() => void this.weigh(), PAUSE);
	}

	mark() {
		const moved = Object.keys(this.draft).length > 0;
		this.keep.disabled = this.undo.disabled = !moved;
		put(this.unsaved, moved && said("page.unsaved"));
	}

	async weigh() {
		const turn = (this.turn += 1);
		const store = this.desk.store;
		const weighed = await this.desk.ask(() => this.desk.provider.weigh(store.id, this.draft));
		if (!weighed || turn !== this.turn) return;
		this.weighed.className = `weighed ${weighed.verdict}`;
		let dots = null;
		if (weighed.odds) {
			dots = new Dots();
			dots.show((weighed.odds.right / weighed.odds.of) * 100, 50, weighed.odds.said);
		}
		put(
			this.weighed,
			dots,
			...weighed.said.map((one) => h("p", {}, one)),
			weighed.objection && h("p", { class: "objection" }, weighed.objection),
			technical(weighed.technical),
		);
	}

	async kept() {
		const { store } = this.desk;
		const change = this.draft;
		const done = await this.desk.act(
			() => this.desk.provider.choose(store.id, change),
			said("page.saved"),
		);
		if (!done) return;
		this.draft = {};
		this.mark();
	}

	async recommend() {
		const store = this.desk.store;
		const change = Object.keys(this.draft).length ? this.draft : null;
		this.try.disabled = true;
		put(this.taste, h("p", { class: "wait" }, said("page.working")));
		const found = await this.desk.ask(() => this.desk.provider.recommend(store.id, change));
		this.try.disabled = false;
		if (store.id !== this.desk.store.id) return;
		put(
			this.taste,
			found &&
				h(
					"div",
					{ class: "columns" },
					titles("page.recommend_now", found.now),
					found.after && titles("page.recommend_after", found.after),
				),
			found?.after &&
				JSON.stringify(found.now) === JSON.stringify(found.after) &&
				h("p", {}, said("page.recommend_same")),
		);
	}
}
customElements.define("sv-choices", Choices);

/** @param {string} key @param {Titles} found */
function titles(key, found) {
	const list = h("ol", {}, ...found.map((one) => h("li", {}, one.title || one.item)));
	return h("div", {}, h("h4", {}, said(key)), found.length ? list : h("p", {}, said("page.recommend_empty")));
}
