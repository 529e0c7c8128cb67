/** How long a device waits before it asks again: jittered, so that devices do not come all at once,
 * and longer and longer where asking fails. In seconds. */

const LONGEST_BACK_OFF = 900;
const SHORTEST = 0.01;
const SHORTEST_TOLD = 1;
const LONGEST = 86_400;
/** How often to ask a server that has not said it yet. */
const UNTOLD = 2;

/** A number in [0, 1), drawn anew at each call. */
export type Draw = () => number;

export const fromSystem: Draw = () =>
  (crypto.getRandomValues(new Uint32Array(1))[0] as number) / 2 ** 32;

/** The waits of one device. */
export class Pace {
  readonly #shortest: number;
  #told = UNTOLD;
  #failures = 0;

  /** `fixed` holds whatever the server says. A server that is not `near`, on this machine, is not
   * asked more often than every second at its own word. */
  constructor(
    readonly fixed: number | null = null,
    near = false,
    private readonly draw: Draw = fromSystem,
  ) {
    this.#shortest = near ? SHORTEST : SHORTEST_TOLD;
  }

  /** Seconds to wait after the server answered and said how often to ask. */
  afterSuccess(told: number): number {
    this.#failures = 0;
    this.heard(told);
    return this.#poll * (0.75 + 0.5 * this.draw());
  }

  /** The server says how often to ask, whatever comes of it. */
  heard(told: number): void {
    this.#told = Math.min(Math.max(told, this.#shortest), LONGEST);
  }

  /** Seconds to wait while the owner has something to decide: as long as the server says, so that
   * it goes on soon after she has. */
  whileAsked(): number {
    if (this.#told === UNTOLD && this.fixed === null) return this.afterFailure();
    return this.afterSuccess(this.#told);
  }

  /** Seconds to wait after a failure: twice as long each time, up to a quarter of an hour, and
   * never shorter than the server asked for. */
  afterFailure(retryAfter = 0): number {
    const longest = Math.max(LONGEST_BACK_OFF, this.#poll);
    const wait = Math.min(this.#poll * 2 ** Math.min(this.#failures, 64), longest);
    this.#failures += 1;
    return Math.max(wait * (0.5 + 0.5 * this.draw()), retryAfter * (1 + 0.1 * this.draw()));
  }

  get #poll(): number {
    return this.fixed ?? this.#told;
  }
}
