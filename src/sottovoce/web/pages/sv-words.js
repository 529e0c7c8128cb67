// What the words on the page mean, for who opens it.

import { h, more, put } from "./dom.js";
import { said, spoken } from "./words.js";

export class Words extends HTMLElement {
	/** @param {Provider} provider */
	constructor(provider) {
		super();
		this.provider = provider;
		this.list = h("dl", { class: "readers" });
		this.box = more(said("page.glossary"), h("p", { class: "help" }, said("page.glossary_help")), this.list);
		this.box.addEventListener("toggle", () => void this.fill());
	}

	connectedCallback() {
		put(this, this.box);
	}

	async fill() {
		if (this.list.hasChildNodes()) return;
		const known = await this.provider.glossary().catch(() => null);
		this.hidden = known === null;
		put(
			this.list,
			...Object.entries(known ?? {}).flatMap(([name, word]) => [
				h("dt", {}, () => String([word[spoken()] ?? name].flat()[0])),
				h("dd", {}, () => String(word[`${spoken()}_means`] ?? "")),
			]),
		);
	}
}
customElements.define("sv-words", Words);
