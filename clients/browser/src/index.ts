/**
 * A browser tab as a device of a federation.
 *
 *   const device = await openDevice({ federation: "https://example.org", invitation });
 *   await device.visited("item-7");                 // stays in this browser
 *   await device.agree((await device.status()).pending.digest);
 *   await device.choose({ takesPart: true, epsilon: 1 });
 *   const list = await device.recommend(10);        // computed here, offline, too
 *
 * Everything is computed in a worker; a page only asks. Nothing leaves but through the door
 * (`door.ts`), and nothing at all for somebody who takes no part or has not agreed to the terms.
 */

import type { Bytes } from "./bytes.ts";
import * as errors from "./errors.ts";
import type { LedgerRow } from "./ledger.ts";
import type { ChoiceChange, ChoiceRecord } from "./store/records.ts";
import {
  type Call,
  type Opening,
  type Preview,
  type Recommended,
  type Status,
  serveWorker,
  type Thing,
  type Told,
  type WorkerScope,
} from "./worker.ts";
import type { Catalogue, Choice } from "./wire/types.ts";

export type {
  Catalogue,
  Choice,
  ChoiceChange,
  ChoiceRecord,
  LedgerRow,
  Opening,
  Preview,
  Recommended,
  Status,
  Thing,
};
export * from "./errors.ts";

/** Milliseconds for a service worker to go. */
const LONGEST_GOODBYE = 3000;

export interface DeviceOptions extends Opening {
  /** The worker to use, where a page makes it itself. */
  readonly worker?: Worker;
}

/**
 * The device of this browser in a federation. It tells of what happens by events: `change` (ask
 * again for what you show), `trouble` (one sentence in `detail.why`), and what the loop does
 * (`enrolled`, `counted`, `refused`, `nothing sent` and `round waits` with one sentence in `detail.why`,
 * `checked in`, `model`, `shut out`). After `erased`
 * there is nothing to ask any more: everything was deleted in another tab.
 */
export class BrowserDevice extends EventTarget {
  readonly #worker: Worker;
  readonly #waiting = new Map<
    number,
    { resolve: (found: unknown) => void; reject: (error: Error) => void }
  >();
  readonly #seen = (): void => void this.#ask("visible", !document.hidden).catch(() => undefined);
  #next = 0;
  /** Why this page has no device any more; empty while it has one. */
  #over = "";

  private constructor(worker: Worker) {
    super();
    this.#worker = worker;
    worker.onmessage = (message: MessageEvent<Told>) => this.#told(message.data);
    worker.onerror = () => this.#broken("the worker of this device cannot be started");
    worker.onmessageerror = () => this.#broken("the worker of this device cannot be understood");
  }

  static async open(options: DeviceOptions): Promise<BrowserDevice> {
    const { worker, ...opening } = options;
    const device = new BrowserDevice(worker ?? makeWorker());
    try {
      await device.#ask("open", opening);
    } catch (error) {
      device.#worker.terminate();
      throw error;
    }
    document.addEventListener("visibilitychange", device.#seen);
    device.#seen();
    // Asked for once; the browser decides whether it may clear this store when room is short.
    await navigator.storage?.persist?.().catch(() => false);
    return device;
  }

  /** She came to these items, now or at a time (whole seconds). Nothing of it leaves by this. */
  visited(items: string | readonly (string | readonly [string, number | null])[]): Promise<void> {
    return this.#ask("visited", items);
  }

  /** Forget that she has these. A report that was prepared with them does not leave. */
  remove(items: string | readonly string[]): Promise<number> {
    return this.#ask("remove", items);
  }

  /** Change what she permits; the fields that are not named stay as they are. */
  choose(change: ChoiceChange): Promise<Choice> {
    return this.#ask("choose", change);
  }

  /** She has seen the terms of this digest and agrees to them. */
  agree(termsDigest: string): Promise<void> {
    return this.#ask("agree", termsDigest);
  }

  /** What would leave now, made by the door. Nothing of hers is sent. */
  preview(): Promise<Preview> {
    return this.#ask("preview");
  }

  /** The bytes of one message of the latest preview, as they would leave. */
  body(index: number): Promise<Bytes> {
    return this.#ask("body", index);
  }

  /** Send exactly what was shown last (or under this name), or nothing. */
  send(name?: string): Promise<Preview> {
    return name === undefined ? this.#ask("send") : this.#ask("send", name);
  }

  /** Read what is published, now: terms, catalogue, model. */
  refresh(): Promise<void> {
    return this.#ask("refresh");
  }

  /** Computed here from her whole history and the kept model. */
  recommend(n = 10): Promise<Recommended[]> {
    return this.#ask("recommend", n);
  }

  things(): Promise<Thing[]> {
    return this.#ask("things");
  }

  /** Everything that the federation knows, by place. */
  catalogue(): Promise<Catalogue> {
    return this.#ask("catalogue");
  }

  /** Everything that has left, or may have. */
  ledger(): Promise<LedgerRow[]> {
    return this.#ask("ledger");
  }

  export(format: "csv" | "ndjson"): Promise<string> {
    return this.#ask("export", format);
  }

  /** Every choice that she has made. */
  choices(): Promise<readonly ChoiceRecord[]> {
    return this.#ask("choices");
  }

  status(): Promise<Status> {
    return this.#ask("status");
  }

  /** No byte leaves any more, not even a question; or (false) nothing of hers. */
  stop(everything = true): Promise<void> {
    return this.#ask("stop", everything);
  }

  start(): Promise<void> {
    return this.#ask("start");
  }

  /** Forget her history here, or everything: then this is a new device, and the files that
   * `keepOffline` keeps are gone, too. */
  async erase(what: "history" | "everything"): Promise<void> {
    await this.#ask("erase", what);
    if (what === "history") return;
    this.#end("this device was closed");
    await forgetOffline();
    this.dispatchEvent(new CustomEvent("change"));
  }

  /** This page does without the device; another tab may go on. */
  async close(): Promise<void> {
    await this.#ask("close").catch(() => undefined);
    this.#end("this device was closed");
  }

  #end(why: string): void {
    this.#over = why;
    document.removeEventListener("visibilitychange", this.#seen);
    this.#broken(why);
    this.#worker.terminate();
  }

  #ask<T>(call: Call | "open", ...given: unknown[]): Promise<T> {
    if (this.#over) return Promise.reject(new errors.Unsupported(this.#over));
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve: resolve as (found: unknown) => void, reject });
      this.#worker.postMessage({ id, call, given });
    });
  }

  #told(told: Told): void {
    if ("event" in told) {
      if (told.event === "erased") {
        this.#end("everything was deleted in another tab; load this page again to start anew");
      }
      this.dispatchEvent(new CustomEvent(told.event, { detail: told.details }));
      if (this.#over) this.dispatchEvent(new CustomEvent("change"));
      return;
    }
    const waiting = this.#waiting.get(told.id);
    this.#waiting.delete(told.id);
    if ("found" in told) waiting?.resolve(told.found);
    else waiting?.reject(errorOf(told.error));
  }

  #broken(why: string): void {
    for (const { reject } of this.#waiting.values()) reject(new errors.Unsupported(why));
    this.#waiting.clear();
  }
}

/** An error as it came from a worker: by its name. */
function errorOf({ name, message }: { name: string; message: string }): errors.SottovoceError {
  const kind = Object.values(errors).find(({ prototype }) => prototype.name === name);
  return new (kind ?? errors.SottovoceError)(message);
}

/** Open the device of this browser in the federation at an address, or make it. */
export function openDevice(options: DeviceOptions): Promise<BrowserDevice> {
  return BrowserDevice.open(options);
}

/**
 * The invitation behind the `#` of this page's address (`sottovoce serve invite --link`), if there is
 * one. It is taken out of the address at once, so that it is in no bookmark.
 */
export function invitationHere(): string | undefined {
  const found = /^#sv=([\w-]+)$/.exec(location.hash)?.[1];
  if (found === undefined) return undefined;
  history.replaceState(history.state, "", location.pathname + location.search);
  try {
    const bytes = atob(found.replaceAll("-", "+").replaceAll("_", "/"));
    return new TextDecoder().decode(Uint8Array.from(bytes, (one) => one.charCodeAt(0)));
  } catch {
    throw new errors.UsageError("this link has no invitation behind its #; ask the operator for another");
  }
}

/** Let a service worker of this origin keep these files, so that the page works offline. What the
 * device has learnt is in its own store and needs no service worker. */
export async function keepOffline(script: string, files: readonly string[]): Promise<void> {
  const registration = await navigator.serviceWorker.register(scriptUrl(script), { type: "module" });
  const ready = await navigator.serviceWorker.ready;
  (ready.active ?? registration.active)?.postMessage({ keep: files });
}

/** The service worker of `keepOffline` goes, with all that it keeps. Another one of this origin does
 * not know the message, and stays. */
async function forgetOffline(): Promise<void> {
  const all = (await navigator.serviceWorker?.getRegistrations().catch(() => [])) ?? [];
  const gone = all.map(({ active, waiting }) => {
    const { port1, port2 } = new MessageChannel();
    return new Promise<void>((resolve) => {
      port1.onmessage = () => resolve();
      setTimeout(resolve, LONGEST_GOODBYE);
      (active ?? waiting)?.postMessage({ forget: "sottovoce" }, [port2]);
      if (!(active ?? waiting)) resolve();
    }).finally(() => port1.close());
  });
  await Promise.all(gone);
}

/** For pages with Trusted Types (`trusted-types sottovoce`): the addresses that become scripts here. */
function scriptUrl(address: string): string {
  const { trustedTypes } = globalThis as { trustedTypes?: Policies };
  try {
    policy ??= trustedTypes?.createPolicy("sottovoce", { createScriptURL: (same) => same });
  } catch {
    // The page's header does not name this policy; it may not need it either.
  }
  return policy?.createScriptURL(address) ?? address;
}

interface Policies {
  createPolicy(name: string, rules: Policy): Policy;
}
interface Policy {
  createScriptURL(address: string): string;
}
let policy: Policy | undefined;

/** This file is its own worker. */
function makeWorker(): Worker {
  const here = import.meta.url;
  if (new URL(here).origin === location.origin) {
    return new Worker(scriptUrl(here), { type: "module" });
  }
  // A script of another origin is no worker's, but may be imported by one.
  const source = new Blob([`import ${JSON.stringify(here)};`], { type: "text/javascript" });
  const address = URL.createObjectURL(source);
  try {
    return new Worker(scriptUrl(address), { type: "module" });
  } finally {
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }
}

const scope = globalThis as unknown as { DedicatedWorkerGlobalScope?: unknown };
if (typeof scope.DedicatedWorkerGlobalScope === "function") {
  serveWorker(globalThis as unknown as WorkerScope);
}
