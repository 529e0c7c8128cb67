// Where she stands: one sentence, why nothing leaves if so, and what waits for her.

import { Part } from "./desk.js";
import { h, put } from "./dom.js";
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
			store.busy && h("p", { class: "objection" }, store.busy),
			store.printed && h("p", { class: "objection printed" }, said("page.printed")),
			waiting &&
				h("p", { class: "objection" }, said(store.terms?.changes.length ? "terms.changed" : "terms.not_agreed"), " ", h("a", { href: "#terms" }, said("page.terms"))),
			h(
				"dl",
				{ class: "facts" },
				...[
					["page.address", store.address],
					["page.folder", store.name],
				].flatMap(([key, value]) =>
					key && value ? [h("dt", {}, said(key)), h("dd", {}, value)] : [],
				),
				h("dt", {}, said("page.things")),
				h(
					"dd",
					{},
					said("page.things_total", { n: store.history.items }),
					...["off", "unknown"].flatMap((name) => {
						const n = name === "off" ? store.history.off : store.history.unknown;
						return n ? [". ", said(`page.history_${name}`, { n })] : [];
					}),
				),
			),
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
