// Versions of the model: how good each is, which one devices recommend by, and one click back.

import { confirm } from "./op-act.js";
import { interval, many, quality, SERIES, when } from "./op-draw.js";
import { part, sentence } from "./op-now.js";
import { button, h, put } from "./dom.js";
import { View } from "./watch.js";

export class Model extends View {
	drawn = h("div", { class: "drawn" });
	said = h("p", {});
	list = h("ul", { class: "versions" });
	/** @type {{published: number | null, pinned: number | null, versions: VersionLine[]} | null} */
	found = null;

	connectedCallback() {
		put(
			this,
			part(
				"model",
				"Versions of the model",
				this.said,
				this.drawn,
				h("ul", { class: "legend row-of" }, ...SERIES.map(([name, words]) => h("li", { class: name }, words))),
				h("p", { class: "help" }, "For which share of users one of ten recommendations was among what they had held out at home; devices add this up in a noisy sum. Lines are 95 % intervals."),
				this.list,
			),
		);
		new ResizeObserver(() => this.draw()).observe(this.drawn);
	}

	/** @override @param {ConsoleState} state */
	show(state) {
		if (this.moved(state.round, state.attempt, state.state, state.published, this.watch.acts)) void this.read();
	}

	async read() {
		const found = await this.watch.ask("versions");
		if (!found) return;
		this.found = found;
		const { published, pinned, versions } = found;
		put(this.said, versions.length === 0 ? "Devices recommend by the newest model; versions are not kept here." : `Devices recommend by version ${published === null ? "–" : many(published)}.${pinned === null ? "" : " An operator went back to it: new versions are held back until another one is published."}`);
		for (const one of this.querySelectorAll(".part > div > .legend, .help")) one.toggleAttribute("hidden", !versions.some((/** @type {VersionLine} */ v) => v.quality));
		put(this.list, ...[...versions].reverse().map((one) => this.line(one, published)));
		this.draw();
	}

	/** @param {VersionLine} one @param {number | null} published */
	line(one, published) {
		const rate = one.quality;
		const back = published !== null && one.version < published;
		return h(
			"li",
			{ "data-version": one.version },
			h("div", { class: "about" },
				h("p", {}, h("span", { class: "strong" }, `Version ${many(one.version)}`), h("span", { class: "quiet" }, ` made ${when(one.made)}`), one.published ? h("span", { class: "tag" }, "published") : null, one.held_back ? h("span", { class: "tag warn" }, "held back") : null),
				rate ? h("ul", { class: "legend row-of" }, ...SERIES.map(([name, words]) => h("li", { class: name }, `${words} ${interval(rate[name])}`))) : null,
				one.held_back ? h("p", { class: "quiet" }, sentence(one.held_back)) : null,
			),
			this.watch.acts && !one.published ? button(back ? "Roll back to this…" : "Publish…", () => void this.publish(one, published), { "data-deed": `publish-${one.version}` }) : null,
		);
	}

	/** @param {VersionLine} one @param {number | null} seen */
	async publish(one, seen) {
		const back = seen !== null && one.version < seen;
		const newest = !this.found?.versions.some((other) => other.version > one.version);
		const done = await confirm(this.watch, {
			path: "publish",
			title: back ? `Roll back to version ${one.version}?` : `Publish version ${one.version}?`,
			says: [`Devices recommend by version ${one.version}${seen === null ? "" : ` in place of ${seen}`} from their next visit on. A version that is offered later is compared with this one.`, newest ? "New versions are published by themselves, unless devices find them worse." : "It stays published: new versions are held back until another one is published here. Publishing the newest one lets new versions follow by themselves again."],
			yes: back ? "Roll back" : "Publish",
			body: () => ({ version: one.version, seen }),
			done: async () => `Version ${one.version} is published.`,
		});
		if (!done) this.seen = "";
	}

	draw() {
		const width = this.drawn.clientWidth;
		const versions = this.found?.versions.filter((one) => one.quality) ?? [];
		if (width) put(this.drawn, versions.length ? quality(versions, width) : null);
	}
}
customElements.define("op-model", Model);
