// Terms: who runs what; a change is shown as a difference, and waits for her.

import { plain } from "./controls.js";
import { Part } from "./desk.js";
import { button, h, more, put } from "./dom.js";
import { readers } from "./sv-preview.js";
import { said } from "./words.js";

export class Terms extends Part {
	/** @override @param {Store} store */
	draw(store) {
		const terms = store.terms;
		put(
			this,
			...(terms
				? [
						h("div", { class: terms.agreed ? "" : "ask" }, ...this.question(store, terms)),
						...terms.said.map((one) => h("p", {}, one)),
					]
				: [
						h("p", {}, said("terms.none")),
						h("div", { class: "press" }, this.asking(store)),
					]),
			store.readers.length > 0 && h("h3", {}, said("page.readers")),
			readers(store.readers),
			terms && terms.settings.length > 0 && more(said("terms.technical"), settings(terms)),
		);
	}

	/** @param {Store} store */
	asking(store) {
		const ask = button(
			said("terms.ask"),
			() => void this.desk.act(() => this.desk.provider.preview(store.id)),
			{ class: "main" },
		);
		ask.disabled = store.stopped || store.kind !== "devices";
		return ask;
	}

	/** @param {Store} store @param {Agreement} terms */
	question(store, terms) {
		if (terms.agreed) return [h("p", { class: "strong" }, said("terms.agreed"))];
		const changed = terms.changes.length > 0;
		return [
			h("p", { class: "strong" }, said(changed ? "terms.changed" : "terms.not_agreed")),
			changed && changes(terms),
			h(
				"div",
				{ class: "press" },
				button(
					said("terms.agree"),
					() =>
						void this.desk.act(
							() => this.desk.provider.agree(store.id, terms.digest),
							said("terms.agreed"),
						),
					{ class: "main" },
				),
			),
		];
	}
}
customElements.define("sv-terms", Terms);

/** @param {Agreement} terms */
const changes = (terms) =>
	h(
		"ul",
		{ class: "changes" },
		...terms.changes.map((one) =>
			h(
				"li",
				{},
				one.said && h("p", {}, one.said),
				h(
					"p",
					{ class: "difference" },
					h("span", { class: "quiet" }, `${one.setting}: `),
					h("del", {}, h("span", { class: "unseen" }, said("terms.before"), " "), () => plain(one.before)),
					" → ",
					h("ins", {}, h("span", { class: "unseen" }, said("terms.after"), " "), () => plain(one.after)),
				),
			),
		),
	);

/** @param {Agreement} terms */
const settings = (terms) =>
	h(
		"dl",
		{ class: "settings" },
		...terms.settings.flatMap((one) => [h("dt", {}, one.name), h("dd", {}, () => plain(one.value))]),
	);
