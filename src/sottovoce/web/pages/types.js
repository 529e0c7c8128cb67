// What the page and a provider say to each other. Types alone, known to every module: no browser
// loads this.

/** @typedef {{key: string, values: Record<string, unknown>}} Said a sentence before it is read */
/** @typedef {Record<string, unknown>} Change a partial choice */
/** @typedef {(value: unknown, wrong?: Said | null) => void} Turn with `wrong`, there is no value */
/** @typedef {string | Said | (() => string) | Node | null | undefined | false} Child */
/** @typedef {[string, Record<string, number | string>, string?]} Shape with words: what a text says, or a hint */
/** @typedef {{value: number, label: Said, right?: number | null}} Step */
/** @typedef {{name: string, label: string, on: boolean, said: Said | null}} Choosable */
/**
 * @template T
 * @typedef {object} Source of the rows of a list
 * @property {number} total
 * @property {(offset: number, limit: number) => Promise<T[] | null>} load
 * @property {(row: T, at: number) => HTMLElement} draw
 * @property {number} height of a row, in rem
 * @property {Said} label
 * @property {HTMLElement} [head] a table's head; without one it is a list
 */
/**
 * @typedef {object} Field
 * @property {string} name
 * @property {"switch"|"epsilon"|"share"|"count"|"limit"|"strength"|"attributes"|"owners"|"things"} kind
 * @property {Said} label
 * @property {Said | null} help
 * @property {unknown} value
 * @property {number | null} [least]
 * @property {number | null} [most]
 * @property {Step[]} [steps]
 * @property {Choosable[]} [options]
 */
/** @typedef {{setting: string, before: unknown, after: unknown, said: Said | null}} Difference */
/**
 * @typedef {object} Agreement
 * @property {string} digest
 * @property {boolean} agreed
 * @property {Said[]} said
 * @property {Difference[]} changes
 * @property {{name: string, value: unknown}[]} settings
 */
/** @typedef {{who: Said, sees: Said}} Reader */
/**
 * @typedef {object} Store
 * @property {string} id
 * @property {string} name
 * @property {string | null} federation
 * @property {"devices" | "owners" | "alone"} kind
 * @property {string | null} address
 * @property {Said} stands
 * @property {Said | null} quiet
 * @property {boolean} takes_part
 * @property {boolean} stopped
 * @property {boolean} printed
 * @property {Field[]} fields
 * @property {Change} choice
 * @property {{spent: number, limit: number | null, said: Said} | null} meter
 * @property {Agreement | null} terms
 * @property {Reader[]} readers
 * @property {{items: number, off: number, unknown: number, version?: number}} history
 * @property {number} contributions
 * @property {number | null} last
 */
/** @typedef {{version: string | number, stores: Store[]}} State */
/**
 * @typedef {object} Weighed
 * @property {{right: number, of: number, said: Said} | null} odds
 * @property {"none" | "good" | "weak" | "nothing"} verdict
 * @property {Said[]} said
 * @property {Said | null} objection
 * @property {string[]} technical
 */
/**
 * @typedef {object} Thing
 * @property {string} item
 * @property {string} title
 * @property {number | null} when
 * @property {string[]} categories
 * @property {boolean} on
 * @property {"item" | "category" | null} by
 * @property {string[]} [former] titles that it had before
 */
/** @typedef {{name: string, count: number, on: boolean}} Category */
/** @typedef {{total: number, things: Thing[], categories: Category[]}} ThingsPage */
/**
 * @typedef {object} Message
 * @property {Said} what
 * @property {Said} to
 * @property {number} bytes
 * @property {string} sha256
 * @property {string} start
 * @property {boolean} exact
 */
/**
 * @typedef {object} Previewed
 * @property {boolean} ready
 * @property {Said} said
 * @property {string} [why] the exact reason why nothing would leave
 * @property {string | null} nonce
 * @property {number | null} round
 * @property {Said | null} [cost] what it uses
 * @property {number | null} epsilon
 * @property {{item: string, title: string, weight: number}[]} items
 * @property {number} total
 * @property {number} others
 * @property {number} kept_back
 * @property {Message[]} messages
 * @property {Reader[]} readers
 */
/**
 * @typedef {object} Row
 * @property {string | number} id
 * @property {number} when
 * @property {Said} what
 * @property {Said} to
 * @property {number} bytes
 * @property {number | null} epsilon
 * @property {boolean} bounded
 * @property {Said | null} state
 * @property {number} items
 * @property {string | null} sha256
 */
/** @typedef {{item: string, title: string, weight: number}} Weighted */
/** @typedef {{row: Row, items: Weighted[], receipt: Record<string, unknown>}} Booked */
/**
 * @typedef {object} Finding
 * @property {string} attack
 * @property {Said} who
 * @property {Said} promise
 * @property {Said} said
 * @property {{item: string, title: string, right: boolean}[]} items
 * @property {number} hits
 * @property {number} claims
 * @property {number} chance
 * @property {number} right
 * @property {"holds" | "broken" | "unclear" | "not_promised" | "cannot"} verdict
 */
/** @typedef {{done: number, total: number, findings: Finding[] | null, error: Said | null}} Learnt */
/** @typedef {{item: string, title: string}[]} Titles */
/** @typedef {Record<string, Record<string, string | string[]>>} Glossary as in core/words/glossary.toml */
/**
 * @typedef {object} Provider
 * @property {(language: string) => Promise<Record<string, string>>} words
 * @property {() => Promise<Glossary>} glossary
 * @property {() => Promise<State>} state
 * @property {(store: string, change: Change) => Promise<Weighed>} weigh
 * @property {(store: string, change: Change) => Promise<Store>} choose
 * @property {(store: string, asked: {query: string, offset: number, limit: number}) => Promise<ThingsPage>} things
 * @property {(store: string) => Promise<Previewed>} preview
 * @property {(store: string, index: number) => Promise<ArrayBuffer>} body
 * @property {(store: string, nonce: string) => Promise<{state: string, said: Said, store: Store}>} send
 * @property {(store: string, asked: {offset: number, limit: number}) => Promise<{total: number, rows: Row[]}>} ledger
 * @property {(store: string, row: string | number) => Promise<Booked>} row
 * @property {(store: string, format: "csv" | "ndjson") => Promise<Blob>} export
 * @property {(store: string, digest: string) => Promise<Store>} agree
 * @property {(store: string | null, everything: boolean) => Promise<State>} stop
 * @property {(store: string) => Promise<State>} start
 * @property {(store: string, items: string[]) => Promise<Store>} remove
 * @property {(store: string, what: "history" | "everything") => Promise<State>} erase
 * @property {(store: string) => Promise<Learnt>} learn
 * @property {(store: string) => Promise<Learnt>} learnt
 * @property {(store: string, change: Change | null) => Promise<{now: Titles, after: Titles | null}>} recommend
 */

// What the console and a server say to each other.

/** @typedef {{kind: string, words: string, party: string, since: string | null, what: string, do: string}} Reason */
/**
 * @typedef {object} ConsoleState
 * @property {string} federation
 * @property {number} round
 * @property {number} attempt
 * @property {"waiting" | "open" | "closing" | "finished"} state
 * @property {number} target
 * @property {number} reported
 * @property {number} goal
 * @property {number} asked
 * @property {number} enrolled
 * @property {number} active
 * @property {number} shut_out
 * @property {{since: string, who: string, why: string} | null} [paused]
 * @property {Reason | null} [reason]
 * @property {string | null} [opened]
 * @property {{at: string, who: string, round: number} | null} [changed] terms, since which no round has ended
 * @property {boolean} spends whether each period costs people once more
 * @property {string} [terms]
 * @property {Record<string, any> | null} [amendment]
 * @property {Record<string, number>} refused
 * @property {{on: boolean, suspects: number[]}} search
 * @property {number | null} published
 * @property {RoundLine | null} last
 * @property {string} now
 * @property {string} start another one each time the server starts
 * @property {string} release
 * @property {{id: string, name: string, role: "look" | "act"}} session
 * @property {string} url where devices reach the server
 */
/**
 * @typedef {object} RoundLine
 * @property {number} round
 * @property {number} attempt
 * @property {string} outcome
 * @property {number} asked
 * @property {number} reported
 * @property {number} missing
 * @property {number} seconds
 * @property {string | null} opened
 * @property {string | null} ended
 */
/** @typedef {{number: number, label: string, state: string, enrolled: string | null, last_contact: string | null, why: string}} DeviceLine */
/** @typedef {{value: number, low: number, high: number}} Rate */
/** @typedef {{users: number, candidate: Rate, published: Rate, popularity: Rate}} QualityLine */
/** @typedef {{version: number, made: string, published: boolean, held_back: string, quality: QualityLine | null}} VersionLine */
/** @typedef {{party: string, url: string, answers: boolean | null, what: string, at: string | null, milliseconds: number | null}} PartyLine */
/** @typedef {{id: number, at: string, who: string, how: string, what: string, words: string, about: Record<string, unknown>, outcome: Record<string, unknown>}} ActLine */
/** @typedef {{at: string, who: string, round: number, digest: string, changes: [string, unknown, unknown][]}} TermsLine */
