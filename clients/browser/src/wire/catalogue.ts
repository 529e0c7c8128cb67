/**
 * The catalogue of a federation: id and title of every item, in an order that never changes, since
 * devices and models know items by their place; and categories, by which people can speak of many
 * items. An item that goes keeps its place and loses its title; what has no title is not recommended.
 */

import { MessageError } from "../errors.ts";
import { isTable, isWhole, own, type Table } from "./fields.ts";
import type { Catalogue } from "./types.ts";

const SPARE = "~spare-";

/** The most bytes that a published catalogue may have. */
export function catalogueLimit(nItems: number): number {
  return Math.min(2 ** 16 + nItems * 1024, 2 ** 26);
}

/** From what a server published, for so many items. Raises where it is not what it should be. */
export function catalogueFromTable(table: unknown, nItems: number): Catalogue {
  const wrong = new MessageError("the server's catalogue makes no sense");
  if (!isTable(table)) throw wrong;
  const found = own(table, "items");
  if (!Array.isArray(found) || found.length !== nItems) throw wrong;
  const items = found.map((entry: unknown): [string, string] => {
    if (!Array.isArray(entry) || entry.length !== 2 || !entry.every(isText)) throw wrong;
    return [entry[0] as string, entry[1] as string];
  });
  if (new Set(items.map(([id]) => id)).size !== items.length) {
    throw new MessageError("a catalogue must not name two items alike");
  }
  const categories = categoriesIn(table, nItems);
  // A place to spare may change its id, and with it what a user has said of it.
  const spare = (id: string): boolean => id.startsWith(SPARE);
  if (items.some(([id, title], place) => spare(id) && (title || categories[place]?.length))) {
    throw new MessageError("a place without an item has a title or a category");
  }
  return { items, categories };
}

/** The categories of every item of a published catalogue; empty where it has none. */
function categoriesIn(table: Table, nItems: number): string[][] {
  if (!Object.hasOwn(table, "categories")) return [];
  const found = own(table, "categories");
  if (!isTable(found) || Object.keys(found).sort().join() !== "names,of") {
    throw new MessageError("a catalogue's categories must be names, and of which item each is");
  }
  const [names, of] = [found["names"], found["of"]];
  if (!Array.isArray(names) || !names.every((name) => isText(name) && name !== "")) {
    throw new MessageError("the categories of a catalogue must have names");
  }
  if (new Set(names).size !== names.length) {
    throw new MessageError("a catalogue must not name two categories alike");
  }
  if (!Array.isArray(of) || of.length !== nItems) {
    throw new MessageError("a catalogue must say of every item of which categories it is");
  }
  return of.map((places: unknown) => {
    const known = (place: unknown): boolean => isWhole(place) && place >= 0 && place < names.length;
    if (!Array.isArray(places) || !places.every(known)) {
      throw new MessageError("a catalogue gives an item a category that it does not name");
    }
    if (places.some((place, k) => k > 0 && place <= places[k - 1])) {
      throw new MessageError("an item's categories must ascend, each once");
    }
    return places.map((place: number) => names[place] as string);
  });
}

/** Whether it is text that can be stored: JSON may name halves of characters. */
export function isText(value: unknown): value is string {
  return typeof value === "string" && !/\p{Cs}/u.test(value);
}

/** Places without an item. */
export function sparePlaces(items: Catalogue["items"]): number[] {
  return [...items.keys()].filter((place) => {
    const [id, title] = items[place]!;
    return id.startsWith(SPARE) && !title;
  });
}

/** These categories, and those that items were known to have: none is ever taken from them. */
export function withFormerCategories(
  before: Catalogue["items"],
  known: Catalogue["categories"],
  after: Catalogue["items"],
  categories: Catalogue["categories"],
): string[][] {
  const had = new Map(before.map(([id], place) => [id, known[place] ?? []]));
  return after.map(([id], place) =>
    [...new Set([...(had.get(id) ?? []), ...(categories[place] ?? [])])].sort(byPoint),
  );
}

/** In the order of code points, as all devices sort. */
function byPoint(one: string, other: string): number {
  const [a, b] = [[...one], [...other]];
  for (let k = 0; k < Math.min(a.length, b.length); k++) {
    const less = a[k]!.codePointAt(0)! - b[k]!.codePointAt(0)!;
    if (less !== 0) return less;
  }
  return a.length - b.length;
}

/** Raises where an item that a device knows stands elsewhere, or is not there: its history would be
 * another's. More may stand behind them. */
export function requireSamePlaces(before: Catalogue["items"], after: Catalogue["items"]): void {
  const free = new Set(sparePlaces(before));
  const moved = before.findIndex(([id], place) => !free.has(place) && after[place]?.[0] !== id);
  if (moved >= 0) {
    throw new MessageError(
      `the server's catalogue has another item in place ${moved}: nothing is sent until it is put ` +
        "right; tell the operator",
    );
  }
}

/** The places of every item and of every category, by name. An item and a category of one name are
 * both meant by it. */
export function itemsNamed(catalogue: Catalogue): Map<string, Int32Array> {
  const found = new Map<string, number[]>();
  const add = (name: string, place: number): void => {
    const places = found.get(name);
    if (places === undefined) found.set(name, [place]);
    else if (places[places.length - 1] !== place) places.push(place);
  };
  catalogue.items.forEach(([id], place) => {
    add(id, place);
    for (const name of catalogue.categories[place] ?? []) add(name, place);
  });
  return new Map([...found].map(([name, places]) => [name, Int32Array.from(places)]));
}
