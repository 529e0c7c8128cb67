// Choices: she moves them, sees what that means, and keeps them.

import { control } from "./controls.js";
import { Part } from "./desk.js";
import { button, h, put, technical } from "./dom.js";
import { Dots } from "./sv-dots.js";
import { said } from "./words.js";

const PAUSE = 250;

export class Choices extends Part {
	/** @type {Change} what is shown and not stored */
	draft = {};
	/** @type {Set<string>} fields that show something that cannot be kept */
	wrong = new Set();
	/** @type {Change | null} what is being kept now */
	keeping = null;
	/** @type {Map<string, {base: string, shown: string, stored: unknown, place: HTMLElement}>} the fields as they are laid out */
	laid = new Map();
	basis = "";
	pause = 0;
	turn = 0;
	fields = h("div", { class: "fields" });
	weighed = h("div", { class: "weighed", "aria-live": "polite" });
	keep = button(said("page.keep"), () => void this.kept(), { class: "main", "aria-describedby": "unsaved" });
	undo = button(said("page.undo"), () => this.restart());
	unsaved = h("p", { class: "unsaved", id: "unsaved", role: "status" });
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
		const basis = JSON.stringify([store.choice, store.history]);
		put(this.where, ...asked(store));
		if (fresh) this.forget();
		this.lay(store);
		if (fresh || basis !== this.basis) {
			put(this.taste);
			void this.weigh();
		}
		this.basis = basis;
	}

	/** Forget what was moved: all fields are laid out again. */
	forget() {
		this.draft = {};
		this.keeping = null;
		this.wrong.clear();
		this.laid.clear();
	}

	/**
	 * Show the draft, and the stored value of every other field. A field that shows the right value
	 * already stays as it is, because she may be writing in it.
	 * @param {Store} store
	 */
	lay(store) {
		const fields = store.fields.filter((field) => field.kind !== "things");
		const laid = new Map();
		for (const field of fields) {
			const { name, value } = field;
			const old = this.laid.get(name);
			if (old && name in this.draft && Array.isArray(value) && JSON.stringify(old.stored) !== JSON.stringify(value)) {
				// Names that were added to a list or dropped from it elsewhere are so in the draft, too.
				this.draft[name] = listAfter(value, difference(old.stored, this.draft[name]));
			}
			// A draft that equals what is stored is none; during Keep, that is not decided yet.
			if (!this.keeping && JSON.stringify(this.draft[name]) === JSON.stringify(value)) delete this.draft[name];
			const now = name in this.draft ? this.draft[name] : value;
			const base = JSON.stringify({ ...field, value: null });
			if (old?.base !== base) this.wrong.delete(name);
			const shown = this.wrong.has(name) ? "" : JSON.stringify(now);
			const place = old?.place ?? h("div");
			if (old?.base !== base || old.shown !== shown) put(place, control(field, now, (...made) => this.moved(name, ...made)));
			laid.set(name, { base, shown, stored: value, place });
		}
		for (const name of [...Object.keys(this.draft), ...this.wrong]) {
			if (laid.has(name)) continue;
			delete this.draft[name]; // the federation does not ask for it any more
			this.wrong.delete(name);
		}
		if ([...laid.keys()].join() !== [...this.laid.keys()].join()) put(this.fields, ...[...laid.values()].map((one) => one.place));
		this.laid = laid;
		this.mark();
	}

	restart() {
		this.forget();
		this.lay(this.desk.store);
		void this.weigh();
	}

	/** @param {string} name @param {unknown} value @param {Said | null} [wrong] */
	moved(name, value, wrong = null) {
		if (wrong) {
			this.wrong.add(name);
			delete this.draft[name];
			this.turn += 1;
			put(this.weighed); // it was about a choice that is not shown any more
		} else {
			this.wrong.delete(name);
			this.draft[name] = value;
		}
		const laid = this.laid.get(name);
		if (laid) laid.shown = wrong ? "" : JSON.stringify(value);
		put(this.taste);
		this.lay(this.desk.store);
		clearTimeout(this.pause);
		this.pause = setTimeout(() => void this.weigh(), PAUSE);
	}

	mark() {
		const [moved, wrong] = [Object.keys(this.draft).length > 0, this.wrong.size > 0];
		this.keep.disabled = this.keeping !== null || wrong || !moved;
		this.undo.disabled = this.keeping !== null || !(moved || wrong);
		put(this.unsaved, (this.keeping || wrong || moved) && said(`page.${this.keeping ? "working" : wrong ? "cannot_keep" : "unsaved"}`));
	}

	async weigh() {
		if (this.wrong.size > 0) return;
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
		const keeping = (this.keeping = { ...this.draft });
		// Of a list only what she moved: others may have changed it since this page was drawn.
		const change = Object.fromEntries(
			Object.entries(keeping).map(([name, value]) => [
				name,
				Array.isArray(value) ? difference(this.laid.get(name)?.stored, value) : value,
			]),
		);
		this.mark();
		const done = await this.desk.act(() => this.desk.provider.choose(store.id, change), said("page.saved"));
		if (this.keeping !== keeping) return; // another store is shown
		this.keeping = null;
		for (const name of done ? Object.keys(keeping) : []) {
			if (this.draft[name] === keeping[name]) delete this.draft[name]; // later moves stay
		}
		this.lay(this.desk.store);
	}

	async recommend() {
		const store = this.desk.store;
		const away = store.kind === "owners";
		const change = !away && !this.keep.disabled ? this.draft : null;
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

/** @param {unknown} list @returns {unknown[]} */
const names = (list) => (Array.isArray(list) ? list : []);

/** What was added to a list and dropped from it. @param {unknown} before @param {unknown} after */
function difference(before, after) {
	const [one, other] = [names(before), names(after)];
	return { add: other.filter((name) => !one.includes(name)), drop: one.filter((name) => !other.includes(name)) };
}

/** @param {unknown[]} list @param {{add: unknown[], drop: unknown[]}} change */
const listAfter = (list, { add, drop }) => [...new Set([...list.filter((name) => !drop.includes(name)), ...add])];

/** Who is asked for recommendations: nobody, or whoever can make them. @param {Store} store */
const asked = (store) =>
	store.kind === "owners"
		? [said("reads.orchestrator"), ": ", said("sees.ask_recommendation")]
		: [said("page.recommend_help")];

/** @param {string} key @param {Titles} found */
function titles(key, found) {
	const list = h("ol", {}, ...found.map((one) => h("li", {}, one.title || one.item)));
	return h("div", {}, h("h4", {}, said(key)), found.length ? list : h("p", {}, said("page.recommend_empty")));
}
