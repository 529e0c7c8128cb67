/**
 * The ledger: a row for everything that has left this device, or may have, for ever.
 *
 * A round is prepared (nothing has left), left (its fate is unknown), arrived (it counts) or
 * refused (it has left, and does not count); or it was dropped (nothing has left, nothing will).
 */

/** Of a round. */
export type State = "prepared" | "dropped" | "left" | "arrived" | "refused";

/** What a release costs and how much of it there is. */
export interface Released {
  /** By which release. */
  readonly kind: string;
  /** Of how many of her own items it tells, and of how many others. */
  readonly positiveRows: number;
  readonly negativeRows: number;
  readonly bytes: number;
  /** Infinity where nothing bounds it. */
  readonly epsilon: number;
}

/** Her own items in a report, by place, and how much of each; comparable within one report. */
export interface Contents {
  readonly items: readonly number[];
  readonly weight: readonly number[];
}

/** One round of this device. */
export interface Round {
  /** Under which terms, counted from 0. */
  readonly era: number;
  readonly round: number;
  readonly attempt: number;
  readonly state: State;
  /** Digest of the model that was asked about. */
  readonly asked: string;
  /** The choice that was in force when it was prepared, by its version. */
  readonly consent: number;
  /** Drawn once for this message. */
  readonly nonce: string;
  readonly sha256: string;
  readonly preparedAt: number;
  readonly leftAt: number | null;
  readonly reason: string;
  /** Of the envelope in which it left. */
  readonly bodyBytes: number;
  readonly bodySha256: string;
  readonly released: Released;
  readonly contents: Contents;
}

/** A request that said that this device is there. */
export interface Contact {
  readonly what: "enrolment" | "check-in";
  readonly party: string;
  readonly bytes: number;
  readonly at: number;
}

/** Running totals of one kind of release. They never fall. */
export interface Totals {
  readonly kind: string;
  readonly releases: number;
  readonly positiveRows: number;
  readonly negativeRows: number;
  readonly bytes: number;
  readonly epsilon: number;
}

/** A row as its owner sees and exports it. */
export interface LedgerRow {
  readonly at: number;
  readonly what: "report" | "enrolment" | "check-in";
  readonly party: string;
  readonly terms: number;
  readonly round: number | null;
  readonly attempt: number | null;
  readonly state: State | "left";
  readonly reason: string;
  readonly kind: string;
  readonly items: readonly string[];
  /** How much of each item is in it. */
  readonly weights: readonly number[];
  readonly positiveRows: number;
  readonly negativeRows: number;
  readonly bytes: number;
  readonly epsilon: number;
  readonly sha256: string;
}

export function isGone(round: Round): boolean {
  return round.state === "left" || round.state === "arrived" || round.state === "refused";
}

export function sameKey(one: Round, other: Round): boolean {
  return one.era === other.era && one.round === other.round && one.attempt === other.attempt;
}

/** Below 0 where the first comes before the second. */
export function compareKeys(
  one: readonly [number, number],
  other: readonly [number, number],
): number {
  return one[0] - other[0] || one[1] - other[1];
}

/** Everything that has left or may have, oldest first. `named` says what stands at a place. */
export function ledgerRows(
  rounds: readonly Round[],
  contacts: readonly Contact[],
  named: (place: number) => string,
): LedgerRow[] {
  const reports = rounds.filter(isGone).map(
    (one): LedgerRow => ({
      at: one.leftAt ?? one.preparedAt,
      what: "report",
      party: "server",
      terms: one.era,
      round: one.round,
      attempt: one.attempt,
      state: one.state,
      reason: one.reason,
      kind: one.released.kind,
      items: one.contents.items.map(named),
      weights: one.contents.weight,
      positiveRows: one.released.positiveRows,
      negativeRows: one.released.negativeRows,
      bytes: one.bodyBytes || one.released.bytes,
      epsilon: one.released.epsilon,
      sha256: one.bodySha256 || one.sha256,
    }),
  );
  const requests = contacts.map(
    (one): LedgerRow => ({
      ...{ at: one.at, what: one.what, party: one.party, terms: 0, round: null, attempt: null },
      ...{ state: "left", reason: "", kind: "", items: [], weights: [], positiveRows: 0, negativeRows: 0 },
      ...{ bytes: one.bytes, epsilon: 0, sha256: "" },
    }),
  );
  return [...requests, ...reports].sort((one, other) => one.at - other.at);
}

const COLUMNS = [
  ...(["at", "what", "party", "terms", "round", "attempt", "state", "reason", "kind"] as const),
  ...(["items", "positiveRows", "negativeRows", "bytes", "epsilon", "sha256"] as const),
];

/** As text that other programs read. A cell that a spreadsheet would take for a formula does not
 * begin with its sign. */
export function exported(rows: readonly LedgerRow[], format: "csv" | "ndjson"): string {
  if (format === "ndjson") {
    const whole = (row: LedgerRow) => ({ ...row, epsilon: said(row.epsilon) });
    return rows.map((row) => `${JSON.stringify(whole(row))}\n`).join("");
  }
  const lines = rows.map((row) =>
    COLUMNS.map((name) => {
      const value = row[name];
      return cell(Array.isArray(value) ? value.join("|") : String(said(value ?? "")));
    }).join(","),
  );
  return [COLUMNS.join(","), ...lines].map((line) => `${line}\r\n`).join("");
}

function said(value: unknown): unknown {
  return value === Number.POSITIVE_INFINITY ? "inf" : value;
}

function cell(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
