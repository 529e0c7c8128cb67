/** Reading the fields of a table that somebody else has sent: each is checked, and what is off is
 * refused with one sentence. */

import { type Bytes, fromHex, isHex, textOf } from "../bytes.ts";
import { MessageError } from "../errors.ts";

export type Table = Readonly<Record<string, unknown>>;

/** Nesting of a JSON text, at most: parsers differ in how much they bear. */
const DEEPEST = 64;

export function isTable(value: unknown): value is Table {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A whole number that is exact here. */
export function isWhole(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value);
}

/** Of a table, what it calls by this name itself. */
export function own(table: Table, name: string): unknown {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** What a JSON text says. Raises where it is none. */
export function readJson(body: Uint8Array | string, what = "the message"): unknown {
  const wrong = new MessageError(`${what} cannot be read`);
  try {
    const text = typeof body === "string" ? body : textOf(body);
    if (isDeep(text)) throw wrong;
    return JSON.parse(text);
  } catch {
    throw wrong;
  }
}

function isDeep(text: string): boolean {
  let depth = 0;
  for (let k = 0; k < text.length; k++) {
    const sign = text.charCodeAt(k);
    if (sign === 0x22) {
      for (k++; k < text.length && text.charCodeAt(k) !== 0x22; k++) {
        if (text.charCodeAt(k) === 0x5c) k++;
      }
    } else if (sign === 0x5b || sign === 0x7b) {
      if (++depth > DEEPEST) return true;
    } else if (sign === 0x5d || sign === 0x7d) depth--;
  }
  return false;
}

/** A table, and what its sender calls it in a sentence. */
export class Fields {
  private readonly table: Table;

  constructor(
    table: unknown,
    private readonly what = "the message",
  ) {
    if (!isTable(table)) throw new MessageError(`${what} cannot be read`);
    this.table = table;
  }

  static ofJson(body: Uint8Array | string, what = "the message"): Fields {
    return new Fields(readJson(body, what), what);
  }

  has(name: string): boolean {
    return Object.hasOwn(this.table, name);
  }

  /** Whatever it is, or nothing. */
  get(name: string): unknown {
    return own(this.table, name);
  }

  text(name: string): string {
    const value = this.get(name);
    if (typeof value !== "string") throw this.wrong(name);
    return value;
  }

  whole(name: string, low = 0, high = Number.MAX_SAFE_INTEGER): number {
    const value = this.get(name);
    if (!isWhole(value)) throw this.wrong(name);
    if (value < low || value > high) {
      throw new MessageError(`${this.what}'s field ${name} is out of range`);
    }
    return value;
  }

  list(name: string): readonly unknown[] {
    const value = this.get(name);
    if (!Array.isArray(value)) throw this.wrong(name);
    return value;
  }

  /** Bytes that stand there in hexadecimal. */
  hex(name: string, size: number): Bytes {
    const text = this.text(name);
    if (!isHex(text) || text.length !== 2 * size) {
      throw new MessageError(`${this.what}'s field ${name} must be ${size} bytes in hexadecimal`);
    }
    return fromHex(text);
  }

  /** It will be shown to a person, whose page must not be told anything by it. */
  sentence(name: string, longest = 500): string {
    return printable(this.text(name), longest);
  }

  private wrong(name: string): MessageError {
    return new MessageError(`${this.what}'s field ${name} is missing or of the wrong type`);
  }
}

/** What of a text may be shown: no control, no format sign, no half of a character. */
export function printable(text: string, longest = 500): string {
  return [...text.slice(0, longest)]
    .map((sign) => (/[\p{C}\p{Zl}\p{Zp}]/u.test(sign) ? "?" : sign))
    .join("");
}
