/**
 * Why a round waits, or why this device sends nothing in one: a kind, and one sentence for each kind.
 * A server publishes the kind with the state of the round. Every other place that names it (agents,
 * `serve status`, the console, metrics) has the same sentences, from `core/waiting.py`.
 */

/** The kinds for which a round can wait, as the server knows them. */
export const ROUNDS: Readonly<Record<string, string>> = {
  few_enrolled: "fewer devices have enrolled than a round needs",
  few_active: "fewer of the enrolled devices can be asked than a round needs",
  few_agreed: "fewer devices have agreed to the changed terms than a round needs",
  reports: "the open round waits for reports from devices",
  counted: "too few devices are left that have not contributed to this period yet",
  resting: "devices that contributed to an earlier period rest until its days are over",
  helper_away: "the helper does not answer the server",
  helper_terms: "the helper keeps other terms than the server",
  helper_refuses: "the helper does not accept this server",
  aggregator_away: "an aggregator does not answer the server",
  aggregator_terms: "an aggregator keeps other terms than the server",
  aggregator_refuses: "an aggregator does not accept this server",
  batch: "the open round waits for a batch from the shuffler",
  batch_part: "a part of a batch from the shuffler has not come yet",
  disk_full: "the disk of the server is full",
  server_trouble: "the server cannot use its disk or its database",
  no_server: "no server of the federation answers",
  paused: "an operator has paused the rounds",
  amendment: "a change of terms waits to come into force",
  held_back: "all rounds are complete, and the newest version of the model is held back",
  done: "all rounds that were asked for are complete",
};

/** The kinds for which a device sends nothing in an open round, as it finds them out itself. */
export const DEVICES: Readonly<Record<string, string>> = {
  no_history: "there is no history to learn from yet",
  kept_back: "the user's choice keeps back all that there is to learn from",
  no_part: "the user takes no part",
  limit: "the user's limit has no room for another message",
  contributed: "this device has contributed already, and is counted once in a period",
};

const UNKNOWN = "the round waits for a reason that this release does not know";

/** The sentence for this kind, also if a newer server has made it up. */
export function words(kind: string): string {
  const known = Object.hasOwn(ROUNDS, kind) ? ROUNDS : DEVICES;
  return Object.hasOwn(known, kind) ? (known[kind] as string) : UNKNOWN;
}
