/**
 * Encrypted records under names, changed in steps: all of a step is durable, or nothing is.
 *
 * A record lies under a keyed hash of its name, encrypted (AES-GCM) with a key that no script can
 * read out, and bound to that name, so that two records cannot be exchanged. This keeps histories
 * from whoever looks at the store with other tools. It does not keep them from scripts of the same
 * origin, which can ask the browser to decrypt, nor from whoever has the whole profile: the
 * browser keeps the key beside.
 */

import { type Bytes, concat, textOf, toHex, utf8 } from "../bytes.ts";
import { newSigningKey, randomBytes } from "../crypto.ts";
import { StorageTrouble } from "../errors.ts";
import type { Disk, StoreKeys } from "./disk.ts";

const TRIES = 50;
const NONCE_BYTES = 12;
/** Numbers of records that may be infinite, which JSON cannot say. */
const INFINITE = new Set(["epsilon", "totalEpsilon"]);

/** Another tab has written meanwhile. */
class Conflict extends Error {}

/** What is in a store, at one moment. */
export interface View {
  bytes(name: string): Promise<Bytes | undefined>;
  json<T>(name: string): Promise<T | undefined>;
}

/** The same, and what is to be changed in one step. */
export interface Draft extends View {
  put(name: string, content: Bytes | null): void;
  write(name: string, content: unknown): void;
}

export class Vault {
  /** Whether nothing was here before: a new device. */
  readonly fresh: boolean;
  readonly keys: StoreKeys;
  readonly #disk: Disk;
  readonly #names = new Map<string, string>();
  readonly #held = new Map<string, Bytes | undefined>();
  #generation = -1;
  #turn: Promise<unknown> = Promise.resolve();

  private constructor(disk: Disk, keys: StoreKeys, fresh: boolean) {
    this.#disk = disk;
    this.keys = keys;
    this.fresh = fresh;
  }

  static async open(disk: Disk): Promise<Vault> {
    const { keys, fresh } = await disk.keys(makeKeys);
    return new Vault(disk, keys, fresh);
  }

  /** How many changes there were. */
  async generation(): Promise<number> {
    return (await this.#disk.read([])).generation;
  }

  /** What `work` finds, all of it of one moment. */
  read<T>(work: (view: View) => Promise<T>): Promise<T> {
    return this.#alone(() => this.#tried(async (draft) => work(draft), false));
  }

  /** What `work` returns, once all that it has written is durable. Where it throws, nothing is
   * written. It may be called several times, with what others have written meanwhile. */
  change<T>(work: (draft: Draft) => Promise<T>): Promise<T> {
    return this.#alone(() => this.#tried(work, true));
  }

  /** Everything here is gone, the keys first of all. */
  async destroy(): Promise<void> {
    await this.#alone(async () => {
      await this.#disk.destroy();
      this.#held.clear();
    });
  }

  close(): void {
    this.#disk.close();
  }

  #alone<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work, work);
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  async #tried<T>(work: (draft: Draft) => Promise<T>, writes: boolean): Promise<T> {
    for (let attempt = 0; attempt < TRIES; attempt++) {
      try {
        await this.#look([]);
        const generation = this.#generation;
        const changes = new Map<string, Bytes | null>();
        const found = await work(this.#draft(generation, changes));
        if (!writes || !changes.size) return found;
        if (await this.#commit(generation, changes)) return found;
      } catch (error) {
        if (!(error instanceof Conflict)) throw error;
      }
    }
    throw new StorageTrouble("other tabs change this store all the time; nothing was changed or sent");
  }

  async #commit(
    generation: number,
    changes: ReadonlyMap<string, Bytes | null>,
  ): Promise<boolean> {
    const sealed = new Map<string, Bytes | null>();
    for (const [name, content] of changes) {
      const place = await this.#place(name);
      sealed.set(place, content === null ? null : await this.#seal(place, content));
    }
    if (!(await this.#disk.commit(generation, sealed))) return false;
    this.#generation = generation + 1;
    for (const [name, content] of changes) this.#held.set(name, content ?? undefined);
    return true;
  }

  #draft(generation: number, changes: Map<string, Bytes | null>): Draft {
    const bytes = async (name: string): Promise<Bytes | undefined> => {
      const changed = changes.get(name);
      if (changed !== undefined) return changed ?? undefined;
      if (!this.#held.has(name)) await this.#look([name]);
      if (this.#generation !== generation) throw new Conflict();
      return this.#held.get(name);
    };
    return {
      bytes,
      json: async <T>(name: string) => {
        const content = await bytes(name);
        return content === undefined ? undefined : (fromJson(content) as T);
      },
      put: (name, content) => void changes.set(name, content),
      write: (name, content) => void changes.set(name, asJson(content)),
    };
  }

  /** Read these records, and forget others if somebody has written since. */
  async #look(names: readonly string[]): Promise<void> {
    const places = await Promise.all(names.map((name) => this.#place(name)));
    const { generation, records } = await this.#disk.read(places);
    if (generation !== this.#generation) this.#held.clear();
    this.#generation = generation;
    for (const [k, name] of names.entries()) {
      const sealed = records[k];
      const place = places[k] as string;
      this.#held.set(name, sealed === undefined ? undefined : await this.#open(place, sealed));
    }
  }

  async #place(name: string): Promise<string> {
    const known = this.#names.get(name);
    if (known !== undefined) return known;
    const hashed = await crypto.subtle.sign("HMAC", this.keys.names, utf8(name));
    const place = toHex(new Uint8Array(hashed, 0, 16));
    this.#names.set(name, place);
    return place;
  }

  async #seal(place: string, content: Bytes): Promise<Bytes> {
    const iv = randomBytes(NONCE_BYTES);
    const how = { name: "AES-GCM", iv, additionalData: utf8(place) };
    const sealed = await crypto.subtle.encrypt(how, this.keys.content, content);
    return concat(iv, new Uint8Array(sealed));
  }

  async #open(place: string, record: Bytes): Promise<Bytes> {
    const iv = record.slice(0, NONCE_BYTES);
    const how = { name: "AES-GCM", iv, additionalData: utf8(place) };
    try {
      const plain = await crypto.subtle.decrypt(how, this.keys.content, record.slice(NONCE_BYTES));
      return new Uint8Array(plain);
    } catch {
      throw new StorageTrouble(
        "what this device has kept is damaged, so that nothing is sent; forget everything here and begin anew",
      );
    }
  }
}

async function makeKeys(): Promise<StoreKeys> {
  try {
    const content = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, [
      "encrypt",
      "decrypt",
    ]);
    const how = { name: "HMAC", hash: "SHA-256" };
    const names = await crypto.subtle.generateKey(how, false, ["sign"]);
    const { kept } = await newSigningKey();
    // One that a script could read lies encrypted among the records instead.
    const signing = kept.kind === "webcrypto" ? kept : undefined;
    return { content, names: names as CryptoKey, signing };
  } catch {
    throw new StorageTrouble(
      "this browser cannot make keys here; open the page over https, since nothing is kept or sent otherwise",
    );
  }
}

export function asJson(content: unknown): Bytes {
  return utf8(
    JSON.stringify(content, (key, value) =>
      INFINITE.has(key) && value === Number.POSITIVE_INFINITY ? "inf" : value,
    ),
  );
}

export function fromJson(content: Bytes): unknown {
  return JSON.parse(textOf(content), (key, value) =>
    INFINITE.has(key) && value === "inf" ? Number.POSITIVE_INFINITY : value,
  );
}
