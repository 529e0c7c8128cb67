// Stop and delete. What cannot be undone is said before.

import { Part } from "./desk.js";
import { button, h, put } from "./dom.js";
import { ask } from "./sv-confirm.js";
import { said } from "./words.js";

export class Stop extends Part {
	/** @override @param {Store} store */
	draw(store) {
		const several = (this.desk.state?.stores.length ?? 0) > 1;
		const { provider } = this.desk;
		/** @param {string | null} which @param {boolean} everything */
		const stop = (which, everything) => {
			const done = said(everything ? "stop.done_everything" : "stop.done");
			void this.desk.act(() => provider.stop(which, everything), done);
		};
		const start = () => void this.desk.act(() => provider.start(store.id), said("stop.started"));
		const summed = store.kind === "devices" && !store.printed;
		put(
			this,
			h("h3", {}, said("stop.head")),
			h("p", {}, said(summed && store.contributions > 0 ? "stop.before_sum" : "stop.before")),
			store.stopped && deed("silence", "stop.start", null, start),
			!store.stopped && deed("stop", "stop.now", "stop.help", () => stop(store.id, false), !store.takes_part),
			!store.stopped &&
				deed("silence", "stop.everything", "stop.everything_help", () => stop(store.id, true)),
			several && deed("silence-all", "page.stop_all", "stop.everything_help", () => stop(null, true)),
			h("h3", {}, said("erase.head")),
			h("ul", { class: "help" }, ...undone(store, "everything").map((one) => h("li", {}, one))),
			deed("history", "erase.history", "erase.history_help", () => void this.erase(store, "history"), store.history.items === 0),
			deed("everything", "erase.everything", "erase.everything_help", () => void this.erase(store, "everything")),
		);
	}

	/** @param {Store} store @param {"history" | "everything"} what */
	async erase(store, what) {
		const done = what === "history" ? said("erase.done_history", { n: store.history.items }) : said("erase.done_everything");
		if (!(await ask(said("erase.sure"), undone(store, what), said(`erase.${what}`), said("erase.word")))) return;
		void this.desk.act(() => this.desk.provider.erase(store.id, what), done);
	}
}
customElements.define("sv-stop", Stop);

/** What cannot be undone. @param {Store} store @param {"history" | "everything"} what */
function undone(store, what) {
	const left = store.contributions > 0;
	return [
		said("erase.before"),
		...(left && store.kind !== "owners" ? [said(store.printed ? "stop.before" : "erase.before_sum")] : []),
		...(left && store.kind === "owners" ? [said("erase.before_owners")] : []),
		...(left && what === "everything" ? [said("erase.before_ledger")] : []),
		...(store.meter && what === "everything" ? [said("erase.before_limit")] : []),
		...(what === "everything" ? [said("erase.before_copies")] : []),
	];
}

/**
 * A button, and what it does.
 * @param {string} name
 * @param {string} key
 * @param {string | null} help
 * @param {() => void} press
 * @param {boolean} [off]
 */
function deed(name, key, help, press, off = false) {
	const id = `deed-${name}`;
	return h(
		"div",
		{ class: "deed" },
		help && h("p", { id }, said(help)),
		button(said(key), press, { "data-deed": name, "aria-describedby": help && id, disabled: off }),
	);
}
