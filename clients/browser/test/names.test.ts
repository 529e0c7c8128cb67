/** Names that somebody else has given, as pages show them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { said, say, visible } from "../../../src/sottovoce/web/pages/words.js";

test("nothing is hidden in a name, and nothing turns it around", () => {
  for (const sign of ["\u202e", "\u2066", "\u200f", "\u061c", "\u200b", "\u2060", "\ufeff", "\u00ad", "\u{e0041}"]) {
    const shown = `[U+${sign.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}]`;
    assert.equal(visible(`Ca${sign}fe`), `Ca${shown}fe`);
    assert.ok(!say(said("a.key", { name: `Ca${sign}fe` })).includes(sign));
  }
  assert.equal(visible("Ca\u200dfe\u200c"), "Ca[U+200D]fe[U+200C]");
});

test("names in other scripts stay as they are", () => {
  for (const name of ["Caffè Ñandú", "مقهى الزهراء", "می\u200cخواهم", "क\u094d\u200dष", "👩\u200d🍳 Küche", "קפה", "☕\ufe0f"]) {
    assert.equal(visible(name), name);
  }
});
