// What could they learn of me? Attacks run here, on her own messages; she sees what comes out.

import { Part } from "./desk.js";
import { button, drawing, h, more, put } from "./dom.js";
import { Dots } from "./sv-dots.js";
import { said } from "./words.js";

const PAUSE = 400;

export class Learn extends Part {
	running = "";
	things = 0;
	state = h("div", { role: "status" });
	found = h("div", { class: "findings" });
	go = button(said("page.learn_button"), () => void this.learn());

	connectedCallback() {
		put(
			this,
			h("p", {}, said("learn.help")),
			h("div", { class: "press" }, this.go),
			this.state,
			this.found,
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const things = store.history.items;
		if (!fresh && things === this.things) return;
		this.things = things; // what was found names some that may be gone
		this.running = "";
		this.go.disabled = false;
		put(this.state);
		put(this.found);
	}

	async learn() {
		const { store, provider } = this.desk;
		this.running = store.id;
		this.go.disabled = true;
		put(this.found);
		const bar = h("progress", { max: 1, "aria-label": said("page.working") });
		const line = h("p", {}, said("page.working"));
		put(this.state, line, bar);
		let learnt = await this.desk.ask(() => provider.learn(store.id));
		while (learnt && this.running === store.id && !learnt.findings && !learnt.error) {
			bar.max = Math.max(1, learnt.total);
			bar.value = learnt.done;
			put(line, said("page.learn_progress", { done: learnt.done, total: learnt.total }));
			await new Promise((resolve) => setTimeout(resolve, PAUSE));
			learnt = await this.desk.ask(() => provider.learnt(store.id));
		}
		if (this.running !== store.id) return;
		this.running = "";
		this.go.disabled = false;
		this.result(learnt);
	}

	/** @param {Learnt | null} learnt */
	result(learnt) {
		const findings = learnt?.findings ?? [];
		const broken = findings.filter((one) => one.verdict === "broken").length;
		if (!learnt) put(this.state);
		else if (learnt.error) put(this.state, h("p", { class: "objection" }, learnt.error));
		else {
			const key = findings.length === 0 ? "no_attack" : "done";
			put(
				this.state,
				h("p", { class: "strong" }, said(`learn.${key}`)),
				findings.length > 0 && h("p", {}, said(broken && this.desk.store.printed ? "learn.remedy" : "learn.no_proof")),
			);
		}
		const tried = findings.filter((one) => one.verdict !== "cannot");
		const others = findings.filter((one) => one.verdict === "cannot");
		put(this.found, ...tried.map(finding), others.length > 0 && untried(others));
	}
}
customElements.define("sv-learn", Learn);

/** @param {Finding[]} others */
const untried = (others) =>
	more(
		said("learn.others"),
		h("dl", { class: "readers" }, ...others.flatMap((one) => [h("dt", {}, one.who), h("dd", {}, one.said)])),
	);

/** @param {Finding} one */
function finding(one) {
	const dots = new Dots();
	if (one.verdict !== "cannot") dots.show(one.right, one.chance, null);
	const items = one.items.map((item) =>
		h(
			"li",
			{ class: item.right ? "right" : "wrong" },
			h("span", {}, item.title || item.item),
			h("span", { class: "quiet" }, said(item.right ? "learn.right" : "learn.wrong")),
		),
	);
	return h(
		"article",
		{ class: `finding ${one.verdict}` },
		h("h3", {}, one.who),
		h("p", { class: "help" }, said("page.promise"), ": ", one.promise),
		h("p", { class: "verdict" }, one.verdict === "holds" && coin(), said(`learn.${one.verdict}`)),
		h("p", { class: "strong" }, one.said),
		one.verdict !== "cannot" && dots,
		items.length > 0 && h("h4", {}, said("learn.guesses", { n: one.hits, claims: one.claims })),
		items.length > 0 && h("ul", { class: "came-out", tabindex: 0, "aria-label": said("page.things") }, ...items),
	);
}

/** A coin: no better than that is what was promised. */
const coin = () =>
	drawing("0 0 32 32", "coin", [
		["circle", { cx: 16, cy: 16, r: 14 }],
		["circle", { cx: 16, cy: 16, r: 10 }],
		["line", { x1: 16, x2: 16, y1: 10, y2: 22 }],
	]);
