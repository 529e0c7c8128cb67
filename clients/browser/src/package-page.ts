/**
 * The page of the consent centre in the npm package: made here, with one script that has its style
 * and its sentences in it. Bundlers know the expression with `new URL` and bring the script along.
 */

import { scriptUrl } from "./trusted.ts";

/** Make the centre's page in a frame, or let the frame load `src` if the shop names one. */
export function openCentre(frame: HTMLIFrameElement, src: string | null): void {
  if (src !== null) {
    frame.src = src;
    return;
  }
  const made = (): void => {
    frame.removeEventListener("load", made, true);
    const page = frame.contentDocument;
    if (page === null) return;
    const [root, script] = [page.createElement("div"), page.createElement("script")];
    root.id = "page";
    script.type = "module";
    script.src = scriptUrl(new URL("./consent.js", import.meta.url).href);
    page.body.className = "centre";
    page.body.replaceChildren(root, script);
  };
  frame.addEventListener("load", made, true); // before the element looks what is there
}
