/**
 * The device's side of HTTPS: no cookies, no referrer, no redirects, and nothing in the browser's
 * cache, whose tags would come back to the server like cookies. A device posts what its door has let
 * go, and nothing else.
 *
 * Whatever goes wrong becomes `Unreachable` with one sentence. Nothing that a server answers is
 * trusted before it was measured: bodies have a limit, and answers a time.
 */

import { type Bytes, concat, textOf } from "./bytes.ts";
import { Leaving } from "./door.ts";
import {
  ConsentError,
  SottovoceError,
  Unreachable,
  UsageError,
  VersionMismatch,
} from "./errors.ts";

/** Limit of an answer that should be short, in bytes. */
export const SMALL = 1 << 16;
const LONGEST_WAIT = 86_400;

/** The server asks to come back later. */
export class Busy extends Unreachable {
  constructor(
    sentence: string,
    readonly retryAfter: number,
  ) {
    super(sentence);
  }
}

export interface Timeouts {
  /** Seconds without a byte. */
  readonly silent: number;
  /** Seconds for all of an answer that should be short, */
  readonly short: number;
  /** and of any other. */
  readonly longest: number;
}

const TIMEOUTS: Timeouts = { silent: 20, short: 60, longest: 900 };
/** Bytes a second that leave on the slowest line: so much longer an answer may take. */
const SLOWEST = 4096;

export class Answer {
  constructor(
    readonly status: number,
    readonly body: Bytes,
  ) {}

  /** The body as a JSON object. */
  table(): Record<string, unknown> {
    const content = this.json();
    if (typeof content !== "object" || content === null || Array.isArray(content)) {
      throw new Unreachable("the server's answer is not a JSON object as it should be");
    }
    return content as Record<string, unknown>;
  }

  /** The one word by which a refusal is known; empty where there is none. */
  get reason(): string {
    return this.told("error", 40);
  }

  /** The sentence that came with a refusal. */
  get detail(): string {
    return this.told("detail", 300);
  }

  private json(): unknown {
    try {
      return JSON.parse(textOf(this.body));
    } catch {
      throw new Unreachable("the server's answer is not JSON as it should be");
    }
  }

  private told(name: string, limit: number): string {
    try {
      const words = String(this.table()[name] ?? "").replace(/[\p{C}\p{Z}]+/gu, " ");
      return words.trim().slice(0, limit);
    } catch (error) {
      if (error instanceof SottovoceError) return "";
      throw error;
    }
  }
}

/** Whether an address points at this machine. */
export function isLoopback(url: string): boolean {
  const { hostname } = new URL(url);
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

/** One server, as one device sees it. */
export class Transport {
  readonly url: string;
  readonly #under = new Set<AbortController>();
  #halted = false;

  constructor(
    url: string,
    private readonly fetcher: typeof fetch = (...given) => fetch(...given),
    private readonly timeouts: Timeouts = TIMEOUTS,
    /** Whether its owner has stopped everything, in whichever tab; asked before each request. */
    private readonly stopped: () => Promise<boolean> = async () => false,
  ) {
    this.url = serverAddress(url);
  }

  get(path: string, limit = SMALL): Promise<Answer> {
    return this.#exchange(path, { method: "GET" }, limit);
  }

  /** The answer to what leaves. */
  post(path: string, leaving: Leaving, headers: Record<string, string> = {}): Promise<Answer> {
    const body = Leaving.body(leaving);
    const options: RequestInit = { method: "POST", body, headers };
    return this.#exchange(path, options, SMALL, body.length / SLOWEST);
  }

  /** From here on no byte leaves, and what is under way is broken off; or (false) it may again. */
  halt(halted: boolean): void {
    this.#halted = halted;
    if (halted) for (const one of this.#under) one.abort();
  }

  async #exchange(
    path: string,
    options: RequestInit,
    limit: number,
    leaving = 0,
  ): Promise<Answer> {
    if ((await this.stopped()) || this.#halted) {
      throw new ConsentError("the owner of this device has stopped everything: nothing leaves");
    }
    const stop = new AbortController();
    this.#under.add(stop);
    const after = (seconds: number) => setTimeout(() => stop.abort(), seconds * 1000);
    const most = limit > SMALL ? this.timeouts.longest : this.timeouts.short;
    const longest = after(most + leaving);
    let silent = after(this.timeouts.silent + leaving);
    const heard = (): void => {
      clearTimeout(silent);
      silent = after(this.timeouts.silent);
    };
    try {
      const response = await this.fetcher(this.url + path, {
        ...options,
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
        redirect: "error",
        mode: "cors",
        signal: stop.signal,
      });
      heard();
      return this.#judged(response, await this.#body(response, limit, heard));
    } catch (error) {
      if (error instanceof SottovoceError) throw error;
      const slow = stop.signal.aborted;
      throw new Unreachable(
        slow
          ? `the server at ${this.url} takes too long to answer; it is asked again later`
          : `nobody answers at ${this.url} as a server of this federation would; it is asked again later`,
      );
    } finally {
      clearTimeout(longest);
      clearTimeout(silent);
      this.#under.delete(stop);
    }
  }

  async #body(response: Response, limit: number, heard: () => void): Promise<Bytes> {
    if (response.body === null) return new Uint8Array(0);
    const reader = response.body.getReader();
    const parts: Uint8Array[] = [];
    let length = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return concat(...parts);
      heard();
      length += value.length;
      if (length > limit) {
        await reader.cancel().catch(() => undefined);
        throw new Unreachable(
          `the server at ${this.url} sends far more than it should; the answer was thrown away`,
        );
      }
      parts.push(value);
    }
  }

  #judged(response: Response, body: Bytes): Answer {
    const { status } = response;
    if (status === 429 || status === 503) {
      const wait = Number.parseInt(response.headers.get("retry-after") ?? "", 10) || 0;
      const bounded = Math.min(Math.max(wait, 0), LONGEST_WAIT);
      throw new Busy(`the server at ${this.url} is busy and asks to come back later`, bounded);
    }
    if (status >= 500) {
      throw new Unreachable(`the server at ${this.url} has a fault of its own (status ${status})`);
    }
    return new Answer(status, body);
  }
}

/** The answer, if it is one of success; raises what else it means. */
export function good(answer: Answer, url: string): Answer {
  if (answer.status >= 200 && answer.status < 300) return answer;
  if (answer.status === 426) {
    throw new VersionMismatch("the server speaks another version of the protocol; nothing was sent");
  }
  if (answer.status === 404 || answer.status === 405) {
    throw new Unreachable(`what answers at ${url} is no server of Sottovoce`);
  }
  const said = answer.reason ? ` (${answer.reason}: ${answer.detail})` : "";
  throw new Unreachable(`the server refused with status ${answer.status}${said}`);
}

/** The address of a server, in one spelling; raises where it is none, or not encrypted. */
export function serverAddress(url: string): string {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch {
    throw new UsageError("the address of a federation must begin with https://");
  }
  const safe = parsed.protocol === "https:" || (parsed.protocol === "http:" && isLoopback(url));
  if (!safe || parsed.username || parsed.password || parsed.search || parsed.hash) {
    throw new UsageError("the address of a federation must begin with https:// and be no more");
  }
  // Every spelling of one address is the same store, with one budget.
  const path = parsed.pathname.replace(/%[\da-f]{2}/gi, plainly).replace(/\/{2,}/g, "/").replace(/\/$/, "");
  const port = parsed.port && `:${parsed.port}`;
  return `${parsed.protocol}//${parsed.hostname.replace(/\.$/, "")}${port}${path}`;
}

/** An escape as it is, in capitals, or the sign that needs none. */
function plainly(escape: string): string {
  const sign = String.fromCharCode(Number.parseInt(escape.slice(1), 16));
  return /[\w.~-]/.test(sign) ? sign : escape.toUpperCase();
}
