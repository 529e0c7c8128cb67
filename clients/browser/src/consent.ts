/** The page of the consent centre. `<sottovoce-consent>` makes it and hands it its device. */

import { centre } from "./centre.ts";
import type { BrowserDevice } from "./index.ts";

/** Where the element that made this page finds it. */
Object.defineProperty(window, "sottovoce", {
  value: (device: BrowserDevice, language: string): Promise<void> => {
    document.documentElement.lang = language;
    return centre(document.getElementById("page") as HTMLElement, device);
  },
});
