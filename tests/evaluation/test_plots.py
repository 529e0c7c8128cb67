from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from sottovoce.errors import UsageError
from sottovoce.evaluation import plots

SHARES = np.arange(1, 11) / 10
CURVES = {
    name: (0.04 + 0.01 * k + 0.004 * np.sin(SHARES * 4), 100 * (k + 1) * SHARES)
    for k, name in enumerate(["sFPL", "sFPL+", "pFPL", "other"])
}
TRADES = [
    plots.TradePoint("a", 1.0, 0.2, 0.1, "bounded"),
    plots.TradePoint("b", 50.0, 0.5, math.nan, "sums"),
    plots.TradePoint("c", 60.0, 0.4, 0.1, "open"),
]
DRAW = {
    "share": lambda path: plots.lines(
        path, CURVES, x_label=plots.SHARE_LABEL, y_label="F1@10", references={"BPR-MF": 300.0}
    ),
    "learning": lambda path: plots.learning_curves(
        path, {"a": (np.arange(100), np.arange(100))}, metric="P@10"
    ),
    "paths": lambda path: plots.trade_off(path, CURVES, title="Coverage"),
    "front": lambda path: plots.trade_off(path, CURVES, front=True),
    "bars": lambda path: plots.bias_bars(
        path, ["Food", "Shops & more"], {"a": [-1.0, 6.6], "b": [0.1, np.nan]}
    ),
    "trades": lambda path: plots.trades(path, TRADES, x_label="kB", y_label="P@10"),
    "counts": lambda path: plots.histogram(path, [1, 1, 2, 9], x_label="reports sent"),
    "amounts": lambda path: plots.histogram(path, [0.1, 0.25, 3.7], x_label="ε spent"),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_figure_is_written_twice_and_the_same_each_time(name, tmp_path):
    first = DRAW[name](tmp_path / "a" / f"{name}.v1")
    again = DRAW[name](tmp_path / "b" / f"{name}.v1.png")
    assert first.png.name == f"{name}.v1.png"
    assert first.svg.name == again.svg.name == f"{name}.v1.svg"
    assert first.png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ElementTree.parse(first.svg).getroot().tag.endswith("svg")
    assert first.png.read_bytes() == again.png.read_bytes()
    assert first.svg.read_bytes() == again.svg.read_bytes()


@pytest.mark.parametrize(
    ("largest", "shown"), [(5e7, ["×10⁷"]), (3e-6, ["×10⁻⁶"]), (40.0, ["40"]), (0.5, ["0.5"])]
)
def test_large_and_small_numbers_share_a_power_of_ten(largest, shown, tmp_path):
    found = plots.lines(
        tmp_path / "x", {"a": ([0, 1], [0, largest])}, x_label="x", y_label="y"
    ).svg.read_text(encoding="utf-8")
    said = re.findall("<text[^>]*>(.*?)</text>", found)
    assert all(text in said for text in shown)
    assert sum("×" in text for text in said) == sum("×" in text for text in shown)
    assert not any("$" in text or "e" in text for text in said)


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (["a", "b"], 2),
        (["SAROS_b", "SAROS_m", "DRIFT, by time", "DRIFT, user by user"], 4),
        (["SAROS_b", "SAROS_m", "SAROS, public code", "DRIFT, by time", "DRIFT, user by user",
          "SAROS_b, no thresholds", "DRIFT, one owner"], 3),
        (["x" * 40, "y" * 40], 1),
    ],
)  # fmt: skip
def test_a_legend_is_no_wider_than_its_figure(tmp_path, labels, columns):
    assert plots.legend_columns(labels, 7.2) == columns
    with plots.drawing(tmp_path / "figure", "", (7.2, 3.0)) as (figure, axes):
        for label in labels:
            axes.bar([0], [1], label=label)
        plots._legend(figure, axes)
        figure.canvas.draw()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing to plot"):
        plots.lines(tmp_path / "x", {}, x_label="", y_label="")
    with pytest.raises(UsageError, match="nothing to plot"):
        plots.histogram(tmp_path / "x", [np.nan], x_label="")
    with pytest.raises(UsageError, match="as many values"):
        plots.trade_off(tmp_path / "x", {"a": ([1, 2], [1])})
    with pytest.raises(UsageError, match="2 categories"):
        plots.bias_bars(tmp_path / "x", ["a", "b"], {"s": [1.0]})
    assert list(tmp_path.iterdir()) == []


def test_if_all_sent_the_same_the_axis_says_so(tmp_path):
    same = plots.histogram(tmp_path / "same", [292.316] * 9, x_label="kB").svg.read_text()
    two = plots.histogram(tmp_path / "two", [292.3, 292.4], x_label="kB").svg.read_text()
    assert len(re.findall(r'id="xtick_', same)) == 1
    assert len(re.findall(r'id="xtick_', two)) > 2


# --- pages in the light and in the dark, and what quality costs ----------------------------------


@pytest.mark.parametrize("name", DRAW)
def test_every_colour_of_the_page_has_one_for_the_dark(name, tmp_path):
    text = DRAW[name](tmp_path / name).svg.read_text()
    drawn, _, dark = text.partition("<style")[2].partition("</style>")[0].partition("@media ")
    assert "prefers-color-scheme: dark" in dark
    light, _ = plots.page_colours()
    body = text.replace(drawn + "@media " + dark, "")
    used = {f"{kind}: {light[one]}" for kind in ("fill", "stroke") for one in ("ink", "paper")}
    used = {one for one in used if one in body}
    assert f"fill: {light['ink']}" in used
    for one in used:  # text in ink on paper becomes light on dark
        assert f'[style*="{one}"]' in dark


def test_the_best_trades_are_those_that_nobody_beats(tmp_path):
    assert [p.name for p in plots.best_trades(TRADES)] == ["a", "b"]
    text = DRAW["trades"](tmp_path / "x").svg.read_text()
    said = re.findall("<text[^>]*>(.*?)</text>", text)
    assert {"a", "b", "c", "no bound", "no other run beats it"} <= set(said)
    two = plots.trades(tmp_path / "y", TRADES[:2], x_label="kB", y_label="P@10").svg.read_text()
    assert "no bound" not in two
    with pytest.raises(UsageError, match="nothing to plot"):
        plots.trades(tmp_path / "z", [], x_label="kB", y_label="P@10")


def test_every_name_is_drawn_as_it_is_and_none_covers_another(tmp_path):
    names = ["<a> & b", "$x^2$", "run_3", "one", "two"]
    points = [plots.TradePoint(n, 7.0, 0.3 + k / 1e4, 0.01, "open") for k, n in enumerate(names)]
    drawn = plots.trades(tmp_path / "x", points, x_label="kB", y_label="P@10")
    root = ElementTree.parse(drawn.svg).getroot()
    at = {one.text: one for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(names) <= set(at)
    heights = sorted(float(re.findall(r"-?[\d.]+", at[n].get("transform"))[-1]) for n in names)
    assert min(b - a for a, b in pairwise(heights)) > 9.0  # the letters' height
