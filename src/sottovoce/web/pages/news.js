// The bar of news: what was done, for a while; what went wrong, until it is closed.

import { button, h, put } from "./dom.js";

const CALM = 8000;

export class Teller extends EventTarget {
	/** @param {Child} what @param {boolean} [trouble] */
	tell(what, trouble = false) {
		this.dispatchEvent(new CustomEvent("tell", { detail: { what, trouble } }));
	}
}

/**
 * The bar that shows the news of a teller.
 * @param {Teller} teller
 * @param {Child} label of the button that closes it
 */
export function news(teller, label) {
	const calm = h("p", { "aria-live": "polite" });
	const alarmed = h("p", { role: "alert" });
	const close = button(label, () => hush(), { class: "small" });
	const bar = h("div", { class: "told" }, calm, alarmed, close);
	let quiet = 0;

	function hush() {
		clearTimeout(quiet);
		// The places of what is said stay: a reader that speaks listens to them.
		close.hidden = true;
		bar.classList.add("silent");
		put(calm);
		put(alarmed);
	}

	teller.addEventListener("tell", (event) => {
		const { what, trouble } = /** @type {CustomEvent} */ (event).detail;
		hush();
		close.hidden = false;
		bar.classList.remove("silent");
		put(trouble ? alarmed : calm, what);
		if (!trouble) quiet = setTimeout(hush, CALM);
	});
	hush();
	return bar;
}
