/** The round descriptor: all that a device must read to know whether there is something to do. */

import { type Bytes, equal, fromHex, isHex } from "../bytes.ts";
import { KEY_BYTES } from "../crypto.ts";
import { MessageError } from "../errors.ts";
import { isTable, isWhole, own, type Table } from "./fields.ts";
import { checkProtocol } from "./frames.ts";
import { keyId } from "./sealing.ts";
import type { Descriptor } from "./types.ts";

const LONGEST_NAME = 64;
const STATES = ["waiting", "open", "finished"] as const;
const SELECTIONS = ["all", "list"] as const;

/** From what a server published; fields that are not known here are left alone. */
export async function descriptorFromTable(table: unknown): Promise<Descriptor> {
  if (!isTable(table)) throw makesNoSense();
  checkProtocol(own(table, "protocol"), "the server speaks");
  const seconds = own(table, "poll_seconds");
  const published = own(table, "published") ?? null;
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) throw makesNoSense();
  return {
    federation: text(table, "federation"),
    terms: text(table, "terms"),
    round: count(own(table, "round")),
    attempt: count(own(table, "attempt")),
    state: one(STATES, own(table, "state")),
    selection: one(SELECTIONS, own(table, "selection")),
    model: count(own(table, "model")),
    pollSeconds: seconds,
    reportKey: await reportKey(own(table, "report_key")),
    published: published === null ? null : count(published),
    catalogue: name(own(table, "catalogue")),
    roster: name(own(table, "roster")),
    waits: kind(own(table, "waits")),
  };
}

function makesNoSense(): MessageError {
  return new MessageError("what the server says of the round makes no sense");
}

function text(table: Table, field: string): string {
  const value = own(table, field);
  if (typeof value !== "string") throw makesNoSense();
  return value;
}

function name(value: unknown): string {
  if (value === undefined) return "";
  if (typeof value !== "string" || [...value].length > LONGEST_NAME) throw makesNoSense();
  return value;
}

/** The kind of wait; empty if it makes no sense, because nothing depends on it. */
function kind(value: unknown): string {
  return typeof value === "string" && [...value].length <= LONGEST_NAME ? value : "";
}

function count(value: unknown): number {
  if (!isWhole(value) || value < 0 || value >= 2 ** 32) throw makesNoSense();
  return value;
}

function one<T extends string>(known: readonly T[], value: unknown): T {
  const found = known.find((each) => each === value);
  if (found === undefined) throw makesNoSense();
  return found;
}

async function reportKey(told: unknown): Promise<Bytes | null> {
  if (told === undefined || told === null) return null;
  const wrong = new MessageError("the report key that the server published makes no sense");
  if (!isTable(told)) throw wrong;
  const [key, id] = [own(told, "public"), own(told, "id")];
  if (!isHex(key) || !isHex(id) || key.length !== 2 * KEY_BYTES) throw wrong;
  const found = fromHex(key);
  if (!equal(fromHex(id), await keyId(found))) throw wrong;
  return found;
}
