/**
 * What a shop puts into its page: `<sottovoce-consent>`, the consent centre, and
 * `<sottovoce-recommendations>`, a list that is worked out in this browser. Each has a property
 * `device`, which the page sets. Neither needs an inline script or style.
 */

import { visible } from "../../../src/sottovoce/web/pages/words.js";
import type { BrowserDevice } from "./index.ts";
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

type Draw = (device: BrowserDevice, language: string) => Promise<void>;

function styled(root: ShadowRoot, rules: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(rules);
  root.adoptedStyleSheets = [sheet];
}

abstract class WithDevice extends HTMLElement {
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
 * shop's style touches it. `src` is its address, if it is not beside this script. */
export class Consent extends WithDevice {
  readonly #frame = document.createElement("iframe");
  #drawn = false;

  constructor() {
    super();
    styled(
      this.root,
      ":host { display: block; height: 44rem } :host([hidden]) { display: none } " +
        "iframe { border: 0; width: 100%; height: 100% }",
    );
    this.#frame.addEventListener("load", () => {
      this.#drawn = false;
      this.#draw();
    });
  }

  given(): void {
    if (this.device === null) return;
    this.#frame.title = say(this, "page.title");
    if (!this.#frame.isConnected) {
      this.#drawn = false;
      const beside = new URL("consent.html", import.meta.url);
      this.#frame.src = new URL(this.getAttribute("src") ?? beside, document.baseURI).href;
      this.root.replaceChildren(this.#frame);
    } else {
      this.#draw();
    }
  }

  #draw(): void {
    const page = this.#frame.contentWindow as (Window & { sottovoce?: Draw }) | null;
    let draw: Draw | undefined;
    try {
      draw = page?.sottovoce;
    } catch {
      draw = undefined; // a page of another origin
    }
    if (draw === undefined) {
      console.error("sottovoce-consent: consent.html must come from the origin of this page");
    } else if (this.device !== null && !this.#drawn) {
      this.#drawn = true;
      void draw(this.device, languageOf(this));
    }
  }
}

/** What the device recommends. `count` says how many, `href` where each leads, with `{id}` for the
 * item; an event `chosen` tells which was chosen (`detail.id`). */
export class Recommendations extends WithDevice {
  static readonly observedAttributes = ["count", "href"];
  #turn = 0;
  #drawn = "";

  constructor() {
    super();
    styled(this.root, ":host { display: block } :host([hidden]) { display: none }");
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
    for (const { id, title } of found) {
      const item = document.createElement("li");
      item.append(this.#entry(id, title || id));
      parts.append(item);
    }
    const help = document.createElement("p");
    help.part.add("help");
    help.textContent = say(this, "tab.for_you_help");
    this.root.replaceChildren(parts, help);
  }

  #entry(id: string, title: string): HTMLElement {
    const template = this.getAttribute("href");
    const entry = document.createElement(template === null ? "button" : "a");
    if (entry instanceof HTMLAnchorElement) {
      entry.href = (template ?? "").replaceAll("{id}", encodeURIComponent(id));
    } else entry.setAttribute("type", "button");
    entry.part.add("item");
    entry.textContent = visible(title);
    entry.addEventListener("click", () =>
      this.dispatchEvent(new CustomEvent("chosen", { detail: { id, title }, bubbles: true })),
    );
    return entry;
  }
}

customElements.define("sottovoce-consent", Consent);
customElements.define("sottovoce-recommendations", Recommendations);
