/**
 * The catalogue's files, which lie beside the page. Who asks for one says which language the page
 * speaks, and nothing else: this module knows of no device, and imports nothing.
 */

/** The content of a file of sentences; null where it is not there. */
export async function sentencesOf(folder: URL, name: string): Promise<unknown> {
  const asked = { credentials: "omit", referrerPolicy: "no-referrer" } as const;
  const answer = await fetch(new URL(`${name}.json`, folder), asked).catch(() => null);
  return answer?.ok ? answer.json() : null;
}
