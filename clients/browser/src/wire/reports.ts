/**
 * A device's report of rows of the model, as bytes: a header, then the steps between item numbers,
 * then the values, whole numbers of the grid, in as many bytes each as hold them all. Bytes of equal
 * weight stand together. It may be compressed, which a tab never does: nothing is lost without.
 */

import { type Bytes, concat } from "../bytes.ts";
import { MessageError, Unsupported } from "../errors.ts";
import { REPORT } from "./frames.ts";

export const GRID_BITS = 24;
const WORD = 2 ** 32;

/** One device's report: `values` has `width` whole numbers, within ±2^53, for each of `item`, which
 * ascends. */
export function encodeReport(
  round: number,
  item: Int32Array,
  values: Float64Array,
  width: number,
): Bytes {
  const rows = item.length;
  if (values.length !== rows * width) throw new MessageError("a report has a row for each item");
  const size = bytesPerValue(values);
  const body = new Uint8Array(4 * rows + values.length * size);
  for (let k = 0, before = 0; k < rows; before = item[k]!, k++) {
    const step = item[k]! - before;
    if (step < 0 || (step === 0 && k > 0)) throw new MessageError("items must ascend");
    for (let b = 0; b < 4; b++) body[b * rows + k] = step >>> (8 * b);
  }
  for (let k = 0; k < values.length; k++) {
    const low = values[k]! >>> 0;
    const high = Math.floor(values[k]! / WORD);
    for (let b = 0; b < size; b++) {
      body[4 * rows + b * values.length + k] = b < 4 ? low >>> (8 * b) : high >> (8 * (b - 4));
    }
  }
  return concat(REPORT.pack([size, 0, width, round, rows, GRID_BITS]), body);
}

/** The fewest bytes of two's complement that hold every value. */
function bytesPerValue(values: Float64Array): number {
  let largest = 0;
  for (const value of values) largest = Math.max(largest, value < 0 ? -value - 1 : value);
  let bits = 0;
  for (let rest = largest; rest >= 1; rest = Math.floor(rest / 2)) bits++;
  return (bits >> 3) + 1;
}

/** The inverse of `encodeReport`. */
export function decodeReport(
  payload: Uint8Array,
  where: {
    readonly nItems: number;
    readonly width: number;
    readonly round: number;
    readonly maxRows: number;
  },
): { item: Int32Array; values: Float64Array } {
  const [size, packed, columns, round, rows, bits] = REPORT.unpack(payload) as [
    number, number, number, number, number, number,
  ];
  if (size < 1 || size > 8 || packed > 1 || bits !== GRID_BITS) {
    throw new MessageError("the message's header makes no sense");
  }
  if (round !== where.round) {
    throw new MessageError(`message is for round ${round}, the round is ${where.round}`);
  }
  if (columns !== where.width) {
    throw new MessageError(`message has ${columns} columns, the model has ${where.width}`);
  }
  if (rows > Math.min(where.maxRows, where.nItems)) {
    throw new MessageError("message has more rows than a device may send");
  }
  if (packed) throw new Unsupported("a tab does not read compressed reports");
  const body = payload.subarray(REPORT.size);
  const count = rows * columns;
  if (body.length !== 4 * rows + count * size) {
    throw new MessageError("message length does not match its header");
  }
  const item = new Int32Array(rows);
  for (let k = 0, at = 0; k < rows; k++) {
    let step = 0;
    for (let b = 3; b >= 0; b--) step = step * 256 + body[b * rows + k]!;
    at += step;
    if (at >= where.nItems || (step === 0 && k > 0)) {
      throw new MessageError("items must be known, ascending and sent once each");
    }
    item[k] = at;
  }
  const values = new Float64Array(count);
  for (let k = 0; k < count; k++) {
    const top = body[4 * rows + (size - 1) * count + k]!;
    let value = top >= 128 ? top - 256 : top;
    for (let b = size - 2; b >= 0; b--) value = value * 256 + body[4 * rows + b * count + k]!;
    values[k] = value;
  }
  return { item, values };
}
