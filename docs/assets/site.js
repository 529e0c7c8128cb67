// A table that is wider than the page scrolls by itself: then it can be reached by the keyboard, too.
const reach = () => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    const scrolls = wrap.scrollWidth > wrap.clientWidth
    for (const [name, value] of Object.entries({ tabindex: "0", role: "region", "aria-label": "Table" })) {
      if (scrolls) wrap.setAttribute(name, value)
      else wrap.removeAttribute(name)
    }
  }
}
addEventListener("load", reach)
addEventListener("resize", reach)
