/**
 * Keeps what is public, so that a page recommends offline: the files that the page names, and the
 * federation's catalogue and models, which the page may also have in its device's store. It never
 * sees a post: those pass by.
 */

const KEPT = "sottovoce-1";
/** Under such addresses lies what never changes. */
const LASTING = /\/v1\/model\/\d+$/;
const PUBLIC = /\/v1\/catalogue$/;

interface Extended extends Event {
  waitUntil(work: Promise<unknown>): void;
}
interface Fetched extends Extended {
  readonly request: Request;
  respondWith(answer: Promise<Response>): void;
}
interface Scope {
  addEventListener(name: "install" | "activate", heard: (event: Extended) => void): void;
  addEventListener(name: "fetch", heard: (event: Fetched) => void): void;
  addEventListener(name: "message", heard: (event: Extended & { data: unknown }) => void): void;
  skipWaiting(): Promise<void>;
  readonly clients: { claim(): Promise<void> };
  readonly location: Location;
}

const scope = globalThis as unknown as Scope;

scope.addEventListener("install", (event) => event.waitUntil(scope.skipWaiting()));
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));

scope.addEventListener("message", (event) => {
  const { keep } = (event.data ?? {}) as { keep?: unknown };
  if (!Array.isArray(keep)) return;
  const own = keep.map((file) => new URL(String(file), scope.location.href));
  const files = own.filter((file) => file.origin === scope.location.origin);
  event.waitUntil(caches.open(KEPT).then((kept) => kept.addAll(files.map((file) => file.href))));
});

scope.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET") return;
  const { pathname, search } = new URL(request.url);
  const lasting = LASTING.test(pathname) && !search;
  event.respondWith(answered(request, lasting, lasting || PUBLIC.test(pathname)));
});

/** From the network, and what is kept where that cannot be reached. */
async function answered(request: Request, lasting: boolean, keeps: boolean): Promise<Response> {
  const kept = await caches.open(KEPT);
  const known = await kept.match(request.url);
  if (lasting && known !== undefined) return known;
  try {
    const found = await fetch(request);
    if (found.status >= 500 && known !== undefined) return known;
    if (found.status === 200 && (keeps || known !== undefined)) {
      await kept.put(request.url, found.clone());
    }
    return found;
  } catch (error) {
    if (known !== undefined) return known;
    throw error;
  }
}
