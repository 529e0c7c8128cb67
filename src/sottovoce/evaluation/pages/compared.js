// @ts-check
// Sorting, filtering and comparing the rows of a table of runs. The table is whole without this.

/**
 * @typedef {{head: HTMLTableCellElement, label: string, number: boolean, best: string,
 *   digits: number, change: string, world: boolean, choose: boolean}} Column
 */

const COLLATOR = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/**
 * An element with attributes and what is inside it.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string>} attributes
 * @param {(Node | string)[]} inside
 * @returns {HTMLElementTagNameMap[T]}
 */
function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

let fields = 0;

/** @param {string} label @param {HTMLInputElement | HTMLSelectElement} control */
function field(label, control) {
  control.id = `field${++fields}`;
  const named = make("label", { for: control.id }, label);
  const box = control.type === "checkbox";
  return make("div", { class: "field" }, ...(box ? [control, named] : [named, control]));
}

/** @param {HTMLTableCellElement} head @returns {Column} */
function columnOf(head) {
  const data = head.dataset;
  return {
    head, label: head.textContent?.trim() ?? "", number: data.kind === "number",
    best: data.best ?? "", digits: Number(data.digits ?? 0), change: data.change ?? "",
    world: data.world === "own", choose: data.choose === "yes",
  };
}

/** @param {HTMLTableCellElement} cell */
function numberIn(cell) {
  return cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
}

/** @param {HTMLElement} place */
function enhance(place) {
  const table = place.querySelector("table"), body = table?.tBodies[0];
  if (!table?.tHead || !body) return;
  const columns = [...table.tHead.rows[0].cells].map(columnOf), rows = [...body.rows];
  const first = new Map(rows.map((row, index) => [row, index]));
  const said = new Map(rows.map((row) => [row, (row.textContent ?? "").toLowerCase()]));
  /** @param {HTMLTableCellElement} cell */
  const plain = (cell) => cell.firstChild?.textContent?.trim() ?? "";
  /** @type {Map<number, HTMLSelectElement>} */
  const filters = new Map();
  let order = { column: -1, down: false };

  const text = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const base = make("select", {}, make("option", { value: "" }, "nothing"));
  for (const row of rows) base.append(make("option", { value: row.id }, plain(row.cells[0])));
  const status = make("p", { role: "status", class: "note" });
  const reset = make("button", { type: "button" }, "Show all again");
  const boxes = make("fieldset", {}, make("legend", { class: "unseen" }, "Columns shown"));
  const tools = make(
    "div", { class: "tools", role: "group", "aria-label": "Filter and compare" },
    field("Find", text),
  );

  /** @param {HTMLTableRowElement} row @param {number} index */
  const choice = (row, index) => row.cells[index].dataset.choice ?? plain(row.cells[index]);
  const shown = () => rows.filter((row) => !row.hidden);

  /** @param {number} index @param {boolean} visible */
  function showColumn(index, visible) {
    for (const row of [...(table?.rows ?? [])]) row.cells[index].hidden = !visible;
  }

  function sort() {
    const { column, down } = order;
    const sorted = [...rows].sort((one, other) => {
      const place = (first.get(one) ?? 0) - (first.get(other) ?? 0);
      if (column < 0) return place;
      const [a, b] = [one.cells[column], other.cells[column]];
      if (!columns[column].number) {
        const found = COLLATOR.compare(a.textContent ?? "", b.textContent ?? "");
        return (down ? -found : found) || place;
      }
      const [x, y] = [numberIn(a), numberIn(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || place;
      return (x === y ? 0 : (x > y) === down ? -1 : 1) || place;
    });
    body?.append(...sorted);
    columns.forEach(({ head }, index) => {
      if (index === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function filter() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const chosen = [...filters].every(([index, { value }]) => !value || choice(row, index) === value);
      row.hidden = !chosen || !words.every((word) => said.get(row)?.includes(word));
      for (const point of document.querySelectorAll(`[data-point="${row.id}"]`)) {
        point.classList.toggle("away", row.hidden);
      }
    }
  }

  /** A mark on the best value of each column, among rows that can be compared. */
  function mark() {
    const left = shown(), worlds = new Set(left.map((row) => row.dataset.world));
    columns.forEach(({ best, world }, index) => {
      const values = left.map((row) => numberIn(row.cells[index])).filter(Number.isFinite);
      const top = best === "max" ? Math.max(...values) : Math.min(...values);
      const fair = best && values.length > 1 && (!world || worlds.size === 1);
      const first = left.find((row) => numberIn(row.cells[index]) === top);
      const words = first && plain(first.cells[index]);
      for (const row of rows) {
        const cell = row.cells[index];
        cell.classList.toggle("best", Boolean(fair && !row.hidden && plain(cell) === words));
      }
    });
    return worlds.size > 1;
  }

  /** What each value is beside that of the chosen row. */
  function compare() {
    const chosen = rows.find((row) => row.id === base.value);
    for (const old of body?.querySelectorAll(".change") ?? []) old.remove();
    for (const row of rows) row.classList.toggle("chosen", row === chosen);
    if (!chosen) return;
    for (const row of rows) {
      if (row === chosen) continue;
      columns.forEach((column, index) => {
        const cell = row.cells[index], x = numberIn(cell), y = numberIn(chosen.cells[index]);
        if (!column.change || !Number.isFinite(x) || !Number.isFinite(y)) return;
        const alike = row.dataset.world === chosen.dataset.world;
        const tested = [cell, chosen.cells[index]].every((one) => one.querySelector(".half"));
        const sure = cell.dataset.differs?.split(" ").includes(chosen.id);
        const words = column.world && !alike ? "not comparable" : changed(column, x, y, !tested || Boolean(sure));
        cell.append(make("span", { class: "change" }, sure ? `${words} †` : words));
      });
    }
  }

  /**
   * In words; `said`: whether there is more to it than chance, as far as is known.
   * @param {Column} column @param {number} x @param {number} y @param {boolean} said
   */
  function changed(column, x, y, said) {
    if (column.change === "ratio") return y > 0 ? `× ${(x / y).toPrecision(2)}` : "";
    const by = (x - y).toFixed(column.digits), none = Number(by) === 0;
    const better = !none && column.best && (x > y) === (column.best === "max");
    const word = none || !column.best ? "" : !said ? " perhaps" : better ? " better" : " worse";
    return `${none ? "±" : x > y ? "+" : "−"}${by.replace("-", "")}${word}`;
  }

  function tell() {
    const mixed = mark();
    compare();
    const sorted = columns[order.column];
    status.textContent = [
      `${shown().length} of ${rows.length} rows.`,
      sorted ? `Sorted by ${sorted.label}, ${order.down ? "largest" : "smallest"} first.` : "",
      mixed ? "Data or protocol differ, so no result is marked as best." : "★ is the best of these rows.",
      base.value ? "† differs from the chosen row by more than chance (paired t-test over users, Holm, p < 0.05); “perhaps”: it may be chance." : "",
    ].filter(Boolean).join(" ");
  }

  columns.forEach((column, index) => {
    const { head, label } = column;
    const button = make("button", { type: "button" }, label);
    button.addEventListener("click", () => {
      const start = column.best === "max";
      order = order.column === index ? { column: index, down: !order.down } : { column: index, down: start };
      sort();
      tell();
    });
    head.replaceChildren(button);
    if (column.choose) {
      const values = [...new Set(rows.map((row) => choice(row, index)))].filter((value) => value !== "–");
      if (values.length > 1) {
        const select = make("select", {}, make("option", { value: "" }, "all"));
        for (const value of values.sort(COLLATOR.compare)) select.append(make("option", { value }, value));
        select.addEventListener("change", () => { filter(); tell(); });
        filters.set(index, select);
        tools.append(field(label, select));
      }
    }
    if (index) {
      const box = make("input", { type: "checkbox" });
      box.checked = head.dataset.shown !== "no";
      box.addEventListener("change", () => showColumn(index, box.checked));
      boxes.append(field(label, box));
      showColumn(index, box.checked);
    }
  });
  tools.append(field("Compare with", base), reset);
  tools.append(make("details", {}, make("summary", {}, "Columns"), boxes));
  text.addEventListener("input", () => { filter(); tell(); });
  base.addEventListener("change", tell);
  reset.addEventListener("click", () => {
    text.value = base.value = "";
    for (const select of filters.values()) select.value = "";
    order = { column: -1, down: false };
    filter();
    sort();
    tell();
  });
  place.prepend(tools, status);
  tell();
}

for (const place of document.querySelectorAll("[data-compared]")) {
  if (place instanceof HTMLElement) enhance(place);
}
