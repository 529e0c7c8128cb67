// A question before what cannot be undone: what it means, a second press, a word to type.

import { button, h } from "./dom.js";
import { said, say } from "./words.js";

/**
 * @param {Said} question
 * @param {Said[]} undone what cannot be undone
 * @param {Said} yes
 * @param {Said | null} [word] to type
 */
export function ask(question, undone, yes, word = null) {
	return new Promise((resolve) => {
		const typed = h("input", { type: "text", id: "typed", autocomplete: "off" });
		const go = button(yes, () => dialog.close("yes"), { class: "main danger" });
		go.disabled = word !== null;
		typed.addEventListener("input", () => {
			go.disabled = word !== null && typed.value.trim().toLowerCase() !== say(word).toLowerCase();
		});
		const dialog = h(
			"dialog",
			{ "aria-labelledby": "asked" },
			h("h2", { id: "asked" }, question),
			...undone.map((one) => h("p", {}, one)),
			word &&
				h(
					"div",
					{ class: "typed" },
					h("label", { for: "typed" }, () => say(said("erase.confirm", { word: say(word) }))),
					typed,
				),
			h("div", { class: "press" }, button(said("page.cancel"), () => dialog.close("")), go),
		);
		dialog.addEventListener("close", () => {
			dialog.remove();
			resolve(dialog.returnValue === "yes");
		});
		document.body.append(dialog);
		dialog.showModal();
	});
}
