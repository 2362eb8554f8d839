"""What the paper published."""

from __future__ import annotations

from collections.abc import Mapping

NAME = "peng2026"
SOURCE = "arXiv:2610.11063"
Row = tuple[int, float, float]
"""Targets $k$ and the exponents $a$ of the inputs and $b$ of the tasks."""

LINEAR_DIM, LINEAR_CONTEXT = 128, 1024
SOFTMAX_DIM, SOFTMAX_CONTEXT = 16, 64
TABLE2: Mapping[tuple[float, float], tuple[float, float, float]] = {
    (2, 0.5): (0.75, 1.121, 1.5),
    (2, 1): (1.0, 1.485, 2.0),
    (2, 1.5): (1.25, 1.684, 2.5),
    (2, 2): (1.5, 1.987, 3.0),
    (0.5, 2): (3.0, 3.31, 6.0),
    (1, 2): (2.0, 2.552, 4.0),
    (1.5, 2): (1.667, 2.163, 3.333),
}
"""Depth exponents of linear attention by (a, b): constrained, measured, free."""
TABLE3: Mapping[Row, tuple[float, float, float]] = {
    (2, 0, 0): (59.3714, 0.0213, 59.8502),
    (2, 0.25, 0.25): (9.7004, 0.0049, 9.7387),
    (2, 0.5, 0.5): (2.2715, 0.0061, 2.3274),
    (2, 1, 0.25): (1.2246, 0.0106, 1.2259),
    (2, 1, 1): (0.4975, 0.0102, 0.5036),
    (16, 0.5, 0.5): (0.3218, 0.0042, 0.3083),
    (16, 1, 0): (0.4481, 0.0086, 0.4452),
    (16, 1, 0.25): (0.3186, 0.0085, 0.3222),
    (16, 1.25, 0): (0.3595, 0.0090, 0.3659),
}
"""Linear attention on the difficult task: predicted floor, its error, measured plateau."""
NONLINEAR: Mapping[Row, tuple[float, float]] = {
    (2, 0, 0): (2.007, 5e-4),
    (2, 0, 0.25): (1.268, 5e-4),
    (2, 0, 0.5): (0.836, 5e-4),
    (2, 0, 1): (0.424, 5e-4),
    (2, 0.25, 0): (1.255, 5e-4),
    (2, 0.5, 0): (0.798, 5e-4),
    (2, 1, 0): (0.341, 5e-4),
    (16, 0, 0.25): (0.173237, 5e-7),
    (16, 0, 0.5): (0.114436, 5e-7),
}
"""Plateaus $L_0$ of softmax attention, with half a unit of the last digit: table 1 and table 4."""
LINEAR: Mapping[Row, tuple[float, float]] = {
    (2, 0, 0): (59.853, 5e-4),
    (2, 0, 0.25): (23.055, 5e-4),
    (2, 0, 0.5): (9.766, 5e-4),
    (2, 0, 1): (2.504, 5e-4),
    (2, 0.25, 0): (22.962, 5e-4),
    (2, 0.5, 0): (9.501, 5e-4),
    (2, 1, 0): (2.120, 5e-4),
}
"""The same of linear attention, table 1."""
TABLE4: Mapping[Row, tuple[float, float, float, float]] = {
    (2, 0.25, 0.25): (0.818068, 0.97, 0.01, 0.9998),
    (2, 0.25, 0.5): (0.559694, 0.93, 0.06, 0.9984),
    (2, 0.5, 0.5): (0.382188, 0.97, 0.01, 0.9999),
    (16, 0, 0.25): (0.173237, 0.79, 0.02, 0.9999),
    (16, 0, 0.5): (0.114436, 0.88, 0.03, 0.9998),
    (16, 0.25, 0.25): (0.115248, 0.81, 0.02, 0.9998),
    (16, 0.25, 0.5): (0.079785, 0.81, 0.04, 0.9994),
}
"""Softmax attention, broader targets and spectra: plateau, exponent, its standard error, R^2."""
SHARED_GAPS: Mapping[Row, tuple[float, float, float]] = {
    (2, 0, 0): (0.980, 0.007, 0.99981),
    (2, 0, 0.25): (0.983, 0.038, 0.99396),
    (2, 0, 0.5): (0.977, 0.014, 0.99923),
    (2, 0, 1): (0.982, 0.011, 0.99946),
    (2, 0.25, 0): (0.990, 0.015, 0.99904),
    (2, 0.5, 0): (0.986, 0.005, 0.99988),
    (2, 1, 0): (0.994, 0.005, 0.99992),
}
"""Table 5, exponents of $L_0 - C_L$: value, standard error, R^2."""
TABLE5 = SHARED_GAPS[2, 0, 0][0]
CONTEXT_MASK = -2.3
"""The learned scalar m of context updates on sixteen targets, at every depth."""
