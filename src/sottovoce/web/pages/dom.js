// Elements whose words follow the language: what they say is remembered, and said anew.

import { isSaid, said, say, visible } from "./words.js";

/** @type {WeakMap<Node, () => string>} */
const texts = new WeakMap();
/** @type {WeakMap<Element, Map<string, Said>>} */
const labels = new WeakMap();

/**
 * An element. Handlers are `onclick`, sentences are `Said`; a function is text that follows the
 * language.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [props]
 * @param {...Child} children
 */
export function h(tag, props = {}, ...children) {
	const element = document.createElement(tag);
	for (const [name, value] of Object.entries(props)) set(element, name, value);
	element.append(...nodes(children));
	return element;
}

/** @param {Element} element @param {string} name @param {unknown} value */
export function set(element, name, value) {
	labels.get(element)?.delete(name);
	if (typeof value === "function") {
		element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
	} else if (isSaid(value)) {
		const known = labels.get(element) ?? new Map();
		labels.set(element, known.set(name, value));
		element.setAttribute(name, say(value));
	} else if (typeof value === "boolean" && name.startsWith("aria-")) {
		element.setAttribute(name, String(value)); // an empty or missing attribute has another meaning
	} else if (value === false || value === null || value === undefined) {
		element.removeAttribute(name);
	} else {
		element.setAttribute(name, value === true ? "" : String(value));
	}
}

/** Replace what is inside an element. @param {Element} element @param {...Child} children */
export function put(element, ...children) {
	const held = focused(element);
	element.replaceChildren(...nodes(children));
	const again = held && element.querySelector(`${held}:enabled, ${held} :enabled`);
	if (again instanceof HTMLElement) again.focus();
}

/** A selector for what has the focus, so that it can get the focus again after it was redrawn. @param {Element} element */
function focused(element) {
	const now = document.activeElement;
	if (!now || !element.contains(now)) return "";
	for (const name of ["data-store", "data-rule", "data-deed", "data-field"]) {
		const value = now.closest(`[${name}]`)?.getAttribute(name);
		if (value) return `[${name}="${CSS.escape(value)}"]`;
	}
	return "";
}

/** @param {Child[]} children */
function nodes(children) {
	const found = [];
	for (const child of children) {
		if (child instanceof Node) found.push(child);
		else if (typeof child === "string") found.push(document.createTextNode(visible(child)));
		else if (typeof child === "function") found.push(bound(child));
		else if (child) found.push(bound(() => say(child)));
	}
	return found;
}

/** @param {() => string} text */
function bound(text) {
	const node = document.createTextNode(text());
	texts.set(node, text);
	return node;
}

/** All that the page says is said anew, after the language has changed. */
export function sayAnew() {
	const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ALL);
	for (let node = walker.nextNode(); node; node = walker.nextNode()) {
		const text = texts.get(node);
		if (text) node.nodeValue = text();
		if (!(node instanceof Element)) continue;
		for (const [name, what] of labels.get(node) ?? []) node.setAttribute(name, say(what));
	}
}

/**
 * A drawing, for eyes alone: the words stand beside it.
 * @param {string} box
 * @param {string} name
 * @param {Shape[]} shapes
 */
export function drawing(box, name, shapes) {
	const space = "http://www.w3.org/2000/svg";
	const svg = document.createElementNS(space, "svg");
	set(svg, "viewBox", box);
	set(svg, "class", name);
	if (name === "line") set(svg, "preserveAspectRatio", "none");
	set(svg, "aria-hidden", "true");
	for (const [shape, props, words] of shapes) {
		const element = document.createElementNS(space, shape);
		for (const [key, value] of Object.entries(props)) set(element, key, value);
		if (words && shape !== "text") element.append(document.createElementNS(space, "title"));
		if (words) (element.firstElementChild ?? element).textContent = words;
		svg.append(element);
	}
	return svg;
}

/** @param {Child} label @param {() => void} press @param {Record<string, unknown>} [props] */
export const button = (label, press, props = {}) =>
	h("button", { type: "button", onclick: press, ...props }, label);

/**
 * A switch. Its only state is `aria-checked`; `turn` is called with the new state after a click.
 * @param {Child} label
 * @param {boolean} on
 * @param {(on: boolean) => void} turn
 * @param {Record<string, unknown>} [props]
 */
export function toggle(label, on, turn, props = {}) {
	const element = h(
		"button",
		{ type: "button", role: "switch", class: "switch", "aria-checked": on, ...props },
		h("span", { class: "knob", "aria-hidden": "true" }),
		h("span", { class: "label" }, label),
	);
	element.addEventListener("click", () => {
		if (element.getAttribute("aria-disabled") === "true") return;
		const now = element.getAttribute("aria-checked") !== "true";
		set(element, "aria-checked", now);
		turn(now);
	});
	return element;
}

/** Something behind one more click. @param {Child} summary @param {...Child} children */
export const more = (summary, ...children) =>
	h("details", {}, h("summary", {}, summary), ...children);

/** Technical sentences, one click away. @param {string[]} lines */
export const technical = (lines) =>
	lines.length
		? more(said("page.technical"), h("ul", { class: "technical" }, ...lines.map((line) => h("li", {}, line))))
		: null;

/** Facts, a line for each; unknown ones are left out. @param {[string, Child][]} known */
export const facts = (known) =>
	h(
		"dl",
		{ class: "facts" },
		...known.flatMap(([key, value]) => (value ? [h("dt", {}, said(key)), h("dd", {}, value)] : [])),
	);

/** A file for her. @param {string} name @param {Blob} content */
export function save(name, content) {
	const url = URL.createObjectURL(content);
	h("a", { href: url, download: name }).click();
	setTimeout(() => URL.revokeObjectURL(url), 10000);
}
