/** What the core's modules hand to each other. Nothing here does anything. */

import type { Bytes } from "../bytes.ts";

/** A published model: `rows` × `width` numbers, row by row. */
export interface ModelView {
  readonly round: number;
  readonly rows: number;
  readonly width: number;
  readonly items: Float32Array;
}

/** A person's history: items by their place in the catalogue, ascending and once each, and when she
 * came to each (whole numbers, any unit), or null where nobody knows. */
export interface History {
  readonly items: Int32Array;
  readonly times: Float64Array | null;
  readonly nItems: number;
}

/** What a device could tell: a sparse vector of norm 1 at most, none of it below 0, places
 * ascending. It stays at home. */
export interface Profile {
  readonly place: Int32Array;
  readonly value: Float64Array;
  /** Places that there are. */
  readonly size: number;
  /** Whether the products of its pairs are what leaves. */
  readonly pairs: boolean;
  /** Of how many items it tells. */
  readonly items: number;
}

/** What leaves of a profile, scaled and cut to whole steps. */
export interface Contribution {
  readonly place: Int32Array;
  readonly steps: Int32Array;
  readonly size: number;
  readonly pairs: boolean;
  readonly items: number;
}

/** What a person permits. The default takes part in nothing. */
export interface Choice {
  readonly takesPart: boolean;
  /** π: the share of positive-item updates that may leave. */
  readonly sharePositives: number;
  /** Largest ε of what leaves with noise; 0 permits none. */
  readonly epsilon: number;
  /** Most ε over everything, for ever; Infinity where there is no limit. */
  readonly totalEpsilon: number;
  /** Ids of items, and categories, of which nothing ever leaves. */
  readonly neverSend: readonly string[];
}

/** What has been sent, which decides what may be sent. */
export interface Spent {
  /** ε so far. */
  readonly epsilon: number;
  /** The period of the last contribution and the stages of it that she was in (`marked`). */
  readonly sent: number;
  /** What was told in that period beyond what its stages tell at today's ε (`beyond`). */
  readonly beyond: number;
}

export interface RankedItem {
  readonly item: number;
  readonly score: number;
}

export interface GramSettings {
  readonly name: "gram";
  readonly embedding_size: number;
  readonly recency: boolean;
  readonly memory: number;
  readonly popularity_share: number;
  readonly least_head: number;
  readonly most_head: number;
  readonly batches: number;
  readonly pairs_from: number;
  readonly quality_share: number;
  readonly held_out: number;
  readonly noise: "independent" | "factorised";
  readonly model_bits: number;
  readonly support: number;
}

export interface FplSettings {
  readonly name: "fpl";
  readonly embedding_size: number;
  readonly learning_rate: number;
  readonly server_rate: number | null;
  readonly cohort_size: number | "all";
  readonly triples: number;
  readonly draws_by: "positives" | "interaction" | null;
  readonly epochs: number;
  readonly rounds: number;
  readonly reg_user: number | null;
  readonly reg_positive: number | null;
  readonly reg_negative: number | null;
  readonly reg_bias: number;
  readonly init_scale: number;
  readonly init_bias: "normal" | "zero";
}

export interface OwnEpsilonSettings {
  readonly name: "own-epsilon";
  readonly epsilon: number;
  readonly delta: number;
  readonly parts: number;
  readonly period_days: number;
}

export interface ShareFractionSettings {
  readonly name: "share-fraction";
  readonly per: "draw" | "item";
}

export interface DirectSettings {
  readonly name: "direct";
}

export interface SecureSumSettings {
  readonly name: "secure-sum";
  readonly min_devices: number;
  readonly clip: number;
  readonly noise: number;
  readonly groups: number;
  /** Of a number on its way: 32, 40, 48 or 64. */
  readonly bits: number;
  readonly url: string;
  readonly authority: string;
  /** The helper's public key in hexadecimal, to which seeds are sealed. */
  readonly key: string;
}

/** The terms of a federation, checked. */
export interface Terms {
  readonly federation: string;
  readonly nItems: number;
  readonly algorithm: GramSettings | FplSettings;
  readonly release: OwnEpsilonSettings | ShareFractionSettings;
  readonly link: DirectSettings | SecureSumSettings;
  /** Numbers per row of the model. */
  readonly width: number;
  /** Of a masked number. */
  readonly bits: number;
  /** Whether contributions to sums that are opened once are what leaves. */
  readonly contributes: boolean;
  /** The text by which terms are named: equal for equal terms alone. */
  readonly canonical: string;
}

export interface Descriptor {
  readonly federation: string;
  /** Digest of the terms in force. */
  readonly terms: string;
  readonly round: number;
  readonly attempt: number;
  readonly state: "waiting" | "open" | "finished";
  readonly selection: "all" | "list";
  /** The round of the model to learn from. */
  readonly model: number;
  readonly pollSeconds: number;
  readonly reportKey: Bytes | null;
  /** The version to recommend by; null: always the newest. */
  readonly published: number | null;
  readonly catalogue: string;
  readonly roster: string;
  /** The kind of wait (`waiting.ts`); empty if the round moves on by itself. */
  readonly waits: string;
}

export interface Invitation {
  readonly server: string;
  readonly ca: string;
  readonly token: string;
  readonly number: number;
  readonly federation: string;
}

export interface Catalogue {
  /** Id and title, by place; what has no title is gone or a place to spare. */
  readonly items: readonly (readonly [id: string, title: string])[];
  /** Of every item, by place; empty where the federation names none. */
  readonly categories: readonly (readonly string[])[];
}
