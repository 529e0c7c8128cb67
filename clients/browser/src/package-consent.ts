/** The consent centre of the npm package: one script with its style and its sentences. */

import style from "sottovoce:style";
import sentences from "sottovoce:sentences";

import { centre } from "./centre.ts";
import type { BrowserDevice } from "./index.ts";

const sheet = new CSSStyleSheet();
sheet.replaceSync(style);
document.adoptedStyleSheets = [sheet];

/** Where the element that made this page finds it. */
Object.defineProperty(window, "sottovoce", {
  value: (device: BrowserDevice, language: string): Promise<void> => {
    document.documentElement.lang = language;
    // A copy: a tab says some sentences in other words, and writes them into what it was given.
    const words = async (name: string) => structuredClone(sentences[name] ?? null);
    return centre(document.getElementById("page") as HTMLElement, device, words);
  },
});
