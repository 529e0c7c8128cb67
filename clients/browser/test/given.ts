/** What a real browser's device is given by a test before it takes part, so that its draws are those
 * of a simulation: the secret from which it draws, and the vector with which it begins. */

import { fromHex } from "../src/bytes.ts";
import { IndexedDisk } from "../src/store/disk.ts";
import { Writing } from "../src/store/records.ts";
import { Vault } from "../src/store/vault.ts";

Object.assign(globalThis, {
  give: async (federation: string, secret: string, vector: readonly number[]): Promise<void> => {
    const vault = await Vault.open(await IndexedDisk.open(`sottovoce ${federation}`));
    await vault.change(async (draft) => {
      const store = new Writing(draft);
      store.keepSecret(fromHex(secret));
      store.keepVector("vector", Float32Array.from(vector));
    });
    vault.close();
  },
});
