/** Invitations: what an operator hands to a user, once and in confidence. */

import { isHex } from "../bytes.ts";
import { MessageError, UsageError } from "../errors.ts";
import { isTable, isWhole, own, readJson } from "./fields.ts";
import { checkProtocol } from "./frames.ts";
import type { Invitation } from "./types.ts";

const MOST_NUMBER = 2 ** 32 - 1;
const FIELDS = ["server", "ca", "token", "number", "federation"] as const;

/** From the text of an invitation's file. */
export function invitationFromText(text: string): Invitation {
  let table: unknown;
  try {
    table = readJson(text, "the invitation");
  } catch (error) {
    if (error instanceof MessageError) {
      throw new UsageError("this is no invitation; ask the operator for another");
    }
    throw error;
  }
  return invitationFromTable(table);
}

/** From the content of an invitation's file. Raises with one sentence where it is none. */
export function invitationFromTable(table: unknown): Invitation {
  if (!isTable(table)) throw new UsageError("this is no invitation; ask the operator for another");
  const names = Object.keys(table).filter((name) => name !== "protocol");
  if (names.length !== FIELDS.length || !FIELDS.every((name) => Object.hasOwn(table, name))) {
    throw new UsageError(
      `a file of this kind (invitation) has the fields ${FIELDS.join(", ")}; ask the operator ` +
        "for another",
    );
  }
  checkProtocol(own(table, "protocol"), "the invitation is for");
  const text = (name: (typeof FIELDS)[number]): string => {
    const value = own(table, name);
    if (typeof value !== "string") throw new UsageError(`${name} must be text`);
    return value;
  };
  const number = own(table, "number");
  if (!isWhole(number)) throw new UsageError("number must be a whole number");
  const [server, ca, token, federation] = [text("server"), text("ca"), text("token"), text("federation")];
  if (!/^https?:\/\//.test(server)) {
    throw new UsageError("the invitation's server must begin with https://; ask for another");
  }
  if (number < 0 || number > MOST_NUMBER) {
    throw new UsageError(`the invitation's number must lie between 0 and ${MOST_NUMBER}`);
  }
  if (!isHex(token)) {
    throw new UsageError("the invitation's token is not hexadecimal; ask for another");
  }
  return { server, ca, token, number, federation };
}
