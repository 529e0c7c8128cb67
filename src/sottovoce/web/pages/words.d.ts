/**
 * From now on, sentences are said in this language.
 * @param {string} name
 * @param {Record<string, string>} catalogue
 */
export function speak(name: string, catalogue: Record<string, string>): void;
/**
 * The sentence, in this language. A key without words is shown as it is: silence would be worse.
 * @param {Said} what
 */
export function say(what: Said): string;
/** A number as the language writes it. @param {number} value */
export function number(value: number): string;
/** @param {number} seconds since 1970 */
export function day(seconds: number): string;
export const LANGUAGES: string[];
export function spoken(): string;
export function said(key: string, values?: Record<string, unknown>): {
    key: string;
    values: Record<string, unknown>;
};
export function isSaid(value: unknown): value is Said;
export function visible(name: string): string;
export function percent(share: number): string;
export function moment(seconds: number): string;
