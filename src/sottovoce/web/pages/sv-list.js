// A list of any length: only what is seen is drawn, and asked for then.

import { h, put, set } from "./dom.js";

const PAGE = 100;
const BEYOND = 6;
const CONTROLS = "button, input, a[href]";

/** @template T */
export class Rows extends HTMLElement {
	/** @type {Source<T> | null} */
	source = null;
	/** @type {Map<number, T>} */
	known = new Map();
	/** @type {Set<number>} pages that were asked for */
	asked = new Set();
	/** @type {Map<number, {element: HTMLElement, of: T | null}>} */
	drawn = new Map();
	room = h("div", { class: "room" });

	constructor() {
		super();
		this.addEventListener("scroll", () => this.fill());
		this.addEventListener("keydown", (event) => this.walk(event));
		new ResizeObserver(() => this.fill()).observe(this);
	}

	/**
	 * Other rows, or the same ones after a change: those stay until they are known anew.
	 * @param {Source<T>} source
	 * @param {boolean} [fresh] the old rows, and the place among them, mean nothing any more
	 */
	show(source, fresh = true) {
		this.source = source;
		this.known.clear();
		this.asked = new Set();
		this.tabIndex = 0;
		set(this, "role", "group");
		set(this, "aria-label", source.label);
		set(this.room, "role", source.head ? "rowgroup" : "list");
		if (fresh) {
			this.drawn.clear();
			put(this.room);
			const table = { role: "table", "aria-label": source.label, "aria-rowcount": source.total + 1 };
			put(this, source.head ? h("div", table, source.head, this.room) : this.room);
			this.scrollTop = 0;
		}
		this.fill();
	}

	/** What can be seen is drawn, and what cannot is let go. */
	fill() {
		const source = this.source;
		if (!source) return;
		const high = source.height * parseFloat(getComputedStyle(document.documentElement).fontSize);
		this.room.style.height = `${source.total * high}px`;
		const first = Math.max(0, Math.floor(this.scrollTop / high) - BEYOND);
		const seen = Math.ceil((this.scrollTop + this.clientHeight) / high);
		const last = Math.min(source.total, seen + BEYOND);
		for (const [at, { element }] of this.drawn) {
			const focused = element.contains(document.activeElement) && at < source.total;
			if ((at >= first && at < last) || focused) continue;
			element.remove();
			this.drawn.delete(at);
		}
		for (let at = first; at < last; at += 1) this.place(source, at, high);
		for (let page = Math.floor(first / PAGE); page * PAGE < last; page += 1) {
			void this.ask(source, page);
		}
	}

	/** @param {Source<T>} source @param {number} at @param {number} high */
	place(source, at, high) {
		const row = this.known.get(at) ?? null;
		const old = this.drawn.get(at);
		if (old && (row === null || old.of === row)) return;
		const element = row === null ? h("div", { class: "waiting" }) : source.draw(row, at);
		element.classList.add("row");
		element.style.top = `${at * high}px`;
		element.style.height = `${high}px`;
		set(element, "role", source.head ? "row" : "listitem");
		set(element, source.head ? "aria-rowindex" : "aria-posinset", at + (source.head ? 2 : 1));
		if (!source.head) set(element, "aria-setsize", source.total);
		this.drawn.set(at, { element, of: row });
		if (old) {
			const held = [...old.element.querySelectorAll(CONTROLS)].findIndex(
				(one) => one === document.activeElement,
			);
			old.element.replaceWith(element);
			if (held >= 0) controls(element)[held]?.focus({ preventScroll: true });
		} else {
			// In order, since the keyboard and a reader go by it.
			const later = [...this.drawn.keys()].filter((one) => one > at);
			const next = later.length ? this.drawn.get(Math.min(...later)) : null;
			this.room.insertBefore(element, next?.element ?? null);
		}
	}

	/** @param {Source<T>} source @param {number} page */
	async ask(source, page) {
		if (this.asked.has(page)) return;
		this.asked.add(page);
		const rows = await source.load(page * PAGE, PAGE);
		if (this.source !== source) return;
		if (rows === null) this.asked.delete(page);
		else rows.forEach((row, at) => this.known.set(page * PAGE + at, row));
		if (rows !== null) this.fill();
	}

	/** Up and down go to the same control of the next row. @param {KeyboardEvent} event */
	walk(event) {
		const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
		if (!step || event.target === this) return;
		for (const [at, { element }] of this.drawn) {
			const held = controls(element).findIndex((one) => one === event.target);
			const next = this.drawn.get(at + step);
			if (held < 0 || !next) continue;
			event.preventDefault();
			controls(next.element)[held]?.focus();
			return;
		}
	}
}
customElements.define("sv-list", Rows);

/** @param {HTMLElement} row */
const controls = (row) => [...row.querySelectorAll(CONTROLS)].map((one) => /** @type {HTMLElement} */ (one));
