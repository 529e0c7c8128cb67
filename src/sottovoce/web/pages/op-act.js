// An act: what it means first, then a second press. It has one key, so that pressing again after no
// answer came does nothing twice.

import { button, h, put, set } from "./dom.js";
import { LONG } from "./loopback.js";
import { Trouble } from "./trouble.js";
import { plainly } from "./watch.js";

/**
 * @typedef {object} Asked
 * @property {string} label
 * @property {string} [value]
 * @property {"text" | "number" | "area"} [kind]
 * @property {number} [least]
 * @property {number} [most]
 * @property {string} [help]
 */
/**
 * @typedef {object} Act
 * @property {string} path
 * @property {string} title
 * @property {string[]} says what it means
 * @property {string} yes
 * @property {boolean} [danger]
 * @property {Record<string, Asked>} [fields]
 * @property {(given: Record<string, string>) => Record<string, unknown>} body
 * @property {(response: Response) => Promise<string>} done in words
 */

/**
 * @param {import("./watch.js").Watch} watch
 * @param {Act} act
 * @returns {Promise<boolean>} whether it was done
 */
export function confirm(watch, act) {
	const key = crypto.randomUUID();
	return new Promise((resolve) => {
		let done = false;
		const fields = Object.entries(act.fields ?? {});
		/** @type {Map<string, HTMLInputElement | HTMLTextAreaElement>} */
		const inputs = new Map(
			fields.map(([name, one]) => {
				const common = { id: `asked-${name}`, name, autocomplete: "off", "aria-describedby": one.help ? `help-${name}` : null };
				const input =
					one.kind === "area"
						? h("textarea", { ...common, rows: 6, spellcheck: "false" })
						: h("input", { ...common, type: one.kind ?? "text", min: one.least ?? null, max: one.most ?? null, required: one.kind === "number" });
				input.value = one.value ?? "";
				for (const sign of ["input", "invalid"]) {
					input.addEventListener(sign, () => set(input, "aria-invalid", !input.validity.valid));
				}
				return [name, input];
			}),
		);
		const trouble = h("p", { role: "alert", class: "objection" });
		trouble.hidden = true;
		const yes = h("button", { type: "submit", class: `main${act.danger ? " danger" : ""}` }, act.yes);
		const form = h(
			"form",
			{},
			h("h2", { id: "asked" }, act.title),
			...act.says.map((one) => h("p", {}, one)),
			...fields.map(([name, one]) =>
				h(
					"div",
					{ class: "add" },
					h("label", { for: `asked-${name}` }, one.label),
					inputs.get(name),
					one.help ? h("p", { class: "help", id: `help-${name}` }, one.help) : null,
				),
			),
			trouble,
			h("div", { class: "press" }, button("Cancel", () => dialog.close(), { "data-deed": "cancel" }), yes),
		);
		const dialog = h("dialog", { "aria-labelledby": "asked", class: "act" }, form);
		form.addEventListener("submit", (event) => {
			event.preventDefault();
			void press();
		});

		async function press() {
			yes.disabled = true;
			trouble.hidden = true;
			try {
				const given = Object.fromEntries([...inputs].map(([name, input]) => [name, input.value.trim()]));
				const response = await watch.line.send(act.path, { ...act.body(given), key }, LONG);
				const words = await act.done(response);
				done = true;
				dialog.close();
				watch.tell(words);
				void watch.look();
			} catch (error) {
				if (!(error instanceof Trouble)) throw error;
				watch.stand(error);
				trouble.hidden = false;
				put(trouble, error.kind === "gone" ? plainly("No answer came. Press again: it is not done twice.") : error.said);
				yes.disabled = false;
				yes.focus();
			}
		}

		dialog.addEventListener("close", () => {
			dialog.remove();
			resolve(done);
		});
		document.body.append(dialog);
		dialog.showModal();
	});
}
