"""What a page shows, what its DOM says and what the accessibility tree says of each control, read
from a real Chromium; and the list of all controls that our pages have."""

import contextlib
import math
import os
import re

from playwright.sync_api import Error, expect
from talk import until

from sottovoce.core.words import catalogue

INTERACTIVE = {
    "button", "checkbox", "combobox", "link", "listbox", "menuitem", "option", "radio", "searchbox",
    "slider", "spinbutton", "switch", "tab", "textbox", "DisclosureTriangle", "PopUpButton",
}  # fmt: skip
"""Roles of what somebody can press, choose or write in; options stand in their list."""
WORDS = catalogue("en")
STEPS = {
    WORDS[f"step.{name}"]: value
    for name, value in {
        "whisper": 0.25, "low": 1.0, "normal": 2.0, "loud": 4.0, "none": 0.0, "some": 0.1,
        "half": 0.5, "all": 1.0, "gentle": 0.2, "medium": 0.5, "strong": 0.8,
    }.items()
}  # fmt: skip
WRONG = "something that cannot be kept"
FIND = """() => {
  const wanted = "button, input, select, textarea, summary, a[href], [role=switch], [role=button],"
    + " [role=checkbox], [role=radio], [role=link], [contenteditable]";
  const place = (one) => {
    const near = one.closest("dialog") ? "dialog"
      : one.closest("section[id], nav, header, .told, .panel-head, .banner, #glossary");
    return near?.id || near?.className || near?.localName || near || "page";
  };
  const over = document.querySelector("dialog:modal");
  const shown = (one) => {
    if (over && !over.contains(one)) return false;
    if (!one.checkVisibility({ visibilityProperty: true, opacityProperty: false })) return false;
    return !one.closest(".silent, [hidden]");
  };
  return [...document.querySelectorAll(wanted)].filter(shown).map((one, at) => {
    one.setAttribute("data-at", at);
    return { at: String(at), place: place(one), id: one.id, name: one.getAttribute("data-deed") };
  });
}"""
READ = """() => Object.fromEntries(
[...document.querySelectorAll("#choices [data-field]")].map((field) => {
  const number = field.querySelector("input[type=number]");
  const none = field.querySelector(".check input[type=checkbox]");
  const slider = field.querySelector("input[type=range]");
  const lit = (one) =>
    getComputedStyle(one.querySelector(".knob"), "::after").transform.split(",")[4] > 0;
  return [field.dataset.field, {
    switches: [...field.querySelectorAll("[role=switch]")].map((one) =>
      [one.querySelector(".label").textContent, lit(one), one.getAttribute("aria-checked")]),
    number: number && (number.value === "" ? null : number.valueAsNumber),
    shown: number && number.value, off: number && number.disabled,
    percent: field.querySelector(".amount")?.textContent.includes("%") ?? false,
    invalid: number && number.getAttribute("aria-invalid"),
    why: field.querySelector(".amiss")?.innerText ?? "",
    radios: [...field.querySelectorAll("input[type=radio]")].map((one) =>
      [one.labels[0].querySelector("span").firstChild.textContent, one.checked]),
    slider: slider && slider.getAttribute("aria-valuetext"),
    place: slider && slider.valueAsNumber / slider.max,
    ends: number && [Number(number.min), Number(number.max)],
    none: none && none.checked, several: field.querySelector(".options") !== null,
  }];
}))"""


class Seen:
    """One look at a page: every control, with its node of the accessibility tree."""

    def __init__(self, page):
        line = page.context.new_cdp_session(page)
        for _ in range(20):
            found = page.evaluate(FIND)
            document = line.send("DOM.getDocument", {"depth": -1})["root"]
            tree = line.send("Accessibility.getFullAXTree")["nodes"]
            self.controls, self.strangers = _together(found, dict(_marked(document)), tree)
            if not self.strangers:
                break
            page.wait_for_timeout(50)  # it may have been drawn anew between two questions
        line.detach()

    def one(self, role, name):
        (found,) = [c for c in self.controls if c.role == role and c.name.startswith(name)]
        return found


def _together(found, places, tree):
    """Controls of the DOM with their nodes of the tree; and what is in one of them alone."""
    nodes = {one.get("backendDOMNodeId"): one for one in tree if not one.get("ignored")}
    pairs = [(one, nodes.pop(places.get(one["at"]), None)) for one in found]
    controls = [Control(one, node) for one, node in pairs if node is not None]
    strangers = [one for one, node in pairs if node is None]
    strangers += [
        (_value(node, "role"), _value(node, "name"))
        for node in nodes.values()
        if _value(node, "role") in INTERACTIVE - {"option"} and "focusable" in _properties(node)
    ]
    return controls, strangers


class Control:
    def __init__(self, facts, node):
        self.place = facts["place"]
        self.role, self.name = _value(node, "role"), _value(node, "name") or ""
        self.value, self.properties = _value(node, "value"), _properties(node)

    @property
    def key(self):
        return f"{self.place} {self.role} {self.name}"


def _value(node, name):
    return node.get(name, {}).get("value")


def _properties(node):
    return {one["name"]: one["value"].get("value") for one in node.get("properties", [])}


def _marked(node):
    given = node.get("attributes", [])
    pairs = dict(zip(given[::2], given[1::2], strict=True))
    if "data-at" in pairs:
        yield pairs["data-at"], node["backendNodeId"]
    for child in node.get("children", []):
        yield from _marked(child)


def unlisted(seen, listed):
    """Controls that no line of the list is about, and those that the tree and the DOM differ in."""
    patterns = [re.compile(line) for line in listed]
    strangers = [
        one.key for one in seen.controls if not any(p.fullmatch(one.key) for p in patterns)
    ]
    return strangers + seen.strangers


def unmet(keys, listed):
    """Lines of the list that none of these controls is for."""
    return [line for line in listed if not any(re.fullmatch(line, key) for key in keys)]


def choices(page):
    """What the page shows as her choice: by the name of each field its value, after it was found to
    be the same in what is drawn, in the DOM and in the accessibility tree."""
    read, mine = page.evaluate(READ), within(page, "#choices")
    return {name: _agreed(name, field, mine) for name, field in read.items()}


def within(page, place):
    """What the accessibility tree has below a place of the page."""
    if not hasattr(page, "line"):
        page.line = page.context.new_cdp_session(page)
    asked = {"expression": f"document.querySelector({place!r})"}
    at = page.line.send("Runtime.evaluate", asked)["result"]["objectId"]
    nodes = page.line.send("Accessibility.queryAXTree", {"objectId": at})["nodes"]
    return [Control({"place": place}, one) for one in nodes if not one.get("ignored")]


def _agreed(name, field, mine):
    for label, lit, said in field["switches"]:
        (node,) = [one for one in mine if one.role == "switch" and one.name == label]
        told = node.properties["checked"]
        assert said in ("true", "false"), f"{name}: aria-checked is {said!r}"
        assert (lit, said) == (told == "true", told), f"{name}: {label} {lit} {said} {told}"
    if field["number"] is None and field["shown"] is None:
        on = {label for label, lit, _ in field["switches"] if lit}
        return on if field["several"] else bool(on)
    if field["none"]:
        assert (field["off"], field["shown"], field["invalid"]) == (True, "", "false"), name
        return None
    checked = [STEPS[label] for label, on in field["radios"] if on]
    if field["invalid"] == "true":
        assert field["why"], f"{name}: no reason is shown"
        assert checked == [], f"{name}: {checked} is shown beside a number that cannot be kept"
        assert field["slider"] in (None, "–")
        assert any(one.properties.get("invalid") == "true" for one in mine)
        return WRONG
    assert field["why"] == "", name
    value = round(field["number"] / (100 if field["percent"] else 1), 12)
    wanted = [step for label, _ in field["radios"] if (step := STEPS[label]) == value]
    assert checked == wanted, f"{name}: {checked} is checked, {value} is written"
    if field["slider"] is not None:
        told = float(field["slider"].rstrip("%").replace(",", ""))
        assert abs(told - field["number"]) < 1e-6 * max(1, told), f"{name}: the slider says {told}"
        place = _placed(field["number"], *field["ends"])
        assert abs(field["place"] - place) <= 0.0051, f"{name}: the slider is at {field['place']}"
    return value


def _placed(number, least, most):
    """Where a number is on its slider: by its logarithm where it spans much."""
    number = min(max(number, least), most)
    if least > 0 and most / least > 20:
        return math.log(number / least) / math.log(most / least)
    return (number - least) / (most - least)


def keep_is(page, enabled):
    keep = page.locator("#choices button.main")
    assert keep.is_enabled() == enabled, "Keep " + ("cannot" if enabled else "can") + " be pressed"


def walk(page, stored, holding, reload):
    """One person's clicks on every control of her choice. `stored()` says what is kept; what is
    kept within `holding()` waits until that ends; `reload()` opens the page anew."""
    keep, undo = page.locator("#choices .press button").all()

    def same(**moved):
        """The page shows what is stored, and what was moved; Keep and its reason follow."""
        shown, kept = choices(page), stored()
        for name, value in shown.items():
            wanted = moved.get(name, kept[name])
            assert value == wanted, f"{name} shows {value}; it is {wanted}"
        differs = any(kept[name] != value for name, value in moved.items())
        keep_is(page, differs and WRONG not in moved.values())
        reason = page.locator("#choices .unsaved").inner_text()
        if WRONG in moved.values():
            assert reason == WORDS["page.cannot_keep"], "Keep is disabled without a reason"
            assert page.locator("#choices .weighed").inner_text() == "", "another choice is weighed"
        elif differs:
            assert reason == WORDS["page.unsaved"]

    def kept():
        keep.click()
        expect(page.locator("#choices .unsaved")).to_have_text("")

    for name, value in choices(page).items():
        if isinstance(value, bool):
            switch = page.locator(f'#choices [data-field="{name}"] [role=switch]')
            _walk_switch(page, name, switch, stored, kept, same, reload, holding)
    expect(undo).to_be_disabled()

    for name in choices(page):
        field = page.locator(f'#choices [data-field="{name}"]')
        numbers, options = field.locator("input[type=number]"), field.locator("[role=switch]")
        if field.locator(".options").count():
            _walk_options(page, name, options, stored, kept, same, reload)
        elif numbers.count():
            _walk_number(page, name, field, stored, kept, same, undo)
    reload()
    same()


def _walk_switch(page, name, switch, stored, kept, same, reload, holding):
    """Each click is shown as it is, and Keep stores what is shown. It is off in the end."""
    first = stored()[name]
    same()
    for click in range(1, 5):
        switch.click()
        same(**{name: first ^ (click % 2 == 1)})
    switch.click()
    kept()
    assert stored()[name] is not first
    same()
    reload()
    same()
    # On, off, and Keep: off is what is stored.
    if stored()[name]:
        switch.click()
        kept()
    for _ in range(4):
        switch.click()
    same(**{name: False})
    assert stored()[name] is False
    # A click while Keep is under way is later than what is kept.
    keep = page.locator("#choices button.main")
    switch.click()
    with holding():
        keep.click()
        expect(keep).to_be_disabled()
        assert choices(page)[name] is True
        switch.click()
        assert choices(page)[name] is False
    until(lambda: stored()[name], 60)
    expect(keep).to_be_enabled()
    same(**{name: False})
    kept()
    assert stored()[name] is False
    same()


def _walk_options(page, name, options, stored, kept, same, reload):
    before = choices(page)[name]
    label = options.first.locator(".label").inner_text()
    for _ in range(2):
        options.first.click()
        assert choices(page)[name] == before ^ {label}
        options.first.click()
        assert choices(page)[name] == before
    options.first.click()
    kept()
    same(), reload(), same()
    assert choices(page)[name] == before ^ {label}


def _walk_number(page, name, field, stored, kept, same, undo):
    exact = field.locator("input[type=number]")
    none = field.locator(".check input")
    times = 100 if field.inner_text().rstrip().endswith("%") else 1
    if none.count() and none.is_checked():
        none.uncheck()
        same(**{name: WRONG})  # no number yet, and no longer no limit
    # What can be kept, then what cannot: the first is not what is kept then.
    goods = (2, 3, 4, 5) if exact.get_attribute("step") == "1" else (0.5, 0.75, 0.6, 0.9)
    for good, bad in zip(goods, ("-1", "", "1e", "1000000"), strict=True):
        exact.fill(f"{good * times:g}")
        same(**{name: good})
        if bad == "1000000" and exact.get_attribute("max") is None:
            continue
        exact.press("Control+a")
        exact.press("Delete")
        exact.press_sequentially(bad)
        same(**{name: WRONG})
    undo.click()
    same()
    for radio in field.locator("input[type=radio]").all()[:2]:
        radio.check()
        label = radio.evaluate("one => one.labels[0].querySelector('span').firstChild.textContent")
        same(**{name: STEPS[label]})
    if (slider := field.locator("input[type=range]")).count():
        slider.focus()
        slider.press("ArrowRight")
        same(**{name: choices(page)[name]})
    if none.count() and none.is_checked():
        none.uncheck()
    last = 6 if goods[0] == 2 else 0.7
    exact.fill(f"{last * times:g}")
    kept()
    assert stored()[name] == last
    same()
    if none.count():
        none.check()
        same(**{name: None})
        none.uncheck()
        same(**{name: last})
        none.check()
        kept()
        assert stored()[name] is None
        same()
        none.uncheck()
        exact.fill("4")
        kept()
        same()


def switched(page, place, switch):
    """Whether a switch is on, after it was found to be so in what is drawn, in the DOM and in the
    accessibility tree; and the words beside it."""
    found, nodes = None, []
    while found is None or not nodes:  # it may have been drawn anew between two questions
        found = switch.evaluate(
            """(one) => one.isConnected ? [
              getComputedStyle(one.querySelector(".knob"), "::after").transform.split(",")[4] > 0,
              one.getAttribute("aria-checked"), one.querySelector(".label").innerText,
              one.closest("li, .row").innerText] : null"""
        )
        if found is not None:
            name = found[2].split()
            nodes = [c for c in within(page, place) if (c.role, c.name.split()) == ("switch", name)]
    (lit, said, name, words), (node,) = found, nodes
    told = node.properties["checked"]
    assert said in ("true", "false"), f"aria-checked is {said!r}"
    assert (lit, said) == (told == "true", told), f"{name}: {lit} {said} {told}"
    wanted = WORDS["page.thing_on" if lit else "page.thing_off"]
    assert wanted in words, f"{words!r} beside a switch that says {lit}"
    return lit


COLOURS = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const light = (colour, times) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => Math.min(255, c * times) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll("button")]
    .filter((one) => one.checkVisibility() && !one.disabled && one.innerText.trim())
    .map((one) => {
      const style = getComputedStyle(one);
      const times = Number(style.filter.match(/brightness\\(([\\d.]+)\\)/)?.[1] ?? 1);
      const [a, b] = [light(parts(style.color), times), light(ground(one), times)];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return [one.className, one.innerText.trim(), Math.round(ratio * 100) / 100];
    });
}"""


def hovered(page):
    """Every button that can be pressed, as it looks below the pointer: its classes, its label and
    the contrast between label and ground."""
    line = page.context.new_cdp_session(page)
    root = line.send("DOM.getDocument")["root"]["nodeId"]
    line.send("CSS.enable")
    nodes = line.send("DOM.querySelectorAll", {"nodeId": root, "selector": "button"})["nodeIds"]
    for node in nodes:
        with contextlib.suppress(Error):  # it may have been drawn anew
            line.send("CSS.forcePseudoState", {"nodeId": node, "forcedPseudoClasses": ["hover"]})
    found = page.evaluate(COLOURS)
    line.detach()  # which ends it
    return found


def faint(found):
    """Labels that cannot be read: the contrast is below that of ordinary text."""
    return [one for one in found if one[2] < 4.5]


def screenshot(page, name):
    """For somebody's eyes, where $SOTTOVOCE_SCREENSHOTS names a folder."""
    if folder := os.environ.get("SOTTOVOCE_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")
