"""A shop's page, in a real Chromium, while its device enrols, contributes and recommends: the
page's own thread is never held up for long."""

import json

import numpy as np
from chromium import browser  # noqa: F401
from people_world import Shop
from tab_world import Documents
from talk import until

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SecureSum
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.stores.helper_folder import init_helper
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.terms import Terms

ITEMS, HEAD, OWN = 5000, 500, 200
STATE = "async () => (await device.status()).report?.state"
BUSY = "() => { let sum = 0; for (let k = 0; k < 5e8; k++) sum += k; return sum; }"
"""What a page should not do: it takes some ten times as long as anything that the page does."""
CATEGORIES = ["toplevel", "blink.user_timing", "__metadata"]
MARK = "() => performance.mark('the page')"
"""Which of the browser's processes has the page: its own pages have threads of the same name."""


class LargeShop(Documents, Shop):
    """A shop with five thousand things, whose federation is about to sum pairs."""

    def __init__(self, folder):
        super().__init__()
        link = SecureSum(min_devices=5, url="https://helper", key=init_helper(folder), bits=32)
        config = GramConfig(
            embedding_size=128, popularity_share=0.3, least_head=HEAD, most_head=HEAD
        )
        self.terms = Terms("large", ITEMS, config, OwnEpsilon(8.0), link)
        items = np.random.default_rng(3).normal(size=(ITEMS, 130)).astype(np.float32)
        items[:, 1] = np.arange(ITEMS) < HEAD
        catalogue = [[f"thing-{k}", f"The thing number {k}"] for k in range(ITEMS)]
        self.publish(self.terms, catalogue, 1, items)

    def invitation(self):
        return Invitation(self.url, "", "ab" * 32, 0, self.terms.federation).to_table()


def tasks(content):
    """Milliseconds of each task of the marked page's main thread, the longest first."""
    events = json.loads(content)["traceEvents"]
    (main,) = {(one["pid"], one["tid"]) for one in events if one["name"] == "the page"}
    own = [one for one in events if (one["pid"], one["tid"]) == main and one.get("tdur")]
    return sorted((one["tdur"] / 1000 for one in own), reverse=True)


def test_a_contribution_and_recommendations_never_hold_up_the_page(browser, tmp_path):  # noqa: F811
    with LargeShop(tmp_path / "helper") as shop, browser.new_context() as context:
        page = context.new_page()
        page.goto(shop.url)
        page.wait_for_selector("[data-ready]")
        browser.start_tracing(categories=CATEGORIES)
        page.evaluate("(given) => window.open_device({ invitation: given })", shop.invitation())
        visits = [[f"thing-{k}", 1_760_000_000 + k] for k in range(OWN)]
        page.evaluate("(visits) => device.visited(visits)", visits)
        page.evaluate("() => device.refresh()")
        page.evaluate("async () => device.agree((await device.status()).pending.digest)")
        page.evaluate("() => device.choose({ takesPart: true, epsilon: 8 })")
        until(lambda: page.evaluate(STATE) == "arrived")
        best = page.evaluate("() => device.recommend(10)")
        page.locator("sottovoce-recommendations a").nth(4).wait_for()
        page.frame_locator("sottovoce-consent iframe").locator("[data-ready]").wait_for()
        page.evaluate(MARK)
        took = tasks(browser.stop_tracing())
        browser.start_tracing(categories=CATEGORIES)
        page.evaluate(BUSY)
        page.evaluate(MARK)
        busy = tasks(browser.stop_tracing())
    bodies = [body for path, body in shop.posted if path == "/v1/reports"]
    assert [len(body) for body in bodies] == [96 + 16 + 4 * HEAD * (HEAD + 1) // 2 + 176]
    assert len(best) == 10
    print([round(one, 1) for one in (busy[0], *took[:8])])
    assert len(took) > 50
    assert took[0] < busy[0] / 4, (took[:5], busy[0])
