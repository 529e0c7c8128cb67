// What the console knows of the server, looked after while somebody sees the page; and the way to
// ask and to act.

import { line, token } from "./loopback.js";
import { Teller } from "./news.js";
import { Trouble } from "./trouble.js";
import { said } from "./words.js";

const SECONDS = 2;
const SELDOM = 6;
const EVERY = 3;

/** @param {string} text @returns {Said} */
export const plainly = (text) => said("trouble.other", { why: text });

/** @param {number} status @param {Said} [told] */
function judged(status, told) {
	if (status === 401) return new Trouble("over", told ?? plainly("This page has no session here."));
	if (status === 403 && (!told || told.key !== "trouble.other")) {
		return new Trouble("old", plainly("This page is from before. Load it again. Nothing was done."));
	}
	if (status >= 500 && told?.key !== "trouble.other") {
		return new Trouble("said", plainly("Something went wrong in the server; its log says more. Look again before you try again."));
	}
	return new Trouble("said", told ?? plainly(`The server answered with status ${status}.`));
}

/** Tells of "state" after each look, and of "standing" where it changes. */
export class Watch extends Teller {
	/** @type {ConsoleState | null} */
	state = null;
	/** @type {"here" | "gone" | "over" | "old"} */
	standing = "here";
	/** @type {Said | null} why it is not "here" */
	why = null;
	timer = 0;
	looking = false;

	constructor() {
		super();
		this.line = line(token(), judged);
		document.addEventListener("visibilitychange", () => this.awake());
	}

	get acts() {
		return this.state?.session.role === "act";
	}

	/** While the page is hidden nothing is asked; when it is seen again, at once. */
	awake() {
		clearTimeout(this.timer);
		if (document.visibilityState === "visible") void this.look();
	}

	async look() {
		if (this.looking) return;
		this.looking = true;
		clearTimeout(this.timer);
		try {
			const found = await (await this.line.read("state")).json();
			this.take(found);
		} catch (error) {
			this.stand(error);
		} finally {
			this.looking = false;
			const often = this.standing === "here" || this.standing === "gone";
			if (document.visibilityState === "visible") {
				this.timer = setTimeout(() => void this.look(), 1000 * (often ? SECONDS : SELDOM));
			}
		}
	}

	/** @param {ConsoleState} found */
	take(found) {
		const old = this.state && (found.start !== this.state.start || found.session.id !== this.state.session.id);
		if (old) {
			this.stand(new Trouble("old", plainly("The server was started anew, or another link was opened in this browser. Load this page again.")));
			return;
		}
		this.state = found;
		if (this.standing !== "here") this.settle("here", null);
		this.dispatchEvent(new Event("state"));
	}

	/** @param {unknown} error */
	stand(error) {
		if (!(error instanceof Trouble)) throw error;
		if (error.kind === "gone") {
			this.settle("gone", plainly("The server does not answer. This page looks again by itself; if the server was started anew, open the console with a new link."));
		} else if (error.kind === "over" || error.kind === "old") {
			this.settle(error.kind, error.said);
		}
	}

	/** @param {Watch["standing"]} standing @param {Said | null} why */
	settle(standing, why) {
		const same = this.standing === standing;
		this.standing = standing;
		this.why = why;
		if (!same) this.dispatchEvent(new Event("standing"));
	}

	/**
	 * What a view asks for; null where nothing came, which is told elsewhere.
	 * @param {string} path
	 * @param {Record<string, string | number>} [asked]
	 */
	async ask(path, asked = {}) {
		try {
			return await (await this.line.read(path, asked)).json();
		} catch (error) {
			this.stand(error);
			if (error instanceof Trouble && error.kind === "said") this.tell(error.said, true);
			return null;
		}
	}
}

/** What is shown in one place of the console. @abstract */
export class View extends HTMLElement {
	/** @param {Watch} watch */
	constructor(watch) {
		super();
		this.watch = watch;
		this.seen = "";
	}

	/** It is there now; what it shows may be old. */
	open() {
		this.seen = "";
	}

	/**
	 * After each look.
	 * @param {ConsoleState} _state
	 */
	show(_state) {}

	/**
	 * Whether this is other than the last time.
	 * @param {...unknown} parts
	 */
	moved(...parts) {
		const now = JSON.stringify(parts);
		const other = now !== this.seen;
		this.seen = now;
		return other;
	}
}

/** A view that asks for itself, at its opening and after every third look. @abstract */
export class SeldomView extends View {
	turns = 0;

	/** @override */
	open() {
		super.open();
		this.turns = 0;
	}

	/** @override */
	show() {
		if (this.turns++ % EVERY === 0) void this.read();
	}

	async read() {}
}
