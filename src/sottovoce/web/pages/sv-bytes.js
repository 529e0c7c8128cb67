// Bytes as she may look at them: the first of them, then all; and whether their digest is right.

import { button, h, put } from "./dom.js";
import { Rows } from "./sv-list.js";
import { said } from "./words.js";

export class Bytes extends HTMLElement {
	/** @param {Message} message @param {() => Promise<ArrayBuffer | null>} load */
	show(message, load) {
		const start = Uint8Array.from(atob(message.start), (one) => one.charCodeAt(0));
		/** @type {Rows<string>} */
		const rows = new Rows();
		const checked = h("p", { class: "checked", role: "status" });
		lay(rows, start);
		const all = button(
			said("page.bytes_show"),
			async () => {
				const content = await load();
				if (!content) return;
				lay(rows, new Uint8Array(content));
				all.remove();
			},
			{ class: "small" },
		);
		put(
			this,
			h("p", { class: "digest" }, said("page.fingerprint"), " ", h("code", {}, message.sha256)),
			checked,
			rows,
			h("div", { class: "press" }, message.bytes > start.length && all),
		);
		void check(message, load, checked);
	}
}
customElements.define("sv-bytes", Bytes);

/**
 * The digest is worked out here, of the bytes as they came.
 * @param {Message} message
 * @param {() => Promise<ArrayBuffer | null>} load
 * @param {HTMLElement} checked
 */
async function check(message, load, checked) {
	if (!globalThis.crypto?.subtle) {
		put(checked, said("page.bytes_no_crypto"));
		return;
	}
	const content = await load();
	if (!content) return;
	const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
	const same = hex(digest).replaceAll(" ", "") === message.sha256.toLowerCase();
	checked.classList.add(same ? "right" : "wrong");
	put(checked, said(same ? "page.bytes_right" : "page.bytes_wrong"));
}

/** @param {Rows<string>} rows @param {Uint8Array} content */
function lay(rows, content) {
	rows.classList.add("hex");
	const wide = matchMedia("(min-width: 45rem)").matches ? 16 : 8;
	rows.show({
		total: Math.ceil(content.length / wide),
		load: async (offset, limit) => {
			const found = [];
			for (let at = offset; at < offset + limit && at * wide < content.length; at += 1) {
				const place = (at * wide).toString(16).padStart(6, "0");
				const part = content.subarray(at * wide, (at + 1) * wide);
				found.push(`${place}  ${hex(part).padEnd(wide * 3)} ${wide > 8 ? text(part) : ""}`);
			}
			return found;
		},
		draw: (line) => h("div", {}, line),
		height: 1.5,
		label: said("page.bytes"),
	});
}

/** @param {Uint8Array} some */
const text = (some) => String.fromCharCode(...some).replace(/[^ -~]/g, "·");

/** @param {Uint8Array} some */
const hex = (some) => [...some].map((one) => one.toString(16).padStart(2, "0")).join(" ");
