// The terms: what holds, what held before, what waits, and new items.

import { confirm } from "./op-act.js";
import { many, when } from "./op-draw.js";
import { part, sentence } from "./op-now.js";
import { button, h, put } from "./dom.js";
import { View } from "./watch.js";

export class TermsView extends View {
	waits = h("div", {});
	settings = h("dl", { class: "settings" });
	digest = h("p", { class: "help" });
	history = h("ol", { class: "versions" });
	deeds = h("div", { class: "press" });

	connectedCallback() {
		put(
			this,
			part("waiting", "Changes that wait", this.waits, this.deeds),
			part("terms", "Terms in force", this.digest, this.settings),
			part("history", "Earlier terms", this.history),
		);
	}

	/** @override @param {ConsoleState} state */
	show(state) {
		if (this.moved(state.terms, state.amendment, this.watch.acts)) void this.read();
	}

	async read() {
		const found = await this.watch.ask("terms");
		if (!found) return;
		put(this.digest, "Digest ", h("code", {}, found.digest));
		put(this.settings, ...found.settings.flatMap((/** @type {{setting: string, value: string}} */ one) => [h("dt", {}, one.setting), h("dd", {}, one.value)]));
		put(
			this.history,
			...found.history.map((/** @type {TermsLine} */ one) =>
				h(
					"li",
					{},
					h(
						"div",
						{ class: "about" },
						h("p", {}, h("span", { class: "strong" }, one.who ? `From round ${many(one.round)} on` : "At the beginning"), h("span", { class: "quiet" }, one.who ? ` proposed by ${one.who}, in force since ${when(one.at)}` : "", " ", h("code", {}, one.digest.slice(0, 12)))),
						difference(one.changes),
					),
				),
			),
			found.history.length === 0 && h("li", {}, "These are the first terms."),
		);
		const waits = found.amendment;
		put(
			this.waits,
			waits
				? h(
						"div",
						{ class: "objection" },
						h("p", { class: "strong" }, `${waits.who} proposed this ${when(waits.at)}.`),
						difference(waits.changes),
						h("p", {}, waits.waits ? sentence(waits.waits) : waits.state === "ready" ? "It comes into force when the open round has ended." : "The others who keep terms of their own are being asked."),
						waits.do ? h("p", {}, sentence(waits.do)) : null,
					)
				: h("p", {}, "Nothing waits."),
		);
		put(
			this.deeds,
			this.watch.acts && !waits && button("Add items…", () => void this.propose(), { "data-deed": "propose" }),
			this.watch.acts && waits && button("Withdraw…", () => void this.withdraw(), { "data-deed": "withdraw" }),
		);
	}

	propose() {
		return confirm(this.watch, {
			path: "propose",
			title: "Add items",
			says: ["They take places to spare if there are enough: then they are there at once. Otherwise the terms change with them, between two rounds, and devices are asked to agree."],
			fields: { items: { label: "Items as CSV", kind: "area", value: "item,title,categories\n", help: "A line for each, with the columns item and, if you like, title and categories (with | between them)." } },
			yes: "Propose",
			body: ({ items }) => ({ items }),
			done: async (response) => {
				const found = await response.json();
				if (found.changed === false) return "Nothing was changed: these items are there already.";
				return found.digest ? "The new items wait for the next round." : "The new items are published.";
			},
		});
	}

	withdraw() {
		return confirm(this.watch, {
			path: "withdraw",
			title: "Withdraw what waits?",
			says: ["The terms stay as they are."],
			yes: "Withdraw",
			body: () => ({}),
			done: async () => "Nothing waits any more.",
		});
	}
}
customElements.define("op-terms", TermsView);

/** @param {[string, unknown, unknown][]} changes */
const difference = (changes) =>
	changes.length ? h("ul", { class: "quiet" }, ...changes.map(([name, before, after]) => h("li", {}, `${name}: ${before ?? "–"} → ${after ?? "–"}`))) : null;
