// The log of what operators did, newest first.

import { many, shortly, when } from "./op-draw.js";
import { cell, header, part } from "./op-now.js";
import { h, put } from "./dom.js";
import { Rows } from "./sv-list.js";
import { plainly, SeldomView } from "./watch.js";

export class Log extends SeldomView {
	/** @type {Rows<ActLine>} */
	rows = new Rows();
	count = h("p", { class: "count" });

	connectedCallback() {
		this.rows.classList.add("table", "log");
		put(this, part("log", "What operators did", this.count, this.rows));
	}

	/** @override */
	async read() {
		const first = await this.watch.ask("acts", { offset: 0, limit: 100 });
		if (!first || !this.moved(first.total, first.rows[0]?.id)) return;
		put(this.count, first.total === 0 ? "Nothing was done yet." : first.total === 1 ? "1 act" : `${many(first.total)} acts`);
		this.rows.hidden = first.total === 0;
		this.rows.show(
			{
				total: first.total,
				load: async (offset, limit) => (offset === 0 ? first.rows : ((await this.watch.ask("acts", { offset, limit }))?.rows ?? null)),
				draw: (one) =>
					h(
						"div",
						{},
						cell("when", innerWidth < 720 ? shortly(one.at) : when(one.at)),
						cell("who", `${one.who}, ${one.how}`),
						cell("what", one.words),
					),
				height: innerWidth < 720 ? 4.75 : 2.75,
				label: plainly("What operators did"),
				head: header(["when", "who", "what"]),
			},
			true,
		);
	}
}
customElements.define("op-log", Log);
