/** Trusted Types: the addresses that become scripts here, under the policy `sottovoce`. */

interface Policies {
  createPolicy(name: string, rules: Policy): Policy;
}
interface Policy {
  createScriptURL(address: string): string;
}
let policy: Policy | undefined;

/** Return an address that a page with Trusted Types takes as a script's. */
export function scriptUrl(address: string): string {
  const { trustedTypes } = globalThis as { trustedTypes?: Policies };
  try {
    policy ??= trustedTypes?.createPolicy("sottovoce", { createScriptURL: (same) => same });
  } catch {
    // The page's header does not name this policy; it may not need it either.
  }
  return policy?.createScriptURL(address) ?? address;
}

/** Start a worker from a script of another origin, which may be imported by one of this origin. */
export function importingWorker(address: string): Worker {
  const source = new Blob([`import ${JSON.stringify(address)};`], { type: "text/javascript" });
  const own = URL.createObjectURL(source);
  try {
    return new Worker(scriptUrl(own), { type: "module" });
  } finally {
    setTimeout(() => URL.revokeObjectURL(own), 60_000);
  }
}
