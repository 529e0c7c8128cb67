/** Bytes: little-endian numbers, hexadecimal, putting together and comparing. */

import { MessageError } from "./errors.ts";

export type Bytes = Uint8Array<ArrayBuffer>;

/** Whether typed arrays have the order of bytes that the wire has. */
export const LITTLE = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

const DIGITS = "0123456789abcdef";
const encoder = new TextEncoder();

export function utf8(text: string): Bytes {
  return encoder.encode(text) as Bytes;
}

/** The text of these bytes. Raises where they are no UTF-8. */
export function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new MessageError("a text has bytes that are no UTF-8");
  }
}

/** One byte for each sign, all of which must be below 128. */
export function ascii(text: string): Bytes {
  return Uint8Array.from(text, (sign) => sign.charCodeAt(0) & 127);
}

export function concat(...parts: readonly Uint8Array[]): Bytes {
  let length = 0;
  for (const part of parts) length += part.length;
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Takes as long whatever differs. */
export function equal(one: Uint8Array, other: Uint8Array): boolean {
  if (one.length !== other.length) return false;
  let differs = 0;
  for (let k = 0; k < one.length; k++) differs |= one[k]! ^ other[k]!;
  return differs === 0;
}

export function toHex(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += DIGITS[byte >> 4]! + DIGITS[byte & 15]!;
  return text;
}

/** Whether `text` is hexadecimal, of whole bytes. */
export function isHex(text: unknown): text is string {
  return typeof text === "string" && text.length % 2 === 0 && /^[0-9a-fA-F]*$/.test(text);
}

export function fromHex(text: unknown, what = "a field"): Bytes {
  if (!isHex(text)) throw new MessageError(`${what} must be bytes in hexadecimal`);
  const bytes = new Uint8Array(text.length / 2);
  for (let k = 0; k < bytes.length; k++) bytes[k] = parseInt(text.slice(2 * k, 2 * k + 2), 16);
  return bytes;
}

/** A whole number of four bytes. */
export function u32(value: number): Bytes {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value, true);
  return bytes;
}

export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** A copy whose buffer is its own, as WebCrypto wants it. */
export function owned(bytes: Uint8Array): Bytes {
  return new Uint8Array(bytes);
}

/** The numbers of four bytes in `bytes`. */
export function u32s(bytes: Uint8Array): Uint32Array<ArrayBuffer> {
  if (bytes.length % 4) throw new MessageError("a list of numbers has a broken length");
  const found = new Uint32Array(bytes.length / 4);
  new Uint8Array(found.buffer).set(bytes);
  return LITTLE ? found : swapped(found);
}

/** Numbers of four bytes as they travel. */
export function bytesOfU32s(numbers: Uint32Array): Bytes {
  const own = LITTLE ? numbers : swapped(new Uint32Array(numbers));
  return new Uint8Array(own.buffer, own.byteOffset, own.byteLength).slice();
}

function swapped(numbers: Uint32Array<ArrayBuffer>): Uint32Array<ArrayBuffer> {
  const view = new DataView(numbers.buffer, numbers.byteOffset, numbers.byteLength);
  for (let k = 0; k < numbers.length; k++) view.setUint32(4 * k, numbers[k]!, true);
  return numbers;
}
