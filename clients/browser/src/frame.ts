/**
 * The device in a frame of another origin than the shop's: the shop's scripts cannot read what is in
 * it. The shop says what she visits and what is to be shown; the frame tells it which recommendation
 * she has clicked, and nothing else. It listens to the page around it alone, and only if the
 * operator has named that page's origin.
 */

import { centre } from "./centre.ts";
import { Recommendations } from "./elements.ts";
import { invitationHere, openDevice } from "./index.ts";

type Shown = "recommendations" | "consent";

/** What the operator has written into the page. */
const told = (name: string): string =>
  document.querySelector<HTMLMetaElement>(`meta[name="sottovoce-${name}"]`)?.content ?? "";
const pages = told("pages").split(/\s+/).filter(Boolean);
const root = document.getElementById("page") as HTMLElement;
document.documentElement.lang = navigator.language.slice(0, 2);
const invitation = invitationHere();
const federation = told("federation") || location.origin;
const opening = openDevice({ federation, ...(invitation && { invitation }) });
opening.catch((error: Error) => {
  root.textContent = error.message;
});
let around = "";
let shown = "";

window.addEventListener("message", ({ source, origin, data }) => {
  if (source !== window.parent || source === window || !pages.includes(origin)) return;
  if (typeof data !== "object" || data === null) return;
  around = origin;
  const { sottovoce, item, what } = data as Record<string, unknown>;
  // Nothing is answered: not even whether it worked.
  if (sottovoce === "visited" && typeof item === "string") {
    void opening.then((device) => device.visited(item)).catch(() => undefined);
  } else if (sottovoce === "show" && (what === "recommendations" || what === "consent")) {
    void show(what);
  }
});

async function show(what: Shown): Promise<void> {
  if (shown === what) return;
  if (shown === "consent") return; // which stays until the frame is loaded anew
  shown = what;
  const device = await opening;
  document.body.className = what === "consent" ? "centre" : "";
  if (what === "consent") return centre(root, device);
  const list = new Recommendations();
  list.addEventListener("chosen", (event) => {
    const { id } = (event as CustomEvent<{ id: string }>).detail;
    if (around) window.parent.postMessage({ sottovoce: "chosen", item: id }, around);
  });
  root.replaceChildren(list);
  list.device = device;
}

// Who opens the page by itself sees her consent centre.
if (window.parent === window) void show("consent");
