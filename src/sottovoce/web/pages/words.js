// Sentences: a key and values, read in the language of the moment; the same rules as core/words.

export const LANGUAGES = ["en", "it"];

/** @type {Record<string, string>} */
let templates = {};
let language = "en";

export const spoken = () => language;

/**
 * From now on, sentences are said in this language.
 * @param {string} name
 * @param {Record<string, string>} catalogue
 */
export function speak(name, catalogue) {
	language = name;
	templates = catalogue;
}

/** A sentence before it is read. @param {string} key @param {Record<string, unknown>} [values] */
export const said = (key, values = {}) => ({ key, values });

/** @param {unknown} value @returns {value is Said} */
export const isSaid = (value) =>
	typeof value === "object" && value !== null && "key" in value && "values" in value;

/**
 * The sentence, in this language. A key without words is shown as it is: silence would be worse.
 * @param {Said} what
 */
export function say(what) {
	const { key, values } = what;
	const one = values.n === 1 ? templates[`${key}.one`] : undefined;
	const template = templates[key] ?? one ?? templates[`${key}.other`] ?? key;
	return fill(template, (name, kind) => (name in values ? shown(values[name], kind) : `{${name}}`));
}

// Marks of direction, and signs without a width; not what joins letters of other scripts, or pictures.
const UNSEEN =
	/[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]|(?<=^|[\0-\x7f\p{Script=Latin}])[\u200c\u200d]/gu;

/**
 * A name given by somebody else, without signs that could make it look like another one.
 * @param {string} name
 */
export const visible = (name) =>
	name.replace(UNSEEN, (sign) => `[U+${sign.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}]`);

/** @param {string} template @param {(name: string, kind: string) => string} value */
const fill = (template, value) =>
	template.replace(/\{(\w+)(?::(\w+))?\}/g, (_, name, kind) => value(name, kind));

/** @param {string} name */
const format = (name) => templates[`format.${name}`] ?? "";

/** @param {unknown} value @param {string} kind @returns {string} */
function shown(value, kind) {
	if (Array.isArray(value)) return listed(value.map((one) => shown(one, "")));
	if (typeof value !== "number") return visible(String(value));
	if (kind === "day") return day(value);
	if (kind === "bytes") return bytes(value);
	if (kind === "percent") return percent(value);
	return number(value);
}

/** A number as the language writes it. @param {number} value */
export function number(value) {
	if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
	const round = Number(value.toPrecision(10));
	const small = Math.abs(round) < 1e-4 ? round.toFixed(12).replace(/\.?0+$/, "") : String(round);
	const [whole, rest] = (Number.isInteger(value) ? BigInt(value).toString() : small).split(".");
	const grouped = (whole ?? "").replace(/\B(?=(\d{3})+$)/g, format("thousands"));
	return rest ? grouped + format("point") + rest : grouped;
}

/** @param {number} share */
export const percent = (share) =>
	fill(format("percent"), () => number(Number((share * 100).toPrecision(6))));

/** @param {number} count */
function bytes(count) {
	for (const [size, unit] of /** @type {[number, string][]} */ ([[1e9, "gigabytes"], [1e6, "megabytes"], [1e3, "kilobytes"]])) {
		if (count >= size) return fill(format(unit), () => number(Number((count / size).toPrecision(3))));
	}
	return fill(format("bytes"), () => number(Math.trunc(count)));
}

/** @param {string[]} names */
function listed(names) {
	if (names.length === 0) return format("nothing");
	if (names.length === 1) return names.join();
	return `${names.slice(0, -1).join(", ")} ${format("and")} ${names.at(-1)}`;
}

/** @param {number} seconds since 1970 */
export function day(seconds) {
	const when = new Date(seconds * 1000);
	/** @type {Record<string, string>} */
	const parts = {
		day: String(when.getUTCDate()),
		month: format(`month.${when.getUTCMonth() + 1}`),
		year: String(when.getUTCFullYear()),
	};
	return fill(format("day"), (name) => parts[name] ?? "");
}

/** @param {number} seconds since 1970 */
export const moment = (seconds) =>
	new Date(seconds * 1000).toLocaleString(language === "en" ? "en-GB" : language, {
		dateStyle: "medium",
		timeStyle: "short",
	});
