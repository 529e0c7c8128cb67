// The operator's console: one place at a time, chosen in the address.

import { button, h, put, set } from "./dom.js";
import { news } from "./news.js";
import { Devices } from "./op-devices.js";
import { Health } from "./op-health.js";
import { Log } from "./op-log.js";
import { Model } from "./op-model.js";
import { Now } from "./op-now.js";
import { TermsView } from "./op-terms.js";
import { Watch } from "./watch.js";
import { speak } from "./words.js";

/** @param {HTMLElement} root @param {Watch} watch */
async function open(root, watch) {
	speak("en", await (await watch.line.call("words/en.json")).json());
	/** @type {[string, string, import("./watch.js").View][]} */
	const views = [
		["now", "Rounds", new Now(watch)],
		["devices", "Devices", new Devices(watch)],
		["model", "Model", new Model(watch)],
		["terms", "Terms", new TermsView(watch)],
		["health", "Health", new Health(watch)],
		["log", "Log", new Log(watch)],
	];
	const name = h("h1", {}, "Console");
	const who = h("p", { class: "who quiet" });
	const pill = h("p", { class: "pill", "aria-live": "polite" });
	const banner = h("div", { class: "banner", role: "alert", hidden: true });
	const places = h("ul", { class: "places" });
	const main = h("main", { id: "main", tabindex: -1 });

	const chosen = () => views.find(([id]) => `#/${id}` === location.hash) ?? /** @type {(typeof views)[0]} */ (views[0]);

	function go() {
		const [id, title, view] = chosen();
		for (const link of places.querySelectorAll("a")) set(link, "aria-current", link.getAttribute("href") === `#/${id}` ? "page" : null);
		document.title = `${title} · ${watch.state?.federation ?? "Sottovoce"}`;
		if (!view.isConnected) put(main, view);
		view.open();
		draw();
	}

	function draw() {
		const state = watch.state;
		if (!state) return;
		put(name, state.federation);
		put(who, `${state.session.name}, ${watch.acts ? "may act" : "may look"}`);
		const kind = state.paused ? "paused" : state.state;
		set(pill, "class", `pill ${kind}`);
		if (pill.textContent !== kind) put(pill, kind);
		chosen()[2].show(state);
	}

	function standing() {
		const here = watch.standing === "here";
		set(main, "aria-disabled", here ? null : "true");
		banner.hidden = here;
		put(banner, watch.why && h("p", {}, watch.why), watch.standing === "old" && button("Load this page again", () => location.reload(), { class: "small" }));
	}

	put(places, ...views.map(([id, title]) => h("li", {}, h("a", { href: `#/${id}` }, title))));
	put(
		root,
		h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, "Skip to what is shown"),
		h("header", {}, h("p", { class: "brand" }, "Sottovoce"), name, pill, who),
		banner,
		h("div", { class: "frame" }, h("nav", { "aria-label": "Places" }, places), main),
		news(watch, "Close"),
	);
	watch.addEventListener("state", draw);
	watch.addEventListener("standing", standing);
	addEventListener("hashchange", () => {
		go();
		scrollTo(0, 0);
	});
	await watch.look();
	standing();
	go();
	performance.mark("usable");
	root.setAttribute("data-ready", "");
}

const root = document.querySelector("#page");
if (root instanceof HTMLElement) await open(root, new Watch());
