"""A shop's site with a federation behind it: pages, the library of tabs and its elements, under a
strict policy; and the page "build your own" as the docs have it."""

import base64
import hashlib
import json
import re
from pathlib import Path

from tab_world import Front, built

DOCS = Path(__file__).parents[2] / "docs" / "tab.md"
KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css",
    ".json": "application/json",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self'; worker-src 'self'; "
    "connect-src 'self'; frame-src {frames}; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'"
)
SHOP = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<link rel="icon" href="data:,"><script type="module" src="sottovoce/elements.js"></script>
<script type="module">
import { openDevice } from "./sottovoce/sottovoce.js";
window.open_device = async (options) => {
  window.device = await openDevice({ federation: location.origin, ...options });
  for (const part of document.querySelectorAll(".private")) part.device = window.device;
};
document.body.dataset.ready = "";
</script></head><body><main><h1>A shop</h1>
<sottovoce-recommendations class="private" count="5" href="/thing/{id}"></sottovoce-recommendations>
<sottovoce-consent class="private"></sottovoce-consent></main></body></html>"""


def page_of_the_docs():
    """The page, as somebody copies it."""
    (found,) = re.findall(r"```html\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    return found


class Shop(Front):
    """`pages` by path, and below `/sottovoce/` the library's folder. `framed` is the origin that
    its pages may have in a frame; `ancestors` those that may have its own pages in one."""

    def __init__(self, page=SHOP):
        super().__init__()
        self.pages = {"/": page}
        self.framed, self.ancestors = "'self'", "'self'"
        self.library = built()

    def _own(self, path):
        if path in self.pages:
            return self._sent(self.pages[path].encode(), Path(path).suffix or ".html")
        folder = self.library.resolve()
        place = (folder / path.removeprefix("/sottovoce/")).resolve()
        if path.startswith("/sottovoce/") and folder in place.parents and place.is_file():
            return self._sent(place.read_bytes(), place.suffix)
        return 404, {}, b""

    def _sent(self, content, ending):
        inline = re.findall(rb'<script type="module">(.*?)</script>', content, re.S)
        hashes = [base64.b64encode(hashlib.sha256(one).digest()).decode() for one in inline]
        policy = POLICY.format(
            hashes="".join(f" 'sha256-{one}'" for one in hashes), frames=self.framed
        )
        headers = {
            "Content-Security-Policy": f"{policy}; frame-ancestors {self.ancestors}",
            "Content-Type": KINDS[ending],
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return 200, headers, content


def link_of(page, invitation):
    """An invitation, given as a table, as `serve invite --link` writes it."""
    told = json.dumps(invitation).encode()
    return f"{page}#sv={base64.urlsafe_b64encode(told).decode().rstrip('=')}"
