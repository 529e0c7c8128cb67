// Where she stands: one sentence, why nothing leaves if so, and what waits for her.

import { Part } from "./desk.js";
import { facts, h, put } from "./dom.js";
import { said } from "./words.js";

export class Stands extends Part {
	/** @override @param {Store} store */
	draw(store) {
		const waiting = store.terms && !store.terms.agreed;
		put(
			this,
			h("p", { class: "stands" }, store.stands),
			store.quiet && h("p", {}, store.quiet),
			store.meter && meter(store.meter),
			store.printed && h("p", { class: "objection printed" }, said("page.printed")),
			waiting &&
				h("p", { class: "objection" }, said(store.terms?.changes.length ? "terms.changed" : "terms.not_agreed"), " ", h("a", { href: "#terms" }, said("page.terms"))),
			facts([
				["page.address", store.address],
				["page.folder", store.name],
				["page.things", h("span", {}, ...things(store.history))],
			]),
		);
	}
}
customElements.define("sv-stands", Stands);

/** @param {NonNullable<Store["meter"]>} known */
function meter(known) {
	return h(
		"div",
		{ class: "meter" },
		h("p", {}, known.said),
		known.limit !== null &&
			h("progress", { value: known.spent, max: known.limit, "aria-label": known.said }),
	);
}

/** @param {Store["history"]} history */
const things = ({ items, off, unknown }) => [
	said("page.things_total", { n: items }),
	off > 0 && ". ",
	off > 0 && said("page.history_off", { n: off }),
	unknown > 0 && " ",
	unknown > 0 && said("page.history_unknown", { n: unknown }),
];
