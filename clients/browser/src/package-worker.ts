/**
 * The worker of the npm package: a file of its own. In a bundle `import.meta.url` is the application,
 * so that the library cannot be its own worker there. Bundlers know the expression with `new URL` and
 * bring the file along.
 */

import { importingWorker, scriptUrl } from "./trusted.ts";

export function makeWorker(): Worker {
  const address = new URL("./worker.js", import.meta.url);
  if (address.origin !== location.origin) return importingWorker(address.href);
  return new Worker(scriptUrl(address.href), { type: "module" });
}
