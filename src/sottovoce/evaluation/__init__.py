"""Metrics per user, the protocol they are measured under, significance, tables and plots."""

from sottovoce.evaluation.metrics import METRICS, Metric, Ranked, UserMetric, bias_disparity
from sottovoce.evaluation.plots import pareto_front
from sottovoce.evaluation.protocol import Evaluation, Full, Given, Protocol, Sampled, evaluate
from sottovoce.evaluation.report import (
    FigureBlock,
    KeyValues,
    Section,
    TextBlock,
    write_report,
)
from sottovoce.evaluation.significance import Comparison, compare
from sottovoce.evaluation.tables import Cell, Column, Table

__all__ = [
    "METRICS",
    "Cell",
    "Column",
    "Comparison",
    "Evaluation",
    "FigureBlock",
    "Full",
    "Given",
    "KeyValues",
    "Metric",
    "Protocol",
    "Ranked",
    "Sampled",
    "Section",
    "Table",
    "TextBlock",
    "UserMetric",
    "bias_disparity",
    "compare",
    "evaluate",
    "pareto_front",
    "write_report",
]
