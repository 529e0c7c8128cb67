/**
 * Where a store lies: IndexedDB, one strict transaction for each step.
 *
 * A disk keeps sealed records under names that tell nothing, the keys of the store, and a number
 * that counts its changes. Whoever writes says which change she has seen last: where somebody else
 * was first (another tab), nothing is written and she reads again.
 */

import type { Bytes } from "../bytes.ts";
import type { KeptKey } from "../crypto.ts";
import { StorageTrouble } from "../errors.ts";

/** The keys of a store. None of them can be read out by a script. */
export interface StoreKeys {
  /** AES-GCM: of what the records say. */
  readonly content: CryptoKey;
  /** HMAC: of what the records are called. */
  readonly names: CryptoKey;
  /** Ed25519, where the browser has it. */
  readonly signing: KeptKey | undefined;
}

export interface Found {
  /** How many changes there were before. */
  readonly generation: number;
  /** In the order of the names; undefined where there is no such record. */
  readonly records: readonly (Bytes | undefined)[];
}

export interface Disk {
  /** The keys that are there, or these, which are durable then; and whether they are new. */
  keys(make: () => Promise<StoreKeys>): Promise<{ keys: StoreKeys; fresh: boolean }>;
  read(names: readonly string[]): Promise<Found>;
  /** All of it, durable when this returns, or (false) nothing, since somebody else was first.
   * A record of null is taken away. */
  commit(generation: number, changes: ReadonlyMap<string, Bytes | null>): Promise<boolean>;
  /** Keys and records are gone when this returns. */
  destroy(): Promise<void>;
  close(): void;
}

const KEYS = "keys";
const RECORDS = "records";
const GENERATION = "generation";

/** What a failing browser store means to whoever uses it. */
export function storeTrouble(error: unknown): StorageTrouble {
  if (error instanceof StorageTrouble) return error;
  const name = error instanceof Error || error instanceof DOMException ? error.name : "";
  if (name === "QuotaExceededError") {
    return new StorageTrouble(
      "the browser has no room left for what is kept on this device; nothing more is sent: make room, or forget something here",
    );
  }
  if (name === "DataCloneError") {
    return new StorageTrouble(
      "this browser cannot keep a key in its store (a private window may be why); nothing is sent",
    );
  }
  return new StorageTrouble(
    "the browser's store on this device cannot be used; nothing more is sent: see whether the window is a private one, or site data is switched off",
  );
}

/** Whoever waits for it is told how it ends; whoever does not any more, since something else failed
 * first, has been told of that. */
function awaited<T>(end: Promise<T>): Promise<T> {
  end.catch(() => undefined);
  return end;
}

function asked<T>(request: IDBRequest<T>): Promise<T> {
  return awaited(
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    }),
  );
}

function ended(transaction: IDBTransaction): Promise<void> {
  return awaited(
    new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onerror = () => reject(transaction.error);
      transaction.onabort = () => reject(transaction.error ?? new DOMException("gone", "AbortError"));
    }),
  );
}

function undo(transaction: IDBTransaction | undefined): void {
  try {
    transaction?.abort();
  } catch {
    // It is over already.
  }
}

/** A disk in IndexedDB. */
export class IndexedDisk implements Disk {
  readonly #database: IDBDatabase;
  readonly #factory: IDBFactory;

  private constructor(database: IDBDatabase, factory: IDBFactory) {
    this.#database = database;
    this.#factory = factory;
    // Another tab forgets everything: let go, so that it can.
    database.onversionchange = () => database.close();
  }

  static async open(name: string, factory: IDBFactory = indexedDB): Promise<IndexedDisk> {
    try {
      const request = factory.open(name, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore(KEYS);
        request.result.createObjectStore(RECORDS);
      };
      return new IndexedDisk(await asked(request), factory);
    } catch (error) {
      throw storeTrouble(error);
    }
  }

  async keys(make: () => Promise<StoreKeys>): Promise<{ keys: StoreKeys; fresh: boolean }> {
    try {
      const there = await asked(this.#reading(KEYS).get(KEYS));
      if (there !== undefined) return { keys: there as StoreKeys, fresh: false };
      const made = await make();
      const transaction = this.#writing();
      const done = ended(transaction);
      const store = transaction.objectStore(KEYS);
      // Another tab may have been faster.
      const first = (await asked(store.get(KEYS))) as StoreKeys | undefined;
      if (first === undefined) store.put(made, KEYS);
      await done;
      return { keys: first ?? made, fresh: first === undefined };
    } catch (error) {
      throw storeTrouble(error);
    }
  }

  async read(names: readonly string[]): Promise<Found> {
    try {
      const store = this.#reading(RECORDS);
      const [generation, ...records] = await Promise.all(
        [GENERATION, ...names].map((name) => asked(store.get(name))),
      );
      return {
        generation: (generation as number | undefined) ?? 0,
        records: records as (Bytes | undefined)[],
      };
    } catch (error) {
      throw storeTrouble(error);
    }
  }

  async commit(
    generation: number,
    changes: ReadonlyMap<string, Bytes | null>,
  ): Promise<boolean> {
    let transaction: IDBTransaction | undefined;
    try {
      transaction = this.#writing();
      const done = ended(transaction);
      const store = transaction.objectStore(RECORDS);
      const now = ((await asked(store.get(GENERATION))) as number | undefined) ?? 0;
      if (now === generation) {
        for (const [name, content] of changes) {
          if (content === null) store.delete(name);
          else store.put(content, name);
        }
        store.put(generation + 1, GENERATION);
      }
      await done;
      return now === generation;
    } catch (error) {
      // What was put before the call that failed would be durable otherwise.
      undo(transaction);
      throw storeTrouble(error);
    }
  }

  async destroy(): Promise<void> {
    try {
      const name = this.#database.name;
      const transaction = this.#writing();
      const done = ended(transaction);
      for (const each of [KEYS, RECORDS]) transaction.objectStore(each).clear();
      await done;
      this.#database.close();
      await asked(this.#factory.deleteDatabase(name));
    } catch (error) {
      throw storeTrouble(error);
    }
  }

  close(): void {
    this.#database.close();
  }

  #reading(store: string): IDBObjectStore {
    return this.#database.transaction([store], "readonly").objectStore(store);
  }

  #writing(): IDBTransaction {
    return this.#database.transaction([KEYS, RECORDS], "readwrite", { durability: "strict" });
  }
}
