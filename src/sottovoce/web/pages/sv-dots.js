// Odds as 100 dots: what a coin gets right, what is got right beyond it, and the rest.

import { drawing, h, put } from "./dom.js";
import { said } from "./words.js";

export class Dots extends HTMLElement {
	/**
	 * @param {number} right out of 100
	 * @param {number} chance right out of 100 by guessing
	 * @param {Said | null} sentence the same in words
	 */
	show(right, chance, sentence) {
		const high = Math.round(right);
		const low = Math.min(high, Math.round(chance));
		/** @type {[string, Record<string, number | string>][]} */
		const dots = [];
		for (let at = 0; at < 100; at += 1) {
			const kind = at < low ? "coin" : at < high ? "beyond" : "wrong";
			dots.push([
				"circle",
				{ cx: (at % 10) * 12 + 6, cy: Math.floor(at / 10) * 12 + 6, r: 4.4, class: kind },
			]);
		}
		put(
			this,
			drawing("0 0 120 120", "dots", dots),
			h(
				"div",
				{ class: "odds" },
				sentence && h("p", { class: "strong" }, sentence),
				h(
					"ul",
					{ class: "legend" },
					h("li", { class: "coin" }, chance === 50 ? said("odds.dots_chance", { n: low }) : said("learn.by_chance", { chance: low })),
					high > low && h("li", { class: "beyond" }, said("odds.dots_beyond", { n: high - low })),
					h("li", { class: "wrong" }, said("odds.dots_wrong", { n: 100 - high })),
				),
			),
		);
	}
}
customElements.define("sv-dots", Dots);
