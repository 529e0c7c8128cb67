/** The worker of the npm package: the device, and nothing that needs a page. */

import { serveWorker, type WorkerScope } from "./worker.ts";

serveWorker(globalThis as unknown as WorkerScope);
