// The consent centre: one page for a person in any number of federations.

import { Desk } from "./desk.js";
import { h, put, sayAnew, set } from "./dom.js";
import { news } from "./news.js";
import { Choices } from "./sv-choices.js";
import { Learn } from "./sv-learn.js";
import { Ledger } from "./sv-ledger.js";
import { Preview } from "./sv-preview.js";
import { Stands } from "./sv-stands.js";
import { Stop } from "./sv-stop.js";
import { Terms } from "./sv-terms.js";
import { Things } from "./sv-things.js";
import { Words } from "./sv-words.js";
import { LANGUAGES, said, say, speak, spoken } from "./words.js";

/** @typedef {import("./desk.js").Part} Part */

const KEPT = "sottovoce-language";
/** @type {Record<string, string>} */
const NAMES = { en: "page.english", it: "page.italian" };

/**
 * The page, drawn into an element; or a panel of another page, which has a head of its own.
 * @param {HTMLElement} root
 * @param {Provider} provider
 * @param {string} [host] the title of that page
 */
export async function consent(root, provider, host = "") {
	const desk = new Desk(provider);
	const asked = sessionStorage.getItem(KEPT) ?? document.documentElement.lang;
	const language = LANGUAGES.includes(asked) ? asked : "en";
	const [catalogue] = await Promise.all([provider.words(language), desk.read()]);
	speak(language, catalogue);
	set(document.documentElement, "lang", language);

	/** @type {[string, Part][]} */
	const parts = [
		["stands", new Stands(desk)],
		["choices", new Choices(desk)],
		["never", new Things(desk)],
		["preview", new Preview(desk)],
		["ledger", new Ledger(desk)],
		["learn", new Learn(desk)],
		["terms", new Terms(desk)],
		["stop", new Stop(desk)],
	];
	const rooms = parts.map(([name, part]) =>
		h("div", { class: "part", role: "group", "aria-labelledby": `head-${name}` }, part),
	);
	for (const room of rooms) room.addEventListener("click", (event) => held(event), true);
	const sections = parts.map(([name], at) =>
		h(
			"section",
			{ id: name, tabindex: -1, "aria-labelledby": `head-${name}` },
			h("h2", { id: `head-${name}` }, said(`page.${name}`)),
			rooms[at],
		),
	);
	const stores = h("ul", { class: "stores" });
	const picked = h("select", { id: "store" });
	picked.addEventListener("change", () => desk.choose(picked.value));
	const title = h("p", { class: "federation" });
	const banner = h("div", { class: "banner", role: "alert", hidden: true });

	function list() {
		const known = desk.state?.stores ?? [];
		stores.hidden = known.length < 2;
		picked.parentElement?.toggleAttribute("hidden", known.length < 2);
		put(
			stores,
			...known.map((one) =>
				h(
					"li",
					{},
					h(
						"button",
						{
							type: "button",
							"data-store": one.id,
							"aria-current": one.id === desk.store.id ? "true" : null,
							onclick: () => desk.choose(one.id),
						},
						h("span", { class: "label" }, one.federation ?? one.name),
						h("span", { class: "quiet" }, status(one)),
					),
				),
			),
		);
		put(
			picked,
			...known.map((one) =>
				h("option", { value: one.id, selected: one.id === desk.store.id }, one.federation ?? one.name),
			),
		);
	}

	function draw() {
		list();
		for (const section of sections) section.hidden = !desk.store;
		if (!desk.store) {
			put(title, desk.state && said("trouble.no_store"));
			for (const room of rooms) put(room); // what is forgotten is not here any more, either
			return;
		}
		put(title, desk.store.federation ?? desk.store.name);
		for (const [, part] of parts) part.show();
	}

	/**
	 * While nobody answers, everything can be read and reached, and nothing can be pressed.
	 * @param {Event} event
	 */
	function held(event) {
		const control = event.target instanceof Element && event.target.closest("button, input, label");
		if (desk.standing === "here" || !control) return;
		event.preventDefault();
		event.stopPropagation();
	}

	function standing() {
		const here = desk.standing === "here";
		for (const room of rooms) set(room, "aria-disabled", here ? null : "true");
		banner.hidden = here;
		put(banner, !here && h("p", {}, said(desk.standing === "over" ? "trouble.session" : "trouble.agent_stopped")));
	}

	const languages = h(
		"div",
		{ class: "languages", role: "group", "aria-label": said("page.language") },
		...LANGUAGES.map((name) =>
			h(
				"button",
				{ type: "button", lang: name, "data-language": name, onclick: () => void translate(name) },
				said(NAMES[name] ?? name),
			),
		),
	);

	/** @param {string} name */
	async function translate(name) {
		const words = name === spoken() ? null : await desk.ask(() => provider.words(name));
		if (words) speak(name, words);
		set(document.documentElement, "lang", spoken());
		sessionStorage.setItem(KEPT, spoken());
		for (const one of languages.children) {
			set(one, "aria-pressed", String(one.getAttribute("data-language") === spoken()));
		}
		document.title = say(said(host || "page.title"));
		if (words) sayAnew();
	}

	const skip = h("a", { class: "skip", href: "#stands" }, said("page.skip"));
	const head = [h("p", { class: "brand" }, "Sottovoce"), h("h1", {}, said("page.title")), languages];
	put(
		root,
		!host && skip,
		!host && h("header", {}, ...head),
		banner,
		h(
			"div",
			{ class: "frame" },
			h(
				"nav",
				{ "aria-label": said("page.menu") },
				h("div", { class: "pick" }, h("label", { for: "store" }, said("page.federations")), picked),
				stores,
				h(
					"ol",
					{ class: "contents" },
					...[...parts.map(([name]) => name), "glossary"].map((name) =>
						h("li", {}, h("a", { href: `#${name}` }, said(`page.${name}`))),
					),
				),
			),
			h(host ? "div" : "main", { class: "main" }, !host && title, ...sections, h("div", { id: "glossary" }, new Words(provider)), h("p", { class: "help" }, said("page.local"))),
		),
		news(desk, said("page.close")),
	);
	desk.addEventListener("store", draw);
	desk.addEventListener("standing", standing);
	await translate(language);
	standing();
	draw();
	performance.mark("usable");
	root.setAttribute("data-ready", "");
	return { desk, languages };
}

/** @param {Store} store */
function status(store) {
	if (store.stopped) return said("page.status_stopped");
	if (store.terms && !store.terms.agreed) return said("page.status_terms");
	return said(store.takes_part ? "page.status_on" : "page.status_off");
}
