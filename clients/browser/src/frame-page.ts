/**
 * The page of the consent centre, where its files lie beside this script: a script tag's way. (The
 * npm package has `package-page.ts` in the place of this module.)
 */

/** Let a frame load the centre's page, from `src` if the shop names one. */
export function openCentre(frame: HTMLIFrameElement, src: string | null): void {
  frame.src = src ?? new URL("consent.html", import.meta.url).href;
}
