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

import * as given from "./arguments.ts";
import type { Bytes } from "./bytes.ts";
import * as errors from "./errors.ts";
import type { LedgerRow } from "./ledger.ts";
import { makeWorker } from "./self-worker.ts";
import type { ChoiceChange, ChoiceRecord } from "./store/records.ts";
import { scriptUrl } from "./trusted.ts";
import type { Catalogue, Choice } from "./wire/types.ts";
import type { Call, Opening, Preview, Recommended, Status, Thing, Told } from "./worker.ts";

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
  #warned = false;
  #next = 0;
  /** Why this page has no device any more; empty while it has one. */
  #over = "";

  private constructor(worker: Worker) {
    super();
    this.#worker = worker;
    worker.onmessage = (message: MessageEvent<Told>) => this.#told(message.data);
    worker.onerror = () =>
      this.#broken(
        "the worker of this device cannot be started: see that worker.js is served beside the " +
          "bundle, and that worker-src of the page's policy permits it",
      );
    worker.onmessageerror = () => this.#broken("the worker of this device cannot be understood");
  }

  static async open(options: DeviceOptions): Promise<BrowserDevice> {
    const { worker, ...opening } = given.opening<DeviceOptions>(options);
    if (typeof document === "undefined") {
      throw new errors.Unsupported("openDevice is for pages: there is no document in this worker");
    }
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

  /** Note that the user came to these items, now or at a time (whole seconds since 1970). Nothing
   * leaves by this. Items that the federation does not know are kept; the developer's console says
   * once that there are such.
   * @throws TypeError if something is no item id. */
  async visited(items: string | readonly given.Visit[]): Promise<void> {
    const unknown = await this.#ask<readonly string[]>("visited", given.visits(items));
    if (!unknown.length || this.#warned) return;
    this.#warned = true;
    // Without the id: scripts that collect a console's lines would send away what she looked at.
    console.warn(
      "sottovoce: visited() named an item that the federation's catalogue does not have; " +
        "device.things() says which (known: false)",
    );
  }

  /** Forget these items, and return how many of them were there. A report that was prepared with
   * them does not leave.
   * @throws TypeError if something is no item id. */
  async remove(items: string | readonly string[]): Promise<number> {
    return this.#ask("remove", given.itemIds("remove(items)", items));
  }

  /** Change what the user permits, and return the whole choice. Fields that are not named stay as
   * they are.
   * @throws UsageError if a field or a value is not possible. */
  async choose(change: ChoiceChange): Promise<Choice> {
    return this.#ask("choose", given.choiceChange(change));
  }

  /** Agree to the terms of this digest, which the user has seen (`status().pending`). */
  async agree(termsDigest: string): Promise<void> {
    return this.#ask("agree", given.text("agree(termsDigest)", termsDigest));
  }

  /** Return what would leave now, as the door makes it. Nothing of the user's is sent. */
  preview(): Promise<Preview> {
    return this.#ask("preview");
  }

  /** Return the bytes of one message of the latest preview, as they would leave. */
  async body(index: number): Promise<Bytes> {
    return this.#ask("body", given.wholeNumber("body(index)", index, 0));
  }

  /** Send exactly what was shown last (or under this name), or nothing. */
  async send(name?: string): Promise<Preview> {
    return name === undefined ? this.#ask("send") : this.#ask("send", given.text("send(name)", name));
  }

  /** Read what the federation publishes, now: terms, catalogue, model. */
  refresh(): Promise<void> {
    return this.#ask("refresh");
  }

  /** Return the `n` best items for the user, computed in this browser from her history and the
   * latest model.
   * @throws TypeError if `n` is not a whole number from 1. */
  async recommend(n = 10): Promise<Recommended[]> {
    return this.#ask("recommend", given.wholeNumber("recommend(n)", n, 1));
  }

  /** Return the user's items, latest first. */
  things(): Promise<Thing[]> {
    return this.#ask("things");
  }

  /** Return all items that the federation knows, in the order of its catalogue. */
  catalogue(): Promise<Catalogue> {
    return this.#ask("catalogue");
  }

  /** Return everything that has left this device, or may have. */
  ledger(): Promise<LedgerRow[]> {
    return this.#ask("ledger");
  }

  /** Return the ledger as a file's content. */
  async export(format: "csv" | "ndjson"): Promise<string> {
    return this.#ask("export", given.oneOf("export(format)", format, ["csv", "ndjson"]));
  }

  /** Return every choice that the user has made. */
  choices(): Promise<readonly ChoiceRecord[]> {
    return this.#ask("choices");
  }

  /** Return where this device stands: terms, choice, what was spent, what stands in the way. */
  status(): Promise<Status> {
    return this.#ask("status");
  }

  /** Send nothing any more, not even a question; with `false`, only nothing of the user's. */
  async stop(everything = true): Promise<void> {
    return this.#ask("stop", given.flag("stop(everything)", everything));
  }

  /** Go on after `stop`. */
  start(): Promise<void> {
    return this.#ask("start");
  }

  /** Delete the history here, or everything: then this is a new device, and the files that
   * `keepOffline` keeps are deleted as well. */
  async erase(what: "history" | "everything"): Promise<void> {
    await this.#ask("erase", given.oneOf("erase(what)", what, ["history", "everything"]));
    if (what === "history") return;
    this.#end("this device was closed");
    await forgetOffline();
    this.dispatchEvent(new CustomEvent("change"));
  }

  /** Close the device in this page; other tabs go on. */
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

  #ask<T>(call: Call | "open", ...asked: unknown[]): Promise<T> {
    if (this.#over) return Promise.reject(new errors.Unsupported(this.#over));
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve: resolve as (found: unknown) => void, reject });
      this.#worker.postMessage({ id, call, given: asked });
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
