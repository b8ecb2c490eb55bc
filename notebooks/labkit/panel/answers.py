"""What became of a prediction, in a sentence: a number beside a number, a trend beside a trend."""

from __future__ import annotations

from labkit.evidence.evidence import Evidence, Point
from labkit.evidence.prediction import Trend, with_unit
from labkit.panel.experiment import Experiment
from labkit.panel.plot import number

FLAT = 0.05  # a change of less counts as none
NEAR = 0.1


def comparison(experiment: Experiment, evidence: Evidence) -> str:
    """Prediction and result beside each other; empty where one of them is missing."""
    prediction = evidence.prediction
    if prediction is None or not evidence.points:
        return ""
    if prediction.trend is not None:
        return _of_trends(prediction.trend, evidence.points)
    answer = experiment.answer(evidence.points, is_whole=True)
    if answer is None or prediction.number is None:
        return ""
    said = with_unit(prediction.number, prediction.unit)
    shown = f"{number(answer.value)} {prediction.unit or ''}".rstrip()
    apart = _apart(prediction.number, answer.value)
    return f"You said {said}; it is {shown}. At {answer.label}: {apart}."


def _apart(said: float, found: float) -> str:
    """How far a result lies from the number that was said."""
    if said == found:
        return "exactly as predicted"
    if said <= 0 or found <= 0:
        return f"{number(abs(found - said))} {'more' if found > said else 'less'} than predicted"
    ratio = found / said
    if abs(ratio - 1) <= NEAR:
        return "within 10 % of the prediction"
    return f"{number(ratio)} times the prediction"


def _of_trends(said: Trend, points: tuple[Point, ...]) -> str:
    """What the first series does from its first point to its last, beside what was said."""
    line = [point for point in points if point.series == points[0].series]
    if len(line) < 2 or not line[0].value:
        return ""
    change = line[-1].value / line[0].value - 1
    found = Trend.FLAT if abs(change) < FLAT else Trend.RISES if change > 0 else Trend.FALLS
    ends = " to ".join(f"{number(point.value)} ({point.label})" for point in (line[0], line[-1]))
    outcome = (
        f"it {found.verb}, as you said"
        if found is said
        else f"you said it {said.verb}; it {found.verb}"
    )
    return f"{outcome[0].upper()}{outcome[1:]}. From {ends}."
