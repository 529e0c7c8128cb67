/**
 * The device in a frame of another origin than the shop's: the shop's scripts cannot read what is in
 * it. The shop says what she visits and what is to be shown; the frame tells it which recommendation
 * she has clicked, and nothing else. It listens to the page around it alone, and only if the
 * operator has named that page's origin.
 *
 * A shop can lay things over a frame, so that she presses what she does not see. So the frame has
 * nothing with which she agrees or chooses: its consent centre opens in a window of its own, which
 * uses the frame's device. (A window that opened the store itself would find another one: browsers
 * keep a frame's data apart for each site around it.)
 */

import { centre } from "./centre.ts";
import { Recommendations, say } from "./elements.ts";
import { type BrowserDevice, invitationHere, openDevice } from "./index.ts";

type Shown = "recommendations" | "consent";
/** Behind the address of a window that a frame has opened. */
const OWN = "#centre";
/** Milliseconds in which a new window takes no click: the second one of a double click on a shop. */
const REST = 1000;

/** What the operator has written into the page. */
const told = (name: string): string =>
  document.querySelector<HTMLMetaElement>(`meta[name="sottovoce-${name}"]`)?.content ?? "";
const pages = told("pages").split(/\s+/).filter(Boolean);
const root = document.getElementById("page") as HTMLElement;
document.documentElement.lang = navigator.language.slice(0, 2);
const invitation = invitationHere();
const federation = told("federation") || location.origin;
const framed = window.parent !== window;
const opening = location.hash === OWN ? lent() : openDevice({ federation, ...(invitation && { invitation }) });
opening.catch((error: Error) => {
  root.textContent = error.message;
});
if (framed) Object.defineProperty(window, "sottovoce", { value: opening });
let around = "";
let shown = "";

window.addEventListener("message", ({ source, origin, data }) => {
  if (source !== window.parent || !framed || !pages.includes(origin)) return;
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
  shown = what;
  const device = await opening;
  if (shown !== what) return;
  if (what === "consent") {
    if (framed) return root.replaceChildren(...wayOut());
    document.body.className = "centre";
    return centre(root, device);
  }
  const list = new Recommendations();
  list.addEventListener("chosen", (event) => {
    const { id } = (event as CustomEvent<{ id: string }>).detail;
    if (around) window.parent.postMessage({ sottovoce: "chosen", item: id }, around);
  });
  root.replaceChildren(list);
  list.device = device;
}

/** What opens the consent centre in a window of its own. */
function wayOut(): Node[] {
  const [button, help] = [document.createElement("button"), document.createElement("p")];
  button.type = "button";
  button.textContent = say(root, "tab.open_centre");
  help.textContent = say(root, "tab.open_centre_help");
  button.addEventListener("click", () => void window.open(location.pathname + OWN, "_blank", "popup"));
  return [button, help];
}

/** The device of the frame that has opened this window, which is closed with it. */
async function lent(): Promise<BrowserDevice> {
  let theirs: Promise<BrowserDevice> | undefined;
  const from = window.opener as (Window & { sottovoce?: Promise<BrowserDevice> }) | null;
  try {
    theirs = from?.sottovoce;
  } catch {
    theirs = undefined; // a page of another origin
  }
  if (from === null || theirs === undefined) throw new Error(say(root, "tab.no_frame"));
  from.addEventListener("pagehide", () => window.close());
  root.inert = true;
  setTimeout(() => (root.inert = false), REST);
  return theirs;
}

// Who opens the page by itself sees her consent centre.
if (!framed) void show("consent").catch(() => undefined);
