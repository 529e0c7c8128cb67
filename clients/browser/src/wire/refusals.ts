/** Refusals: what the other side says when it does not take a message. */

import { MessageError } from "../errors.ts";
import { Fields, printable } from "./fields.ts";

/** A message that was not taken, and why. */
export class Refused extends MessageError {
  constructor(
    /** By which both sides know it, such as "late"; empty where none was told. */
    readonly reason: string,
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

const LONGEST = 500;

/** What a server or helper answered that did not take a message. Whatever the answer is, this is a
 * refusal: nothing of it is believed but its status. */
export function refusalOf(status: number, body: Uint8Array | string): Refused {
  try {
    const told = Fields.ofJson(body, "the answer");
    const reason = told.has("error") ? told.sentence("error", 40) : "";
    return new Refused(reason, status, told.sentence("detail", LONGEST));
  } catch {
    const text = typeof body === "string" ? printable(body, 80) : "";
    const said = text === "" ? "" : `: ${text}`;
    return new Refused("", status, `the server did not take it (status ${status})${said}`);
  }
}
