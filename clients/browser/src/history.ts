/** Orders and weights of a person's items, alike on all devices. */

import { DataError } from "./errors.ts";
import { exp } from "./portable.ts";
import type { History } from "./wire/types.ts";

/** Raises where this is no history of a catalogue with so many items. */
export function requireHistory(history: History): void {
  const { items, times, nItems } = history;
  let good = times === null || times.length === items.length;
  for (let k = 0; good && k < items.length; k++) {
    good = items[k]! >= 0 && items[k]! < nItems && (k === 0 || items[k]! > items[k - 1]!);
    good &&= times === null || Number.isSafeInteger(times[k]!);
  }
  if (!good) throw new DataError("a history has items that there are not, or not in order");
}

/** Those items of a history that `keep` says yes to. */
export function select(history: History, keep: (place: number) => boolean): History {
  const places = [...history.items.keys()].filter(keep);
  return {
    items: Int32Array.from(places, (k) => history.items[k]!),
    times: history.times === null ? null : Float64Array.from(places, (k) => history.times![k]!),
    nItems: history.nItems,
  };
}

/** The place of each item among hers, from 0 for the oldest. Equal times share their mean place, and
 * so do all where there are none. */
export function positions(history: History): Float64Array {
  const { items, times } = history;
  const found = new Float64Array(items.length);
  if (times === null) return found.fill((items.length - 1) / 2);
  const order = [...items.keys()].sort((a, b) => times[a]! - times[b]! || a - b);
  for (let first = 0; first < order.length; ) {
    let stop = first + 1;
    while (stop < order.length && times[order[stop]!] === times[order[first]!]) stop++;
    for (let k = first; k < stop; k++) found[order[k]!] = first + (stop - first - 1) / 2;
    first = stop;
  }
  return found;
}

/** The weight of each item at home: it falls by e with every `memory` later ones. All weigh 1 where
 * `memory` is 0, or where there are no times. */
export function recency(history: History, memory: number): Float64Array {
  const many = history.items.length;
  if (memory === 0 || history.times === null) return new Float64Array(many).fill(1);
  const place = positions(history);
  return place.map((at) => exp(-(many - 1 - at) / memory));
}

/** The weights, scaled to a norm of 1. */
export function unit(weights: Float64Array): Float64Array {
  let squares = 0;
  for (let k = 0; k < weights.length; k++) squares += weights[k]! * weights[k]!;
  const norm = Math.sqrt(squares);
  return weights.map((one) => one / norm);
}
