// Where the federation stands: the round, why it waits, what was, what was refused.

import { confirm } from "./op-act.js";
import { clock, lasted, many, outcomeClass, outcomeWords, timeFirst, timeline, when } from "./op-draw.js";
import { button, h, put, set } from "./dom.js";
import { Rows } from "./sv-list.js";
import { plainly, View } from "./watch.js";

const COLUMNS = 100;

/** @param {ConsoleState} state */
function headline(state) {
	const told = stands(state);
	if (!state.paused) return told;
	const { since, who, why } = state.paused;
	const paused = sentence(`rounds are paused since ${when(since)} by ${who}${why ? `: ${why}` : ""}`);
	return state.state === "waiting" ? paused : `${paused} ${told}`;
}

/** @param {ConsoleState} state */
function stands(state) {
	const tried = state.attempt ? `, attempt ${state.attempt + 1},` : "";
	if (state.state === "open") {
		const told = state.asked ? `: ${many(state.reported)} of ${many(state.goal)} reports are in` : "";
		return `Round ${many(state.round)}${tried} is open${told}.`;
	}
	if (state.state === "closing") return `Round ${many(state.round)}${tried} is being folded into the model.`;
	if (state.state === "finished") return "As many rounds as were asked for are done.";
	return `Round ${many(state.round)}${tried} waits to be opened.`;
}

export class Now extends View {
	head = h("p", { class: "stands" });
	bar = h("progress", { "aria-label": "Reports of the open round" });
	reason = h("div", { class: "reason" });
	tiles = h("dl", { class: "tiles" });
	deeds = h("div", { class: "press" });
	drawn = h("div", { class: "drawn" });
	/** @type {Rows<RoundLine>} */
	rows = new Rows();
	count = h("p", { class: "count" });
	refused = h("ul", { class: "bars" });
	/** @type {RoundLine[]} */
	lines = [];

	connectedCallback() {
		this.rows.classList.add("table", "rounds");
		put(
			this,
			part("now", "Now", this.head, this.bar, this.reason, this.tiles, this.deeds),
			part("rounds", "Rounds", this.drawn, legend(), this.count, this.rows),
			part("refused", "Refused messages", this.refused),
		);
		new ResizeObserver(() => this.draw()).observe(this.drawn);
	}

	/** @override @param {ConsoleState} state */
	show(state) {
		put(this.head, headline(state));
		this.bar.hidden = state.state !== "open" || !state.goal;
		this.bar.max = Math.max(1, state.goal);
		this.bar.value = state.reported;
		put(this.reason, ...why(state), ...changed(state), ...spoiled(state));
		const goal = many(state.target);
		put(
			this.tiles,
			...tile("Rounds", `${many(state.round)} of ${goal}`),
			...tile("Enrolled", many(state.enrolled)),
			...tile("Active", many(state.active)),
			...tile("Shut out", many(state.shut_out)),
			...tile("Model", state.published === null ? "newest" : `version ${many(state.published)}`),
			...tile("Refused", many(Object.values(state.refused).reduce((sum, one) => sum + one, 0))),
		);
		this.deed(state);
		this.draw();
		const reasons = Object.entries(state.refused).filter(([, n]) => n > 0);
		const most = Math.max(1, ...reasons.map(([, n]) => n));
		put(
			this.refused,
			...reasons.sort(([, a], [, b]) => b - a).map(([name, n]) => {
				const bar = h("span", {});
				bar.style.width = `${(100 * n) / most}%`;
				return h("li", {}, h("span", { class: "name" }, name.replaceAll("_", " ")), h("span", { class: "bar" }, bar), h("span", { class: "quiet" }, many(n)));
			}),
			reasons.length === 0 && h("li", { class: "none" }, "Nothing was refused."),
		);
		if (this.moved(state.round, state.attempt, state.state)) void this.read();
	}

	/** @param {ConsoleState} state */
	deed(state) {
		const paused = Boolean(state.paused);
		const kind = `${this.watch.acts} ${paused}`;
		if (this.deeds.dataset.kind === kind) return;
		this.deeds.dataset.kind = kind;
		put(
			this.deeds,
			this.watch.acts && (paused ? button("Go on…", () => void this.goOn(), { "data-deed": "go_on", class: "main" }) : button("Pause…", () => void this.pause(), { "data-deed": "pause" })),
			this.watch.acts && button("Set target…", () => void this.target(), { "data-deed": "target" }),
		);
	}

	pause() {
		return confirm(this.watch, {
			path: "pause",
			title: "Pause rounds?",
			says: ["No new round is opened until you let them go on. A round that is open goes on to its end."],
			fields: { why: { label: "Why (for the log and the other operators)" } },
			yes: "Pause",
			body: ({ why }) => ({ why }),
			done: async () => "Rounds are paused.",
		});
	}

	goOn() {
		return confirm(this.watch, {
			path: "go_on",
			title: "Let rounds go on?",
			says: ["The next round is opened as soon as there are enough devices."],
			yes: "Go on",
			body: () => ({}),
			done: async () => "Rounds go on.",
		});
	}

	target() {
		const now = this.watch.state;
		return confirm(this.watch, {
			path: "target",
			title: "Set the number of rounds",
			says: [
				`The federation runs up to round ${many(now?.target ?? 0)}. The number can only be raised.`,
				...(now?.spends ? ["Each further period costs every person who takes part up to her loudness once more."] : []),
			],
			fields: { rounds: { label: "Rounds in all", kind: "number", least: (now?.target ?? 0) + 1, most: 2 ** 31 - 1, value: String((now?.target ?? 0) + 10) } },
			yes: "Set target",
			body: ({ rounds }) => ({ rounds: Number(rounds) }),
			done: async (response) => `${many((await response.json()).rounds)} rounds are to be run.`,
		});
	}

	async read() {
		const first = await this.watch.ask("rounds", { offset: 0, limit: COLUMNS });
		if (!first) return;
		this.lines = [...first.rows].reverse();
		put(this.count, first.total === 0 ? "No round is over yet." : first.total === 1 ? "1 attempt at a round is over." : `${many(first.total)} attempts at rounds are over; the newest come first.`, span(this.lines));
		this.rows.hidden = first.total === 0;
		this.rows.show(
			{
				total: first.total,
				load: async (offset, limit) =>
					offset === 0 ? first.rows : ((await this.watch.ask("rounds", { offset, limit }))?.rows ?? null),
				draw: (one) => this.line(one),
				height: innerWidth < 720 ? 4.75 : 2.75,
				label: plainly("Rounds that are over"),
				head: header(["round", "outcome", "reported", "lasted", "ended", "missing"]),
			},
			this.rows.drawn.size === 0,
		);
		this.draw();
	}

	/** @param {RoundLine} one */
	line(one) {
		const label = `Round ${one.round}.${one.attempt}: who was missing`;
		const missing = innerWidth < 720 ? " missing" : ""; // where the table has no head
		return h(
			"div",
			{},
			cell("round", `${many(one.round)}.${one.attempt}`),
			cell("outcome", h("span", { class: `dot ${outcomeClass(one.outcome)}` }, outcomeWords(one.outcome))),
			cell("reported", one.asked ? `${many(one.reported)} of ${many(one.asked)}` : many(one.reported)),
			cell("lasted", lasted(one.seconds)),
			cell("ended", innerWidth < 720 ? timeFirst(one.ended) : when(one.ended)),
			cell("missing", one.missing ? button(many(one.missing) + missing, () => void this.absent(one), { class: "plain", "aria-label": label }) : `nobody${missing}`),
		);
	}

	/** @param {RoundLine} one */
	async absent(one) {
		const found = await this.watch.ask("missing", { round: one.round, attempt: one.attempt, offset: 0, limit: 1000 });
		if (!found) return;
		const dialog = h(
			"dialog",
			{ "aria-labelledby": "absent" },
			h("h2", { id: "absent" }, `Missing in round ${one.round}.${one.attempt}`),
			h("p", {}, `${many(found.total)} of ${many(one.asked)} devices were asked and did not report.`),
			h("p", { class: "numbers", tabindex: 0, role: "group", "aria-label": "Numbers of devices" }, found.rows.join(", "), found.total > found.rows.length ? ", …" : null),
			h("div", { class: "press" }, button("Close", () => dialog.close(), { class: "main" })),
		);
		dialog.addEventListener("close", () => dialog.remove());
		document.body.append(dialog);
		dialog.showModal();
	}

	draw() {
		const width = this.drawn.clientWidth;
		const state = this.watch.state;
		if (!width || !state) return;
		const begun = state.opened ? Date.parse(state.now) - Date.parse(state.opened) : 0;
		const open =
			state.state === "open"
				? { round: state.round, attempt: state.attempt, seconds: Math.max(0, begun / 1000), reported: state.reported, asked: state.goal }
				: null;
		this.drawn.hidden = false;
		put(this.drawn, this.lines.length || open ? timeline(this.lines, open, width) : null);
	}
}
customElements.define("op-now", Now);

/** @param {ConsoleState} state */
function why(state) {
	const found = state.reason;
	if (!found) return [];
	return [
		h(
			"div",
			{ class: state.state === "open" && found.party === "devices" ? "objection calm" : "objection", "data-party": found.party },
			h("p", {}, h("span", { class: "strong" }, sentence(found.words)), found.since ? ` Since ${clock(found.since)}.` : null),
			h("p", {}, sentence(found.what)),
			found.do ? h("p", {}, sentence(found.do)) : null,
		),
	];
}

/** That numbers of rounds were skipped. @param {ConsoleState} state */
function changed({ changed: found }) {
	if (!found) return [];
	return [h("p", {}, `The terms were changed at ${clock(found.at)}, as ${found.who} proposed; rounds go on with number ${many(found.round)}.`)];
}

/** @param {ConsoleState} state */
function spoiled({ search }) {
	if (!search.on) return [];
	const who = search.suspects.length ? `In spoiled sums again and again: ${search.suspects.join(", ")}.` : "Nobody is suspected yet.";
	return [h("div", { class: "objection" }, h("p", {}, h("span", { class: "strong" }, "A device spoils sums; the server looks for it by sums over groups.")), h("p", {}, who))];
}

/** @param {string} text */
export const sentence = (text) => {
	const begun = text.charAt(0).toUpperCase() + text.slice(1);
	return /[.!?]$/.test(begun) ? begun : `${begun}.`;
};

/** From when to when. @param {RoundLine[]} lines oldest first */
function span(lines) {
	const [first, last] = [lines[0]?.opened, lines.at(-1)?.ended];
	return first && last && when(first) !== when(last) ? ` The drawing goes from ${when(first)} to ${when(last)}.` : null;
}

/** @param {string} name @param {string} value */
const tile = (name, value) => [h("div", {}, h("dt", {}, name), h("dd", {}, value))];

/**
 * A part of a view.
 * @param {string} name
 * @param {string} title
 * @param {...Child} children
 */
export const part = (name, title, ...children) =>
	h("section", { id: name, "aria-labelledby": `head-${name}` }, h("h2", { id: `head-${name}` }, title), h("div", { class: "part" }, h("div", {}, ...children)));

/** @param {string[]} names */
export const header = (names) =>
	h("div", { role: "row", class: "head", "aria-rowindex": 1 }, ...names.map((name) => h("span", { role: "columnheader", class: name }, name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " "))));

/** @param {string} name @param {...Child} children */
export function cell(name, ...children) {
	const made = h("span", { role: "cell", class: name }, ...children);
	if (children.length === 1 && typeof children[0] === "string") set(made, "title", children[0]);
	return made;
}

function legend() {
	return h(
		"ul",
		{ class: "legend row-of" },
		h("li", { class: "good" }, "reached its goal"),
		h("li", { class: "weak" }, "ended at its deadline"),
		h("li", { class: "bad" }, "given up"),
		h("li", { class: "rest" }, "asked and did not report"),
		h("li", { class: "none" }, "height: how long it lasted, by its square root"),
	);
}
