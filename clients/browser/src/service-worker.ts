/**
 * Keeps the files that a page names, so that the page opens without a network. What a device reads of
 * its federation passes by: that is in the device's own store, and an answer that was kept here would
 * outlive it.
 */

const KEPT = "sottovoce-2";

export {};

interface Extended extends Event {
  waitUntil(work: Promise<unknown>): void;
}
interface Fetched extends Extended {
  readonly request: Request;
  respondWith(answer: Promise<Response>): void;
}
interface Told extends Extended {
  readonly data: unknown;
  readonly ports: readonly MessagePort[];
}
interface Scope {
  addEventListener(name: "install" | "activate", heard: (event: Extended) => void): void;
  addEventListener(name: "fetch", heard: (event: Fetched) => void): void;
  addEventListener(name: "message", heard: (event: Told) => void): void;
  skipWaiting(): Promise<void>;
  readonly clients: { claim(): Promise<void> };
  readonly location: Location;
  readonly registration: { unregister(): Promise<boolean> };
}

const scope = globalThis as unknown as Scope;
/** Whether a page has forgotten everything since one last named files. */
let forgotten = false;

scope.addEventListener("install", (event) => event.waitUntil(scope.skipWaiting()));
scope.addEventListener("activate", (event) =>
  event.waitUntil(Promise.all([forget((name) => name !== KEPT), scope.clients.claim()])),
);

scope.addEventListener("message", (event) => {
  const { keep, forget: everything } = (event.data ?? {}) as { keep?: unknown; forget?: unknown };
  if (everything === "sottovoce") {
    forgotten = true;
    const gone = forget(() => true).then(() => scope.registration.unregister());
    event.waitUntil(gone.then((found) => event.ports[0]?.postMessage(found)));
  }
  if (!Array.isArray(keep)) return;
  forgotten = false;
  const own = keep.map((file) => new URL(String(file), scope.location.href));
  const files = own.filter((file) => file.origin === scope.location.origin);
  event.waitUntil(caches.open(KEPT).then((kept) => kept.addAll(files.map(({ href }) => nameOf(href)))));
});

scope.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || request.cache === "no-store") return;
  if (new URL(request.url).origin === scope.location.origin) event.respondWith(answered(request));
});

/** From the network. What is kept serves if that cannot be reached, and is never older than what the
 * network gave last: what cannot be kept is not kept at all. */
async function answered(request: Request): Promise<Response> {
  const name = nameOf(request.url);
  const known = await caches.match(name, { cacheName: KEPT }).catch(() => undefined);
  let found: Response;
  try {
    found = await fetch(request);
  } catch (error) {
    if (known !== undefined) return known;
    throw error;
  }
  if (known === undefined) return found;
  if (found.status >= 500) return known;
  const gone = found.status === 404 || found.status === 410;
  if (found.status === 200 || gone) {
    // Whatever becomes of the cache, the page gets what the network gave.
    await replaced(name, gone ? null : found.clone()).catch(() => forget(() => true)).catch(() => undefined);
  }
  return found;
}

/** Keep what is new, or nothing. A page may forget everything meanwhile: then nothing is kept again. */
async function replaced(name: string, found: Response | null): Promise<void> {
  if (!(await caches.has(KEPT))) return;
  const kept = await caches.open(KEPT);
  if (found === null) await kept.delete(name);
  else await kept.put(name, found).catch(() => kept.delete(name));
  if (forgotten) await caches.delete(KEPT);
}

async function forget(which: (name: string) => boolean): Promise<void> {
  const names = (await caches.keys()).filter((name) => /^sottovoce-\d+$/.test(name) && which(name));
  await Promise.all(names.map((name) => caches.delete(name)));
}

/** The address under which a file is kept. Behind its `#` there may be an invitation. */
function nameOf(address: string): string {
  const url = new URL(address);
  url.hash = "";
  return url.href;
}
