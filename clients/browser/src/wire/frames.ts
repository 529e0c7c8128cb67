/**
 * Every kind of binary message that a device writes or reads: its magic, its name, and the numbers
 * at its head.
 *
 * A message begins with four bytes, `SV`, a letter of its kind and its version; fixed fields follow,
 * little-endian, and then what the kind's own module says.
 */

import { ascii, type Bytes, viewOf } from "../bytes.ts";
import { MessageError, VersionMismatch } from "../errors.ts";

/** The version of everything that parties say to each other, in the documents that name it. */
export const PROTOCOL = 2;
export const SAME_RELEASE = "install the same release of Sottovoce on both sides";

/** Raises if `spoken` is no version of the protocol that is understood here. */
export function checkProtocol(spoken: unknown, who: string, advice = SAME_RELEASE): void {
  if (spoken !== PROTOCOL) {
    throw new VersionMismatch(
      `${who} version ${shown(spoken)} of the protocol, this program speaks version ` +
        `${PROTOCOL}; ${advice}`,
    );
  }
}

/** What somebody has sent, as it may stand in a sentence. */
function shown(value: unknown): string {
  const text = typeof value === "number" || typeof value === "string" ? String(value) : "unknown";
  return text.replace(/[^\x20-\x7e]/g, "?").slice(0, 40);
}

type Kind = "B" | "H" | "I";
const SIZES = { B: 1, H: 2, I: 4 } as const;

/** The beginning of one kind of message: whole numbers of one, two or four bytes, in their order,
 * and `tail` bytes behind them. */
export class Frame {
  readonly size: number;
  private readonly kinds: readonly Kind[];
  private readonly tail: number;
  private readonly letters: Bytes;

  constructor(
    readonly magic: string,
    readonly what: string,
    fields: string,
    tail = 0,
  ) {
    this.letters = ascii(magic);
    this.kinds = [...fields] as Kind[];
    this.tail = tail;
    this.size = this.kinds.reduce((sum, kind) => sum + SIZES[kind], 4 + tail);
  }

  pack(fields: readonly number[], tail: Uint8Array = new Uint8Array(0)): Bytes {
    const head = new Uint8Array(this.size);
    head.set(this.letters);
    const view = viewOf(head);
    let at = 4;
    this.kinds.forEach((kind, k) => {
      const value = fields[k];
      if (value === undefined || !Number.isInteger(value) || value < 0 || value >= 256 ** SIZES[kind]) {
        throw new MessageError(`a number of ${this.what} is out of range`);
      }
      if (kind === "B") view.setUint8(at, value);
      else if (kind === "H") view.setUint16(at, value, true);
      else view.setUint32(at, value, true);
      at += SIZES[kind];
    });
    if (tail.length !== this.tail) throw new MessageError(`a field of ${this.what} has another length`);
    head.set(tail, at);
    return head;
  }

  /** The numbers. Raises if this is another message, or one of another release. */
  unpack(payload: Uint8Array): number[] {
    const found = String.fromCharCode(...payload.subarray(0, 4));
    const kin = found.slice(0, 3) === this.magic.slice(0, 3);
    if (kin && found !== this.magic && /[0-9]/.test(found.slice(3))) {
      throw new VersionMismatch(
        `this is ${this.what} of another release of Sottovoce, version ${found}, and this program ` +
          `reads ${this.magic}; ${SAME_RELEASE}`,
      );
    }
    if (payload.length < this.size || found !== this.magic) {
      throw new MessageError(`this is not ${this.what}`);
    }
    const view = viewOf(payload);
    let at = 4;
    return this.kinds.map((kind) => {
      const here = at;
      at += SIZES[kind];
      if (kind === "B") return view.getUint8(here);
      return kind === "H" ? view.getUint16(here, true) : view.getUint32(here, true);
    });
  }

  /** The bytes behind the numbers. */
  tailOf(payload: Uint8Array): Bytes {
    return new Uint8Array(payload.subarray(this.size - this.tail, this.size));
  }
}

/** Bytes per value, whether packed, columns, round, rows, bits of the grid. */
export const REPORT = new Frame("SVU3", "a device's report", "BBHIII");
export const BITS = new Frame("SVR1", "a message of randomised reports", "IBI");
/** Round, attempt, numbers. */
export const MASKED = new Frame("SVM1", "a masked update", "III");
export const SHARED = new Frame("SVT1", "a contribution in shares", "III");
/** Round, the round that changes are against, items, rows, columns. */
export const MODEL = new Frame("SVV1", "a model", "IIIII");
export const MODEL_CHANGES = new Frame("SVD1", "changes of a model", "IIIII");
export const MODEL_STEPS = new Frame("SVV2", "a model in steps", "IIIII");
export const CHANGES_STEPS = new Frame("SVD2", "changes of a model in steps", "IIIII");
/** Number, round, attempt, and a nonce. */
export const ENVELOPE = new Frame("SVE1", "an envelope", "III", 16);
