/**
 * What a shop puts into its page: `<sottovoce-consent>`, the consent centre, and
 * `<sottovoce-recommendations>`, a list that is computed in this browser. Each has a property
 * `device`, which the page sets. Neither needs an inline script or style. On a server, where there
 * are no elements, importing this module does nothing.
 */

import { visible } from "../../../src/sottovoce/web/pages/words.js";
import { openCentre } from "./frame-page.ts";
import type { BrowserDevice, Recommended } from "./index.ts";
import words from "sottovoce:words";

const PAUSE = 200;
const HOW_MANY = 10;

/** The language of the element's place, if there are words in it. */
function languageOf(element: Element): string {
  const place = element.closest("[lang]") ?? document.documentElement;
  const language = (place.getAttribute("lang") ?? "").slice(0, 2);
  return language in words ? language : "en";
}

export function say(element: Element, key: string): string {
  return words[languageOf(element)]?.[key] ?? key;
}

/** The base class; a server that renders pages has none and never makes an element. */
const Base = (globalThis.HTMLElement ?? class {}) as typeof HTMLElement;

function styled(root: ShadowRoot, rules: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(rules);
  root.adoptedStyleSheets = [sheet];
}

abstract class WithDevice extends Base {
  readonly root = this.attachShadow({ mode: "open" });
  #device: BrowserDevice | null = null;
  #waiting = false;
  readonly #changed = (): void => {
    if (this.#waiting) return; // changes may never pause
    this.#waiting = true;
    setTimeout(() => {
      this.#waiting = false;
      if (this.isConnected) this.changed();
    }, PAUSE);
  };

  get device(): BrowserDevice | null {
    return this.#device;
  }

  set device(device: BrowserDevice | null) {
    this.#device?.removeEventListener("change", this.#changed);
    this.#device = device;
    device?.addEventListener("change", this.#changed);
    if (this.isConnected) this.given();
  }

  connectedCallback(): void {
    this.given();
  }

  /** It has a place, or another device. */
  abstract given(): void;
  /** Something has happened in the device. */
  changed(): void {}
}

/** The consent centre: the agent's own page, in a frame of this origin, so that no rule of the
 * shop's style touches it. `src` is the address of a page `consent.html` of the shop's own. */
export class Consent extends WithDevice {
  readonly #frame = document.createElement("iframe");
  #drawn: BrowserDevice | null = null;

  constructor() {
    super();
    styled(
      this.root,
      ":host { display: block; height: var(--sottovoce-consent-height, 44rem) } " +
        ":host([hidden]) { display: none } " +
        "iframe { border: 0; width: 100%; height: 100% } p { margin: 1rem }",
    );
    this.#frame.addEventListener("load", () => {
      this.#drawn = null;
      this.#draw();
    });
  }

  given(): void {
    if (this.device === null) return;
    this.#frame.title = say(this, "page.title");
    if (this.#frame.isConnected) return this.#draw();
    this.#drawn = null;
    const own = this.getAttribute("src");
    openCentre(this.#frame, own === null ? null : new URL(own, document.baseURI).href);
    this.root.replaceChildren(this.#frame);
  }

  #draw(): void {
    const { device } = this;
    if (device === null || this.#drawn === device) return;
    this.#drawn = device;
    const page = this.#frame.contentWindow as Page | null;
    void found(page).then((draw) => {
      if (this.#drawn !== device) return undefined;
      return draw === null ? this.#missing() : draw(device, languageOf(this));
    });
  }

  /** Say what is wrong instead of showing some other page of the shop's inside itself. */
  #missing(): void {
    const why = document.createElement("p");
    why.setAttribute("role", "alert");
    why.textContent =
      "The consent centre cannot be shown: its page was not found. Serve the files of Sottovoce " +
      "beside the script, or name consent.html in the attribute src, from the origin of this page.";
    this.root.replaceChildren(why);
  }
}

type Draw = (device: BrowserDevice, language: string) => Promise<void>;
type Page = Window & { sottovoce?: Draw };
const [LONGEST_WAIT, LOOK] = [10_000, 50];

/** What draws the centre into a frame's page, or null if that page is another one. */
async function found(page: Page | null): Promise<Draw | null> {
  for (let waited = 0; page !== null && waited < LONGEST_WAIT; waited += LOOK) {
    try {
      if (page.sottovoce !== undefined) return page.sottovoce;
      if (page.document.getElementById("page") === null) return null;
    } catch {
      return null; // a page of another origin
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK));
  }
  return null;
}

/** Draws the inside of an entry of the list. */
export type Card = (item: Recommended) => Node;

const STYLE = `
  :host { display: block }
  :host([hidden]) { display: none }
  ol { display: var(--sottovoce-list-display, block); gap: var(--sottovoce-list-gap, 0);
       padding-left: var(--sottovoce-list-indent, 2.5rem) }
  [part~="item"] { color: var(--sottovoce-item-color, revert); font: inherit }
  [part~="help"] { color: var(--sottovoce-help-color, inherit); font-size: smaller }
`;

/** What the device recommends. `count` says how many, `href` where each leads, with `{id}` for the
 * item; an event `chosen` tells which was chosen (`detail.id`). The property `card` draws an entry
 * with more than its title: a function from `{ id, title, score }` to a node. */
export class Recommendations extends WithDevice {
  static readonly observedAttributes = ["count", "href"];
  #turn = 0;
  #drawn = "";
  #card: Card | null = null;

  constructor() {
    super();
    styled(this.root, STYLE);
  }

  /** What draws the inside of an entry: an image and a price, say. */
  get card(): Card | null {
    return this.#card;
  }

  set card(card: Card | null) {
    this.#card = card;
    this.#drawn = "";
    if (this.isConnected) this.given();
  }

  attributeChangedCallback(): void {
    if (this.isConnected) this.given();
  }

  given(): void {
    void this.#show();
  }

  override changed(): void {
    void this.#show();
  }

  async #show(): Promise<void> {
    const turn = ++this.#turn;
    const many = Number(this.getAttribute("count")) || HOW_MANY;
    const found = (await this.device?.recommend(many).catch(() => [])) ?? [];
    const drawn = JSON.stringify([found, this.getAttribute("href"), say(this, "tab.for_you")]);
    // What stays the same is not drawn again: it may have the focus.
    if (turn !== this.#turn || drawn === this.#drawn) return;
    this.#drawn = drawn;
    const parts = document.createElement(found.length ? "ol" : "p");
    parts.part.add(found.length ? "list" : "empty");
    if (found.length) parts.setAttribute("aria-label", say(this, "tab.for_you"));
    else parts.textContent = say(this, "page.recommend_empty");
    for (const one of found) {
      const item = document.createElement("li");
      item.append(this.#entry(one));
      parts.append(item);
    }
    const help = document.createElement("p");
    help.part.add("help");
    help.textContent = say(this, "tab.for_you_help");
    this.root.replaceChildren(parts, help);
  }

  #entry(one: Recommended): HTMLElement {
    const [id, title] = [one.id, one.title || one.id];
    const template = this.getAttribute("href");
    const entry = document.createElement(template === null ? "button" : "a");
    if (entry instanceof HTMLAnchorElement) {
      entry.href = (template ?? "").replaceAll("{id}", encodeURIComponent(id));
    } else entry.setAttribute("type", "button");
    entry.part.add("item");
    if (this.#card === null) entry.textContent = visible(title);
    else entry.replaceChildren(this.#card({ ...one, title }));
    entry.addEventListener("click", () =>
      this.dispatchEvent(new CustomEvent("chosen", { detail: { id, title }, bubbles: true })),
    );
    return entry;
  }
}

if (globalThis.customElements !== undefined && !customElements.get("sottovoce-consent")) {
  customElements.define("sottovoce-consent", Consent);
  customElements.define("sottovoce-recommendations", Recommendations);
}

declare global {
  interface HTMLElementTagNameMap {
    "sottovoce-consent": Consent;
    "sottovoce-recommendations": Recommendations;
  }
}
