/**
 * The worker of the one file that pages load with a script tag: that file itself. One file can be
 * pinned by its hash. (The npm package has `package-worker.ts` in the place of this module.)
 */

import { importingWorker, scriptUrl } from "./trusted.ts";
import { serveWorker, type WorkerScope } from "./worker.ts";

export function makeWorker(): Worker {
  const here = import.meta.url;
  if (new URL(here).origin !== location.origin) return importingWorker(here);
  return new Worker(scriptUrl(here), { type: "module" });
}

const scope = globalThis as { DedicatedWorkerGlobalScope?: unknown };
if (typeof scope.DedicatedWorkerGlobalScope === "function") {
  serveWorker(globalThis as unknown as WorkerScope);
}
