// Preview: what would leave now, to the byte, and who sees what of it. "Send now" sends just that.

import { Part } from "./desk.js";
import { button, h, more, put, save, technical } from "./dom.js";
import { Bytes } from "./sv-bytes.js";
import { percent, said } from "./words.js";

const PAUSE = 300;
const FEW = 10;

export class Preview extends Part {
	/** @type {Previewed | null} */
	preview = null;
	asked = false;
	basis = "";
	pause = 0;
	turn = 0;
	state = h("p", { role: "status", class: "strong" });
	body = h("div", { class: "shown" });
	hint = h("p", {}, said("preview.not_asked"));
	look = button(said("page.preview_button"), () => void this.compute());
	send = button(said("page.send"), () => void this.sent(), { class: "main" });

	connectedCallback() {
		put(
			this,
			this.hint,
			h("div", { class: "press" }, this.look),
			this.state,
			this.body,
			h("div", { class: "press" }, this.send),
			h("p", { class: "help" }, said("page.send_help")),
		);
	}

	/** @override @param {Store} store @param {boolean} fresh */
	draw(store, fresh) {
		const basis = JSON.stringify([
			store.choice,
			store.takes_part,
			store.stopped,
			store.terms?.digest,
			store.terms?.agreed,
			store.history,
			store.contributions,
		]);
		this.look.disabled = store.stopped;
		if (fresh) {
			this.preview = null;
			this.wait();
			put(this.state);
		}
		const stale = basis !== this.basis;
		this.basis = basis;
		if (stale) this.mark(true);
		if (stale && store.history.items === 0) put(this.body); // it may name what is forgotten
		if (stale && this.asked) {
			this.turn += 1;
			clearTimeout(this.pause);
			if (this.look.disabled) put(this.state, store.quiet);
			else this.pause = setTimeout(() => void this.compute(), PAUSE);
		}
	}

	/** @param {boolean} stale what is shown is no longer what would leave */
	mark(stale) {
		this.body.classList.toggle("stale", stale);
		this.send.disabled = stale || !this.preview?.nonce;
		if (stale && this.preview) put(this.state, said("preview.stale"));
	}

	/** Until she asks, nothing is worked out. */
	wait() {
		clearTimeout(this.pause);
		this.asked = false;
		this.hint.hidden = false;
		put(this.look, said("page.preview_button"));
		put(this.body);
	}

	async compute() {
		const turn = (this.turn += 1);
		const { store, provider } = this.desk;
		this.asked = this.hint.hidden = true;
		put(this.look, said("page.preview_again"));
		this.mark(true);
		put(this.state, said("preview.reading"));
		const preview = await this.desk.ask(() => provider.preview(store.id));
		if (turn !== this.turn || store.id !== this.desk.store.id) return;
		if (!preview) {
			put(this.state, said("preview.stale"));
			return;
		}
		this.preview = preview;
		put(this.state, preview.said);
		put(this.body, ...(preview.ready ? this.parts(store, preview) : [technical(why(preview))]));
		this.mark(false);
		void this.desk.read(); // terms, or a model, may have come with it
	}

	/** @param {Store} store @param {Previewed} preview */
	parts(store, preview) {
		const cost =
			preview.cost ??
			(preview.epsilon === null
				? said("preview.no_bound")
				: said("preview.uses", { epsilon: preview.epsilon }));
		// A message that this device is there has nothing of hers in it.
		const things = preview.round !== null || preview.total > 0;
		return [
			h("p", {}, things ? cost : said("ledger.free")),
			things && h("h3", {}, said("page.things")),
			things && h("p", {}, said("preview.items", { n: preview.total })),
			preview.kept_back > 0 && h("p", {}, said("preview.kept_back", { n: preview.kept_back })),
			preview.items.length > 1 && h("p", { class: "help" }, said("preview.weight_help")),
			things && bars(preview),
			h("h3", {}, said("page.readers")),
			readers(preview.readers),
			h("h3", {}, said("page.bytes")),
			...preview.messages.map((message, index) => this.message(store, message, index)),
		].filter((one) => one instanceof Node);
	}

	/** @param {Store} store @param {Message} message @param {number} index */
	message(store, message, index) {
		const load = () => this.desk.ask(() => this.desk.provider.body(store.id, index));
		// What is made only on the way has no bytes yet.
		const bytes = message.start ? new Bytes() : null;
		bytes?.show(message, load);
		const keep = async () => {
			const content = await load();
			if (content) save(`message-${index + 1}.bin`, new Blob([content]));
		};
		return h(
			"article",
			{ class: "message" },
			h("h4", {}, message.what),
			h("p", {}, said("page.to"), ": ", message.to, " · ", said("page.size", { size: message.bytes })),
			h("p", { class: "help" }, said(message.exact ? "preview.exact" : "preview.sealed_anew")),
			bytes && more(said("preview.technical"), bytes, button(said("page.download"), keep, { class: "small" })),
		);
	}

	async sent() {
		const { store, provider } = this.desk;
		const nonce = this.preview?.nonce;
		if (!nonce || this.send.disabled) return;
		this.send.disabled = true;
		const result = await this.desk.act(() => provider.send(store.id, nonce));
		if (result) {
			this.preview = null;
			this.wait();
			put(this.state, result.said);
			this.desk.tell(result.said, result.state !== "arrived");
		} else {
			void this.compute();
		}
	}
}
customElements.define("sv-preview", Preview);

/** @param {Previewed} preview */
const why = (preview) => (preview.why ? [preview.why] : []);

/** @param {Previewed} preview */
function bars(preview) {
	const list = h("ul", { class: "bars" });
	/** @param {number} few */
	const lay = (few) =>
		put(
			list,
			...preview.items.slice(0, few).map((one) => {
				const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
				/** @type {HTMLElement} */ (bar.firstChild).style.width = `${one.weight * 100}%`;
				return h(
					"li",
					{},
					h("span", { class: "name" }, one.title || one.item),
					bar,
					h("span", { class: "quiet" }, () => percent(Math.round(one.weight * 100) / 100)),
				);
			}),
		);
	lay(FEW);
	const rest = preview.items.length - FEW;
	const all = button(
		said("page.more"),
		() => {
			lay(preview.items.length);
			all.remove();
		},
		{ class: "small" },
	);
	return h(
		"div",
		{},
		list,
		rest > 0 && all,
		preview.items.length < preview.total &&
			h("p", { class: "help" }, said("preview.first", { n: preview.items.length })),
		preview.others > 0 && h("p", { class: "help" }, said("preview.others", { n: preview.others })),
	);
}

/** @param {Reader[]} known who sees what; one who sees several things is named once */
export const readers = (known) => {
	/** @type {Map<string, Reader[]>} */
	const by = new Map();
	for (const one of known) {
		const who = JSON.stringify(one.who);
		by.set(who, [...(by.get(who) ?? []), one]);
	}
	return h(
		"dl",
		{ class: "readers" },
		...[...by.values()].flatMap((same) => [
			h("dt", {}, /** @type {Reader} */ (same[0]).who),
			...same.map((one) => h("dd", {}, one.sees)),
		]),
	);
};
