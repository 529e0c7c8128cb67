// Devices: who is there, since when, and what an operator does about one.

import { confirm } from "./op-act.js";
import { many, shortly, when } from "./op-draw.js";
import { cell, header, part } from "./op-now.js";
import { button, h, put, save } from "./dom.js";
import { Rows } from "./sv-list.js";
import { plainly, View } from "./watch.js";

const PAUSE = 200;
const WHICH = /** @type {const} */ ([
	["all", "All devices"],
	["active", "Active"],
	["silent", "Silent"],
	["shut-out", "Shut out"],
	["invited", "Invited, not enrolled yet"],
]);

export class Devices extends View {
	/** @type {Rows<DeviceLine>} */
	rows = new Rows();
	query = h("input", { type: "search", id: "devices-query", autocomplete: "off", placeholder: "number or label" });
	which = h("select", { id: "devices-which" }, ...WHICH.map(([value, words]) => h("option", { value }, words)));
	count = h("p", { class: "count", "aria-live": "polite" });
	deeds = h("div", { class: "press" });
	/** Whether each of those that are chosen is shut out. @type {Map<number, boolean>} */
	chosen = new Map();
	pause = 0;
	asked = 0;

	connectedCallback() {
		this.query.addEventListener("input", () => {
			clearTimeout(this.pause);
			this.pause = setTimeout(() => void this.read(true), PAUSE);
		});
		this.which.addEventListener("change", () => void this.read(true));
		this.rows.classList.add("table", "devices");
		put(
			this,
			part(
				"devices",
				"Devices",
				h(
					"div",
					{ class: "tools" },
					h("div", { class: "add" }, h("label", { for: "devices-query" }, "Search"), this.query),
					h("div", { class: "add" }, h("label", { for: "devices-which" }, "Which"), this.which),
				),
				this.count,
				this.rows,
				this.deeds,
			),
		);
	}

	/** @override @param {ConsoleState} state */
	show(state) {
		this.offer();
		if (this.moved(state.enrolled, state.active, state.shut_out, state.round, state.attempt)) void this.read(false);
	}

	offer() {
		const [out, others] = [true, false].map((wanted) => [...this.chosen].flatMap(([number, shut]) => (shut === wanted ? [number] : [])));
		const kind = `${this.watch.acts} ${out} / ${others}`;
		if (this.deeds.dataset.kind === kind) return;
		this.deeds.dataset.kind = kind;
		put(
			this.deeds,
			this.watch.acts && button("Invite…", () => void this.invite(), { "data-deed": "invite" }),
			this.watch.acts && others.length > 0 && button(`Shut out ${them(others)}…`, () => void this.shut(others), { "data-deed": "shut_out" }),
			this.watch.acts && out.length > 0 && button(`Let ${them(out)} in again…`, () => void this.readmit(out), { "data-deed": "readmit" }),
		);
	}

	/** @param {boolean} fresh */
	async read(fresh) {
		const asked = ++this.asked;
		const wanted = { query: this.query.value.trim(), which: this.which.value };
		const first = await this.watch.ask("devices", { ...wanted, offset: 0, limit: 100 });
		if (!first || asked !== this.asked) return;
		put(this.count, first.total === 0 ? "There is no such device." : first.total === 1 ? "1 device" : `${many(first.total)} devices`);
		this.rows.hidden = first.total === 0;
		this.rows.show(
			{
				total: first.total,
				load: async (offset, limit) =>
					offset === 0 ? first.rows : ((await this.watch.ask("devices", { ...wanted, offset, limit }))?.rows ?? null),
				draw: (one) => this.line(one),
				height: innerWidth < 720 ? 4.75 : 2.75,
				label: plainly("Devices"),
				head: header(["device", "label", "state", "enrolled", "last_contact", "edit"]),
			},
			fresh || this.rows.drawn.size === 0,
		);
	}

	/** @param {DeviceLine} one */
	line(one) {
		const box = h("input", { type: "checkbox", "aria-label": `Device ${one.number}` });
		box.checked = this.chosen.has(one.number);
		box.addEventListener("change", () => {
			if (box.checked) this.chosen.set(one.number, one.state === "shut-out");
			else this.chosen.delete(one.number);
			this.offer();
		});
		const words = one.state.replace("-", " ") + (one.why ? ` ${one.why}` : "");
		const state = h("span", { class: `dot ${{ active: "good", silent: "weak", "shut-out": "bad" }[one.state] ?? "none"}`, title: words }, words);
		return h(
			"div",
			{},
			cell("device", h("label", {}, this.watch.acts ? box : null, many(one.number))),
			cell("label", one.label || "–"),
			cell("state", state),
			cell("enrolled", when(one.enrolled)),
			cell("last_contact", innerWidth < 720 ? shortly(one.last_contact) : when(one.last_contact)),
			cell("edit", this.watch.acts ? button("Label…", () => void this.label(one), { class: "plain", "aria-label": `Label of device ${one.number}` }) : null),
		);
	}

	async again() {
		this.chosen.clear();
		this.seen = "";
		this.offer();
		await this.read(false);
	}

	/** @param {number[]} numbers */
	async shut(numbers) {
		const sorted = numbers.sort((a, b) => a - b);
		const done = await confirm(this.watch, {
			path: "shut_out",
			title: sorted.length === 1 ? `Shut device ${sorted[0]} out?` : `Shut ${many(sorted.length)} devices out?`,
			says: [`${few(sorted)}: asked no more; what they send is refused, and they are told so.`, "What they have sent before stays in the model, and what they have sent in the open round counts."],
			yes: "Shut out",
			danger: true,
			body: () => ({ numbers: sorted }),
			done: async (response) => `Shut out: ${few((await response.json()).numbers)}.`,
		});
		if (done) await this.again();
	}

	/** @param {number[]} numbers */
	async readmit(numbers) {
		const sorted = numbers.sort((a, b) => a - b);
		const done = await confirm(this.watch, {
			path: "readmit",
			title: sorted.length === 1 ? `Let device ${sorted[0]} in again?` : `Let ${many(sorted.length)} devices in again?`,
			says: [`${few(sorted)}: asked again from the next round on.`],
			yes: "Let in",
			body: () => ({ numbers: sorted }),
			done: async (response) => `Let in again: ${few((await response.json()).numbers)}.`,
		});
		if (done) await this.again();
	}

	/** @param {DeviceLine} one */
	async label(one) {
		const done = await confirm(this.watch, {
			path: "label",
			title: `Label device ${one.number}`,
			says: ["A label is for operators alone; no device learns of it."],
			fields: { text: { label: "Label", value: one.label, help: "One line; an empty one takes the label away." } },
			yes: "Label",
			body: ({ text }) => ({ number: one.number, text }),
			done: async () => `Device ${one.number} has its label.`,
		});
		if (done) await this.again();
	}

	async invite() {
		const done = await confirm(this.watch, {
			path: "invite",
			title: "Invite devices",
			says: ["Each file is good for one device and is a secret. You get them now, once: they are kept nowhere."],
			fields: {
				count: { label: "How many", kind: "number", least: 1, most: 10_000, value: "1" },
				label: { label: "Label for all of them", value: "" },
				server: { label: "Where devices reach the server", value: this.watch.state?.url ?? "" },
			},
			yes: "Invite and download",
			body: ({ count, label, server }) => ({ count: Number(count), label, server }),
			done: async (response) => {
				const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "invitations";
				save(name, await response.blob());
				return `${name} was handed to you. It is a secret, and is kept nowhere else.`;
			},
		});
		if (done) await this.again();
	}
}
customElements.define("op-devices", Devices);

/** @param {number[]} numbers */
const them = (numbers) => (numbers.length === 1 ? `device ${numbers[0]}` : `${many(numbers.length)} devices`);

/** @param {number[]} numbers */
const few = (numbers) => numbers.slice(0, 20).join(", ") + (numbers.length > 20 ? ", …" : "");
