// Drawings of the console, and times as a reader likes them.

import { drawing } from "./dom.js";

const HIGH = 150;
const LEFT = 44;
const BOTTOM = 22;

/** @param {string | null | undefined} at */
export const when = (at) =>
	at ? new Date(at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–";

/** The same without the year, for narrow windows. @param {string | null | undefined} at */
export const shortly = (at) =>
	at ? new Date(at).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }) : "–";

/** The time before the day, for narrow cells. @param {string | null | undefined} at */
export const timeFirst = (at) =>
	at ? `${clock(at)}, ${new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short" })}` : "–";

/** @param {string | null | undefined} at */
export const clock = (at) =>
	at ? new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }) : "";

/** @param {number} seconds */
export function lasted(seconds) {
	if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
	if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
	return `${Math.round(seconds / 3600)} h`;
}

/** @param {number} count */
export const many = (count) => count.toLocaleString("en-GB");

/** @param {number} bytes */
export function size(bytes) {
	for (const [unit, name] of /** @type {[number, string][]} */ ([[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])) {
		if (bytes >= unit) return `${(bytes / unit).toPrecision(3)} ${name}`;
	}
	return `${bytes} bytes`;
}

/** @param {string} outcome of a round */
export const outcomeWords = (outcome) =>
	({ goal: "reached its goal", deadline: "ended at its deadline", abandoned: "given up", dropped: "dropped by a shuffler: too few reports could be opened" })[outcome] ?? outcome;

/** @param {string} outcome */
export const outcomeClass = (outcome) => (outcome === "goal" ? "good" : outcome === "deadline" ? "weak" : "bad");

/**
 * How long rounds took and how many reported, oldest first; the open one last.
 * @param {RoundLine[]} lines
 * @param {{round: number, attempt: number, seconds: number, reported: number, asked: number} | null} open
 * @param {number} width
 */
export function timeline(lines, open, width) {
	const room = width - LEFT - 4;
	const most = Math.max(4, Math.floor(room / 12));
	const shown = lines.slice(Math.max(0, lines.length - most + (open ? 1 : 0)));
	const count = shown.length + (open ? 1 : 0);
	const step = Math.min(40, room / Math.max(1, count));
	const longest = Math.max(1, ...shown.map((one) => one.seconds), open?.seconds ?? 0);
	const tall = HIGH - BOTTOM - 8;
	// By the square root: short rounds are seen beside long ones.
	/** @param {number} seconds */
	const up = (seconds) => Math.max(3, Math.sqrt(seconds / longest) * tall);
	const ground = HIGH - BOTTOM;
	/** @type {Shape[]} */
	const shapes = [0, 0.5, 1].flatMap((part) => [
		["line", { x1: LEFT, x2: width, y1: ground - part * tall, y2: ground - part * tall, class: "grid" }],
		["text", { x: LEFT - 6, y: ground - part * tall + 4, class: "end" }, lasted(part * part * longest)],
	]);
	const every = Math.max(1, Math.ceil(34 / step));
	shown.forEach((one, at) => {
		const x = LEFT + at * step + 1;
		const whole = up(one.seconds);
		const share = one.asked ? Math.min(1, one.reported / one.asked) : 1;
		const words = `Round ${one.round}.${one.attempt} ${outcomeWords(one.outcome)} after ${lasted(one.seconds)}, ${one.reported}${one.asked ? ` of ${one.asked}` : ""} reported`;
		const kind = outcomeClass(one.outcome);
		shapes.push(["rect", { x, y: ground - whole, width: Math.max(2, step - 2), height: whole, class: `${kind} rest` }, words]);
		shapes.push(["rect", { x, y: ground - whole * share, width: Math.max(2, step - 2), height: whole * share, class: kind }, words]);
		if ((shown.length - 1 - at) % every === 0) {
			shapes.push(["text", { x: x + step / 2 - 1, y: HIGH - 6, class: "middle" }, String(one.round)]);
		}
	});
	if (open) {
		const x = LEFT + shown.length * step + 1;
		const whole = up(open.seconds);
		const share = open.asked ? Math.min(1, open.reported / open.asked) : 0;
		const words = `Round ${open.round}.${open.attempt} is open: ${open.reported} of ${open.asked} reported`;
		shapes.push(["rect", { x, y: ground - whole * share, width: Math.max(2, step - 2), height: whole * share, class: "now" }, words]);
		shapes.push(["rect", { x, y: ground - whole, width: Math.max(2, step - 2), height: whole, class: "outline" }, words]);
	}
	const svg = drawing(`0 0 ${width} ${HIGH}`, "chart", shapes);
	svg.setAttribute("height", String(HIGH));
	return svg;
}

export const SERIES = /** @type {const} */ ([
	["candidate", "this version"],
	["published", "the version before"],
	["popularity", "popularity alone"],
]);

/**
 * How good versions are: for which share of users one of ten recommendations was a hit, with the
 * 95 % interval.
 * @param {VersionLine[]} versions
 * @param {number} width
 */
export function quality(versions, width) {
	const rated = versions.filter((one) => one.quality);
	const ground = HIGH + 40 - BOTTOM;
	const tall = ground - 10;
	const ends = rated.flatMap((one) => SERIES.map(([name]) => one.quality?.[name])).flatMap((rate) => (rate ? [rate.low, rate.high] : []));
	const top = Math.min(1, Math.ceil(Math.max(0.01, ...ends) * 20) / 20);
	const low = Math.min(top - 0.05, Math.max(0, Math.floor(Math.min(1, ...ends) * 20) / 20));
	const step = Math.min(120, (width - LEFT - 8) / Math.max(1, rated.length));
	/** @param {number} share */
	const y = (share) => ground - ((Math.min(top, Math.max(low, share)) - low) / (top - low)) * tall;
	/** @type {Shape[]} */
	const shapes = [0, 0.5, 1].flatMap((part) => [
		["line", { x1: LEFT, x2: width, y1: ground - part * tall, y2: ground - part * tall, class: "grid" }],
		["text", { x: LEFT - 6, y: ground - part * tall + 4, class: "end" }, `${(100 * (low + part * (top - low))).toFixed(top - low < 0.2 ? 1 : 0)} %`],
	]);
	rated.forEach((one, at) => {
		const middle = LEFT + (at + 0.5) * step;
		if (one.published) {
			shapes.push(["rect", { x: middle - step / 2 + 2, y: 4, width: step - 4, height: ground - 4, class: "chosen", rx: 4 }, `Version ${one.version} is published`]);
		}
		SERIES.forEach(([name, words], n) => {
			const rate = one.quality?.[name];
			if (!rate) return;
			const x = middle + (n - 1) * Math.min(14, step / 4);
			const said = `Version ${one.version}, ${words}: ${interval(rate)}`;
			shapes.push(["line", { x1: x, x2: x, y1: y(rate.low), y2: y(rate.high), class: `${name} bar` }, said]);
			if (name === "candidate") shapes.push(["circle", { cx: x, cy: y(rate.value), r: 4.5, class: one.held_back ? "candidate hollow" : "candidate" }, said]);
			else if (name === "published") shapes.push(["rect", { x: x - 3.5, y: y(rate.value) - 3.5, width: 7, height: 7, class: name }, said]);
			else shapes.push(["path", { d: `M${x - 4.5} ${y(rate.value) + 4}h9l-4.5-8z`, class: name }, said]);
		});
		shapes.push(["text", { x: middle, y: HIGH + 40 - 6, class: "middle" }, `v${one.version}`]);
	});
	const svg = drawing(`0 0 ${width} ${HIGH + 40}`, "chart quality", shapes);
	svg.setAttribute("height", String(HIGH + 40));
	return svg;
}

/** A share and its interval. @param {Rate} rate */
export const interval = (rate) => `${percent(rate.value)} (${(100 * rate.low).toFixed(1)}–${(100 * rate.high).toFixed(1)})`;

/** @param {number} share */
export const percent = (share) => `${(100 * share).toFixed(1)} %`;
