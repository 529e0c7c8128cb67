// One control for each kind of field. No algorithm is known here: only kinds.

import { h, put, set, toggle } from "./dom.js";
import { isSaid, number, percent, said, say } from "./words.js";

const FINE = 200;
let made = 0;

/**
 * @param {Field} field
 * @param {unknown} value
 * @param {Turn} turn is called with the value that is shown, whenever it changes
 */
export function control(field, value, turn) {
	const kinds = {
		switch: onOff,
		epsilon: amount,
		share: amount,
		strength: amount,
		count: amount,
		limit,
		attributes: options,
		owners: options,
		things: nothing,
	};
	return (kinds[field.kind] ?? nothing)(field, value, turn);
}

/** Fields that another part of the page draws, and kinds that this page does not know. */
const nothing = () => h("span", { hidden: true });

/** @param {Field} field @param {unknown} value @param {Turn} turn */
function onOff(field, value, turn) {
	const help = note(field);
	const element = toggle(field.label, value === true, turn, { "aria-describedby": help?.id });
	return h("div", { class: "field", "data-field": field.name }, element, help);
}

/** @param {Field} field */
const note = (field) =>
	field.help && h("p", { class: "help", id: `help-${field.name}-${(made += 1)}` }, field.help);

/**
 * An input for the exact number, and the reason if what is written there cannot be kept.
 * @param {Field} field
 * @param {number} times
 */
function exactly(field, times) {
	const why = h("p", { class: "amiss", id: `amiss-${(made += 1)}`, role: "status" });
	const [least, most] = [field.least, field.most].map((end) =>
		typeof end === "number" ? Number((end * times).toPrecision(12)) : null,
	);
	const input = h("input", {
		type: "number",
		min: least,
		max: most,
		step: field.kind === "count" ? 1 : "any",
		required: true,
		"aria-label": said("page.exact_number"),
		"aria-describedby": why.id,
		"aria-invalid": false,
	});
	const kind = field.kind === "limit" || field.kind === "count" ? field.kind : most === null ? "least" : "between";
	const judge = () => {
		const wrong = input.disabled || input.validity.valid ? null : said(`page.number_${kind}`, { least, most });
		set(input, "aria-invalid", wrong !== null);
		put(why, wrong);
		return wrong;
	};
	return { input, why, judge };
}

/**
 * A number: named steps, a slider and the exact figure, which move together.
 * @param {Field} field
 * @param {unknown} value
 * @param {Turn} turn
 */
function amount(field, value, turn) {
	const scale = scaled(field);
	const help = note(field);
	const steps = field.steps ?? [];
	// A share is read in percent.
	const times = field.kind === "share" ? 100 : 1;
	const { input: exact, why, judge } = exactly(field, times);
	const slider = h("input", { type: "range", min: 0, max: FINE, "aria-label": field.label });
	const names = steps.map((step) => {
		const box = h("input", { type: "radio", name: `step-${field.name}-${made}` });
		box.addEventListener("change", () => moved(step.value));
		const odds = !!step.right && h("span", { class: "quiet" }, " ", said("odds.step", { right: step.right }));
		return { box, step, whole: h("label", { class: "step" }, box, h("span", {}, step.label, odds)) };
	});
	/** @param {number | null} at null if what is written cannot be kept */
	function lay(at) {
		for (const { box, step } of names) box.checked = at !== null && near(at, step.value);
		set(slider, "aria-valuetext", at === null ? "–" : times === 100 ? percent(at) : number(at));
		if (at !== null) slider.value = String(scale.place(at));
	}
	/** @param {number} at */
	const write = (at) => {
		exact.value = String(Number((at * times).toPrecision(12)));
		lay(at);
	};
	/** @param {number} at */
	function moved(at) {
		write(at);
		judge();
		turn(at);
	}
	slider.addEventListener("input", () => moved(scale.value(Number(slider.value))));
	exact.addEventListener("input", () => {
		const wrong = judge();
		const at = wrong ? null : Number((exact.valueAsNumber / times).toPrecision(12));
		lay(at);
		turn(at, wrong);
	});
	if (typeof value === "number") write(value);
	return h(
		"fieldset",
		{ class: "field", "data-field": field.name, "aria-describedby": help?.id },
		h("legend", {}, field.label),
		help,
		names.length > 0 && h("div", { class: "steps" }, ...names.map((one) => one.whole)),
		h("div", { class: "amount" }, scale.ends ? slider : null, exact, times === 100 && "%"),
		why,
	);
}

/** @param {number} a @param {number} b */
const near = (a, b) => Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));

/**
 * Where a value is on a slider: evenly by its logarithm if it spans more than a factor of 20.
 * @param {Field} field
 */
function scaled(field) {
	const [least, most] = [field.least ?? null, field.most ?? null];
	if (least === null || most === null) {
		return { ends: false, place: (/** @type {number} */ at) => at, value: (/** @type {number} */ at) => at };
	}
	const steep = least > 0 && most / least > 20;
	const [low, high] = steep ? [Math.log(least), Math.log(most)] : [least, most];
	return {
		ends: true,
		/** @param {number} at */
		place: (at) => Math.round((((steep ? Math.log(Math.max(least, at)) : at) - low) / (high - low)) * FINE),
		/** @param {number} place */
		value: (place) => {
			const raw = low + (place / FINE) * (high - low);
			const at = Math.min(most, Math.max(least, Number((steep ? Math.exp(raw) : raw).toPrecision(3))));
			return field.kind === "count" ? Math.round(at) : at;
		},
	};
}

/** A number or none. @param {Field} field @param {unknown} value @param {Turn} turn */
function limit(field, value, turn) {
	const help = note(field);
	const none = h("input", { type: "checkbox", checked: value === null || value === undefined });
	const { input: exact, why, judge } = exactly(field, 1);
	exact.value = typeof value === "number" ? String(value) : "";
	exact.disabled = none.checked;
	let before = exact.value;
	const changed = () => {
		const wrong = judge();
		turn(none.checked || wrong ? null : exact.valueAsNumber, wrong);
	};
	none.addEventListener("change", () => {
		exact.disabled = none.checked;
		if (none.checked) before = exact.value;
		exact.value = none.checked ? "" : before; // without a limit, no number is shown
		changed();
	});
	exact.addEventListener("input", changed);
	return h(
		"fieldset",
		{ class: "field", "data-field": field.name, "aria-describedby": help?.id },
		h("legend", {}, field.label),
		help,
		h("div", { class: "amount" }, exact, h("label", { class: "check" }, none, h("span", {}, said("page.no_limit")))),
		why,
	);
}

/** Any of several, each with its own switch. @param {Field} field @param {unknown} value @param {Turn} turn */
function options(field, value, turn) {
	const help = note(field);
	const known = field.options ?? [];
	// A choice lists what is on, or what is refused. The stored field shows which of both.
	const stored = listed(field.value);
	const refuses = known.some((one) => one.on !== stored.includes(one.name));
	const now = listed(value);
	const on = new Set(
		known
			.filter((one) => (value === field.value ? one.on : now.includes(one.name) !== refuses))
			.map((one) => one.name),
	);
	const list = h("ul", { class: "options" });
	put(
		list,
		...known.map((one) => {
			// The sentence is about the stored state: it is hidden while the switch shows another one.
			const words = one.said && h("p", { class: "help", hidden: on.has(one.name) !== one.on }, one.said);
			return h(
				"li",
				{},
				toggle(one.label, on.has(one.name), (turned) => {
					if (words) words.hidden = turned !== one.on;
					if (turned) on.add(one.name);
					else on.delete(one.name);
					// Names that are not among the options any more stay in the list.
					const others = stored.filter((name) => !known.some((each) => each.name === name));
					const chosen = known.filter((each) => on.has(each.name) !== refuses);
					turn([...chosen.map((each) => each.name), ...others]);
				}),
				words,
			);
		}),
	);
	return h(
		"fieldset",
		{ class: "field", "data-field": field.name, "aria-describedby": help?.id },
		h("legend", {}, field.label),
		help,
		list,
	);
}

/** @param {unknown} value @returns {string[]} */
const listed = (value) => (Array.isArray(value) ? value : []);

/** A setting's value as she reads it. @param {unknown} value @returns {string} */
export function plain(value) {
	if (value === null || value === undefined) return "–";
	if (isSaid(value)) return say(value);
	if (typeof value === "number") return number(value);
	if (typeof value === "boolean") return say(said(value ? "page.yes" : "page.no"));
	if (Array.isArray(value)) return value.map(plain).join(", ");
	return typeof value === "object" ? JSON.stringify(value) : String(value);
}
