// Choices: moved, weighed as they move, and kept when she says so.

import { control } from "./controls.js";
import { Part } from "./desk.js";
import { button, h, put, technical } from "./dom.js";
import { Dots } from "./sv-dots.js";
import { said } from "./words.js";

const PAUSE = 250;

export class Choices extends Part {
	/** @type {Change} what she has moved and not kept */
	draft = {};
	base = "";
	choice = "";
	pause = 0;
	turn = 0;
	fields = h("div", { class: "fields" });
	weighed = h("div", { class: "weighed", "aria-live": "polite" });
	keep = button(said("page.keep"), () => void this.kept(), { class: "main" });
	undo = button(said("page.undo"), () => this.restart());
	unsaved = h("p", { class: "unsaved", role: "status" });
	taste = h("div", { class: "taste", "aria-live": "polite" });
	where = h("p");
	try = button(said("page.recommend_button"), () => void this.recommend());

	connectedCallback() {
		put(
			this,
			this.fields,
			this.weighed,
			h("div", { class: "press" }, this.keep, this.undo),
			this.unsaved,
			h("h3", {}, said("page.recommend")),
			this.where,
			this.try,
			this.taste,
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const base = JSON.stringify(store.fields.filter((field) => field.kind !== "things"));
		const choice = JSON.stringify(store.choice);
		put(this.where, ...asked(store));
		if (fresh) this.draft = {};
		if (fresh || base !== this.base) this.lay(store);
		if (fresh || choice !== this.choice) {
			put(this.taste);
			void this.weigh();
		}
		this.base = base;
		this.choice = choice;
	}

	/** @param {Store} store */
	lay(store) {
		put(
			this.fields,
			...store.fields
				.filter((field) => field.kind !== "things")
				.map((field) => {
					const value = field.name in this.draft ? this.draft[field.name] : field.value;
					return control(field, value, (now) => this.moved(field.name, now));
				}),
		);
		this.mark();
	}

	restart() {
		this.draft = {};
		this.lay(this.desk.store);
		void this.weigh();
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
		const away = store.kind === "owners";
		const change = !away && Object.keys(this.draft).length ? this.draft : null;
		this.try.disabled = true;
		put(this.taste, h("p", { class: "wait" }, said("page.working")));
		const recommend = () => this.desk.provider.recommend(store.id, change);
		const found = await (away ? this.desk.act(recommend) : this.desk.ask(recommend));
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

/**
 * Who is asked for recommendations: nobody, or whoever can make them.
 * @param {Store} store
 */
const asked = (store) =>
	store.kind === "owners"
		? [said("reads.orchestrator"), ": ", said("sees.ask_recommendation")]
		: [said("page.recommend_help")];

/** @param {string} key @param {Titles} found */
function titles(key, found) {
	const list = h("ol", {}, ...found.map((one) => h("li", {}, one.title || one.item)));
	return h("div", {}, h("h4", {}, said(key)), found.length ? list : h("p", {}, said("page.recommend_empty")));
}
