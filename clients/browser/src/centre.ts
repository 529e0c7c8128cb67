/** The consent centre of a device in this tab. */

import { consent } from "../../../src/sottovoce/web/pages/consent.js";
import type { BrowserDevice } from "./index.ts";
import { type TabOptions, tab } from "./provider.ts";

/** Milliseconds after something has changed: several changes are shown at once. */
const PAUSE = 200;

/** Draw the centre into an element; it follows what happens in the device. `words` reads the
 * sentences; by default they lie beside this script. */
export async function centre(
  root: HTMLElement,
  device: BrowserDevice,
  words: TabOptions["words"] = new URL("words/", import.meta.url),
): Promise<void> {
  let [waiting, changed] = [false, false];
  let read = (): void => void (changed = true);
  device.addEventListener("change", () => {
    if (waiting) return; // changes may never pause
    waiting = true;
    setTimeout(() => {
      waiting = false;
      read();
    }, PAUSE);
  });
  const { desk } = await consent(root, tab(device, { words }));
  read = () => void desk.read();
  if (changed) read(); // while it was being drawn
}
