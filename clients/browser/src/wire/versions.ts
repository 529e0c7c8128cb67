/**
 * The published model on the wire: all of it, or only the rows that changed since a version that the
 * device has.
 *
 * Bytes of equal weight stand together. A column whose numbers all are whole multiples of one power
 * of two takes a byte a number: first a byte for each column, its power or what it has in place of
 * one; then the multiples, row by row; then columns with zeros, row by row; then the others, column
 * by column. Nothing is lost.
 */

import { type Bytes, concat, u32s, viewOf } from "../bytes.ts";
import { MessageError } from "../errors.ts";
import { powerOfTwo } from "../portable.ts";
import { CHANGES_STEPS, type Frame, MODEL, MODEL_CHANGES, MODEL_STEPS } from "./frames.ts";
import type { ModelView } from "./types.ts";

const FRAMES: readonly Frame[] = [MODEL, MODEL_CHANGES, MODEL_STEPS, CHANGES_STEPS];
/** In place of a power: a column that has none, and no zeros or some. */
const [FULL, GAPS] = [-128, -127];

/** Most bytes of a whole model before compression. */
export function fullSize(nItems: number, width: number): number {
  return MODEL.size + width + 4 * nItems * width;
}

/** The whole model, every number in four bytes: as a store may keep it. */
export function encodeModel(view: ModelView): Bytes {
  const head = MODEL.pack([view.round, 0, view.rows, view.rows, view.width]);
  const count = view.items.length;
  const bytes = new Uint8Array(4 * count);
  const one = new DataView(new ArrayBuffer(4));
  for (let k = 0; k < count; k++) {
    one.setFloat32(0, view.items[k]!, true);
    for (let b = 0; b < 4; b++) bytes[b * count + k] = one.getUint8(b);
  }
  return concat(head, bytes);
}

/** The model that a device has after this download. Raises where anything is off. */
export function decodeModel(
  payload: Uint8Array,
  nItems: number,
  width: number,
  have: ModelView | null = null,
): ModelView {
  const magic = String.fromCharCode(...payload.subarray(0, 4));
  const frame = FRAMES.find((each) => each.magic === magic) ?? MODEL;
  const [round, since, items, rows, columns] = frame.unpack(payload) as [
    number, number, number, number, number,
  ];
  if (items !== nItems || columns !== width || rows > items) {
    throw new MessageError("the model has another shape than the federation's terms say");
  }
  const isWhole = frame === MODEL || frame === MODEL_STEPS;
  const stop = MODEL.size + (isWhole ? 0 : placesSize(rows, items));
  if (payload.length < stop || (isWhole && rows !== items)) throw wrongLength();
  const body = payload.subarray(stop);
  const inSteps = frame === MODEL_STEPS || frame === CHANGES_STEPS;
  const table = inSteps ? stepped(body, rows, columns) : planes(body, rows * columns);
  for (let k = 0; k < table.length; k++) {
    if (!Number.isFinite(table[k]!)) {
      throw new MessageError("the model holds numbers that are not finite");
    }
  }
  if (isWhole) return { round, rows: items, width, items: table };
  if (have === null || have.round !== since || have.rows !== nItems || have.width !== width) {
    throw new MessageError(`the changes are against version ${since}, which is not here`);
  }
  const changed = have.items.slice();
  find(payload.subarray(MODEL.size, stop), rows, items).forEach((row, k) => {
    changed.set(table.subarray(k * width, (k + 1) * width), row * width);
  });
  return { round, rows: items, width, items: changed };
}

function placesSize(rows: number, nItems: number): number {
  return Math.min(4 * rows, (nItems + 7) >>> 3);
}

function find(places: Uint8Array, rows: number, nItems: number): number[] {
  let where: number[] = [];
  if (4 * rows <= (nItems + 7) >>> 3) {
    where = [...u32s(places)];
  } else {
    for (let k = 0; k < 8 * places.length; k++) {
      if (((places[k >>> 3]! >>> (7 - (k & 7))) & 1) === 0) continue;
      if (k >= nItems) throw new MessageError("the model names rows that there are not");
      where.push(k);
    }
  }
  const ascends = where.every((row, k) => row < nItems && (k === 0 || row > where[k - 1]!));
  if (where.length !== rows || !ascends) {
    throw new MessageError("the model's changed rows must be known, ascending and there once each");
  }
  return where;
}

/** Numbers of four bytes, whose lowest bytes stand together, then the second ones, and so on. */
function planes(bytes: Uint8Array, count: number): Float32Array {
  if (bytes.length !== 4 * count) throw wrongLength();
  const words = new Uint32Array(count);
  for (let k = 0; k < count; k++) {
    words[k] =
      bytes[k]! |
      (bytes[count + k]! << 8) |
      (bytes[2 * count + k]! << 16) |
      (bytes[3 * count + k]! << 24);
  }
  return new Float32Array(words.buffer);
}

function stepped(body: Uint8Array, rows: number, columns: number): Float32Array {
  if (body.length < columns) throw wrongLength();
  const powers = new Int8Array(columns);
  const read = viewOf(body);
  for (let c = 0; c < columns; c++) powers[c] = read.getInt8(c);
  const narrow: number[] = [];
  const gaps: number[] = [];
  const full: number[] = [];
  powers.forEach((power, c) => (power === FULL ? full : power === GAPS ? gaps : narrow).push(c));
  const first = columns + rows * narrow.length;
  const second = first + 4 * rows * gaps.length;
  if (body.length !== second + 4 * rows * full.length) throw wrongLength();
  const table = new Float32Array(rows * columns);
  const units = narrow.map((c) => powerOfTwo(powers[c]!));
  for (let row = 0, at = columns; row < rows; row++) {
    for (let k = 0; k < narrow.length; k++, at++) {
      table[row * columns + narrow[k]!] = ((body[at]! << 24) >> 24) * units[k]!;
    }
  }
  const some = planes(body.subarray(first, second), rows * gaps.length);
  for (let row = 0, at = 0; row < rows; row++) {
    for (const c of gaps) table[row * columns + c] = some[at++]!;
  }
  const others = planes(body.subarray(second), rows * full.length);
  full.forEach((c, k) => {
    for (let row = 0; row < rows; row++) table[row * columns + c] = others[k * rows + row]!;
  });
  return table;
}

function wrongLength(): MessageError {
  return new MessageError("the model's length does not match its header");
}
