// The page's desk: the state as last read, one change at a time, and whether the agent answers.

import { Teller } from "./news.js";
import { Trouble } from "./trouble.js";
import { said } from "./words.js";

const AGAIN = 1500;
const BEAT = 10000;
const LONG_AGO = 600000;

/**
 * Events: `store` (what is shown has changed), `standing` (the agent went or came back), and
 * `tell` (a sentence for her).
 */
export class Desk extends Teller {
	/** @param {Provider} provider */
	constructor(provider) {
		super();
		this.provider = provider;
		/** @type {State | null} */
		this.state = null;
		this.shown = "";
		/** @type {"here" | "gone" | "over"} */
		this.standing = "here";
		this.waiting = 0;
		this.seen = Date.now();
		/** @type {Promise<unknown>} */
		this.queue = Promise.resolve();
		this.others = new BroadcastChannel("sottovoce");
		this.others.onmessage = () => void this.read();
		document.addEventListener("visibilitychange", () => void this.read());
		window.addEventListener("focus", () => void this.read());
		for (const sign of ["keydown", "pointerdown", "focus"]) {
			window.addEventListener(sign, () => (this.seen = Date.now()), true);
		}
		setInterval(() => this.attended() && void this.read(), BEAT);
	}

	get store() {
		const stores = this.state?.stores ?? [];
		return stores.find((one) => one.id === this.shown) ?? stores[0];
	}

	/** A page that nobody looks at asks for nothing, so that its session can end. */
	attended() {
		return !document.hidden && Date.now() - this.seen < LONG_AGO;
	}

	/** @param {string} id */
	choose(id) {
		this.shown = id;
		this.dispatchEvent(new Event("store"));
	}

	/** The state is read anew, after what is being done. */
	read() {
		return this.after(async () => {
			if (this.standing === "over") return;
			try {
				this.take(await this.provider.state());
				this.stand("here");
			} catch (error) {
				this.fail(error, false);
			}
		});
	}

	/**
	 * Something that changes what is stored or leaves: one at a time; then the state is read anew and
	 * other windows are told.
	 * @template T
	 * @param {() => Promise<T>} work
	 * @param {Said | null} [done] what she is told then
	 * @returns {Promise<T | null>} null if it came to nothing; she has been told why
	 */
	act(work, done = null) {
		return this.after(async () => {
			try {
				const result = await work();
				this.take(await this.provider.state());
				this.others.postMessage("changed");
				if (done) this.tell(done);
				return result;
			} catch (error) {
				this.fail(error, true);
				return null;
			}
		});
	}

	/**
	 * Something that is asked and changes nothing.
	 * @template T
	 * @param {() => Promise<T>} work
	 * @returns {Promise<T | null>} null if no answer came; she has been told why
	 */
	async ask(work) {
		try {
			return await work();
		} catch (error) {
			this.fail(error, true);
			return null;
		}
	}

	/** @template T @param {() => Promise<T>} work */
	after(work) {
		const next = this.queue.then(work);
		this.queue = next.catch(() => undefined);
		return next;
	}

	/** @param {State} state */
	take(state) {
		const same = JSON.stringify(this.state) === JSON.stringify(state);
		this.state = state;
		if (!same) this.dispatchEvent(new Event("store"));
	}

	/** @param {unknown} error @param {boolean} aloud */
	fail(error, aloud) {
		if (!(error instanceof Trouble)) throw error;
		if (error.kind === "over" || error.kind === "gone") {
			this.stand(error.kind);
		} else {
			if (aloud) this.tell(error.said, true);
			if (error.kind === "changed") void this.read();
		}
	}

	/** @param {"here" | "gone" | "over"} standing */
	stand(standing) {
		const before = this.standing;
		this.standing = standing;
		clearTimeout(this.waiting);
		if (standing === "gone") this.waiting = setTimeout(() => void this.read(), AGAIN);
		if (before === standing) return;
		this.dispatchEvent(new Event("standing"));
		if (before === "gone" && standing === "here") {
			this.dispatchEvent(new Event("store"));
			this.tell(said("trouble.back"));
		}
	}
}

/** A part of the page that draws a store. */
export class Part extends HTMLElement {
	/** @param {Desk} desk */
	constructor(desk) {
		super();
		this.desk = desk;
		this.drawn = "";
	}

	/** The store is drawn: from the beginning if it is another one. */
	show() {
		const store = this.desk.store;
		const fresh = this.drawn !== store.id;
		this.drawn = store.id;
		this.draw(store, fresh);
	}

	/** @param {Store} _store @param {boolean} _fresh */
	draw(_store, _fresh) {}
}
