/** What a page gives to the device, checked before it goes to the worker: a `TypeError` names the
 * method, what was expected and what came. */

import type { ChoiceChange } from "./store/records.ts";

export type Visit = string | readonly [id: string, at: number | null];

/** Return how a developer would write this value, shortened. */
function written(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.slice(0, 40));
  if (value === null || value === undefined || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  return `an object (${value.constructor?.name ?? "null"})`;
}

function refuse(call: string, expected: string, value: unknown): never {
  throw new TypeError(`${call}: expected ${expected}, got ${written(value)}`);
}

export function itemId(call: string, value: unknown): string {
  if (typeof value !== "string" || value === "") refuse(call, "an item id (a text)", value);
  return value;
}

export function itemIds(call: string, value: unknown): readonly string[] {
  return Array.isArray(value) ? value.map((one) => itemId(call, one)) : [itemId(call, value)];
}

/** Visits as a page names them: an id, or ids, each perhaps with a time in whole seconds. */
export function visits(value: unknown): readonly Visit[] {
  const call = "visited(items)";
  const one = (visit: unknown): Visit => {
    if (!Array.isArray(visit)) return itemId(call, visit);
    const [id, at = null] = visit as unknown[];
    if (at !== null && !Number.isSafeInteger(at)) {
      refuse(call, "a time in whole seconds since 1970, or null, behind the item id", at);
    }
    return [itemId(call, id), at as number | null];
  };
  return Array.isArray(value) ? value.map(one) : [one(value)];
}

export function wholeNumber(call: string, value: unknown, least: number): number {
  if (!Number.isSafeInteger(value) || (value as number) < least) {
    refuse(call, `a whole number from ${least}`, value);
  }
  return value as number;
}

export function oneOf<T extends string>(call: string, value: unknown, known: readonly T[]): T {
  if (!known.includes(value as T)) {
    refuse(call, known.map((name) => JSON.stringify(name)).join(" or "), value);
  }
  return value as T;
}

export function flag(call: string, value: unknown): boolean {
  if (typeof value !== "boolean") refuse(call, "true or false", value);
  return value;
}

export function text(call: string, value: unknown): string {
  if (typeof value !== "string" || value === "") refuse(call, "a text", value);
  return value;
}

/** A change of a choice; what its fields may be, the store knows. */
export function choiceChange(value: unknown): ChoiceChange {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    refuse("choose(change)", "an object such as { takesPart: true, epsilon: 1 }", value);
  }
  return value;
}

/** What `openDevice` is given, but for a worker of the page's own. */
export function opening<T extends { readonly federation: string }>(value: unknown): T {
  const call = "openDevice(options)";
  if (typeof value !== "object" || value === null) {
    refuse(call, 'an object such as { federation: "https://…" }', value);
  }
  const { federation, poll } = value as { federation?: unknown; poll?: unknown };
  text(`${call}: federation`, federation);
  if (poll !== undefined && !(Number.isFinite(poll) && (poll as number) > 0)) {
    refuse(`${call}: poll`, "seconds above 0", poll);
  }
  return value as T;
}
