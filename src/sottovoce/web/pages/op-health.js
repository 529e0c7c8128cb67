// Health: the other parties, certificates, room on the disk; copies and keys.

import { confirm } from "./op-act.js";
import { many, size, when } from "./op-draw.js";
import { part, sentence } from "./op-now.js";
import { button, h, put } from "./dom.js";
import { SeldomView } from "./watch.js";

export class Health extends SeldomView {
	parties = h("ul", { class: "versions" });
	certificates = h("dl", { class: "settings" });
	storage = h("dl", { class: "settings" });
	copies = h("div", { class: "press" });
	deeds = h("div", { class: "press" });

	connectedCallback() {
		put(
			this,
			part("parties", "Other parties", this.parties),
			part("storage", "Storage", this.storage, this.copies),
			part("keys", "Certificates and keys", this.certificates, this.deeds),
		);
	}

	/** @override */
	async read() {
		const [health, storage] = await Promise.all([this.watch.ask("health"), this.watch.ask("storage")]);
		if (storage) {
			put(
				this.storage,
				h("dt", {}, "Database"),
				h("dd", {}, `${storage.kind}, ${size(storage.database)}`),
				h("dt", {}, "Free on the disk"),
				h("dd", {}, `${size(storage.free)} of ${size(storage.disk)}`),
			);
		}
		if (!health) return;
		if (health.parties.some((/** @type {{answers: boolean | null}} */ one) => one.answers === null)) this.turns = 0;
		put(
			this.parties,
			...health.parties.map((/** @type {PartyLine} */ one) =>
				h(
					"li",
					{ "data-party": one.party },
					h("div", { class: "about" },
						h("p", {}, h("span", { class: "strong" }, sentence(one.party).slice(0, -1)), h("span", { class: "quiet" }, ` ${one.url}`)),
						h("p", {}, h("span", { class: `dot ${one.answers === null ? "none" : one.answers ? "good" : "bad"}` }, one.what), one.at ? h("span", { class: "quiet" }, ` asked ${when(one.at)}, ${many(one.milliseconds ?? 0)} ms`) : null),
					),
				),
			),
			health.parties.length === 0 && h("li", {}, "The terms name no other party: devices report to this server alone."),
		);
		put(
			this.certificates,
			...health.certificates.flatMap((/** @type {{file: string, hosts: string[], until: string, trouble: string}} */ one) => [
				h("dt", {}, one.file),
				h("dd", {}, one.trouble || `valid until ${when(one.until)}${one.hosts.length ? `, for ${one.hosts.join(", ")}` : ""}`),
			]),
		);
		const kind = `${this.watch.acts} ${health.report_keys}`;
		if (this.deeds.dataset.kind === kind) return;
		this.deeds.dataset.kind = kind;
		put(this.copies, this.watch.acts && button("Back up…", () => void this.backup(), { "data-deed": "backup" }));
		put(
			this.deeds,
			this.watch.acts && button("Change the operators' token…", () => void this.rotate("act"), { "data-deed": "rotate-act" }),
			this.watch.acts && button("Change the viewers' token…", () => void this.rotate("look"), { "data-deed": "rotate-look" }),
			this.watch.acts && health.report_keys && button("Change the report key…", () => void this.rotate("report"), { "data-deed": "rotate-report" }),
		);
	}

	backup() {
		return confirm(this.watch, {
			path: "backup",
			title: "Back up",
			says: ["A copy of the server's folder, with its keys, is made on the server's machine. It is as secret as the folder itself."],
			fields: { place: { label: "New folder on the server's machine", help: "A whole path, where nothing is yet." } },
			yes: "Back up",
			body: ({ place }) => ({ place }),
			done: async (response) => {
				const made = await response.json();
				return `${made.place} holds ${many(made.files)} files, ${size(made.bytes)}.`;
			},
		});
	}

	/** @param {"act" | "look" | "report"} what */
	rotate(what) {
		const says = {
			act: ["The old token is refused from now on, also by programs that have it.", "All consoles of operators close, this one too: open it anew with `sottovoce console`."],
			look: ["The old token is refused from now on, also by programs that have it.", "All consoles of viewers close."],
			report: ["The next round is opened with a new key. The former one is destroyed when no round needs it any more."],
		}[what];
		const name = { act: "the operators' token", look: "the viewers' token", report: "the report key" }[what];
		return confirm(this.watch, {
			path: "rotate",
			title: `Change ${name}?`,
			says,
			yes: "Change it",
			danger: what !== "report",
			body: () => ({ what }),
			done: async () => sentence(`${name} is a new one`),
		});
	}
}
customElements.define("op-health", Health);
