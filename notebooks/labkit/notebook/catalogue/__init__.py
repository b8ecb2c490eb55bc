"""What every experiment of the notebooks asks and shows, and `labkit.experiment`, which shows it.

A notebook gives only what is measured. One module a notebook; `EXPERIMENTS` has them all by key,
without steps. Words in braces are filled in by the notebook.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from labkit.arguments import public, refuse_values
from labkit.errors import WrongArgument
from labkit.notebook.catalogue import (
    choosing,
    data_parallel,
    kernels,
    mig,
    mixed_precision,
    model_parallel,
    sharding,
    which_worker,
    your_slice,
)
from labkit.panel.experiment import Experiment, MeasuringStep
from labkit.panel.panel import Panel

ROOMS = (
    your_slice,
    mig,
    mixed_precision,
    kernels,
    data_parallel,
    sharding,
    model_parallel,
    choosing,
    which_worker,
)
EXPERIMENTS: Mapping[str, Experiment] = {e.key: e for room in ROOMS for e in room.EXPERIMENTS}
WORDS = ("title", "question", "x_label", "y_label")
OWN = frozenset(field.name for field in fields(Experiment)) - {"key", "steps", "data"}


@public
def experiment(key: str, *steps: Any, **values: Any) -> Panel:
    """Make one experiment and show its panel: predict, measure, decide, explain.

    Args:
        key: one of the notebooks' experiments, whose words, axes and check are known; or a new
            one, with `title`, `question`, `x_label` and `y_label`.
        steps: what is measured: steps, or what `together` and the others return.
        values: words that fill the braces of a known experiment's texts; a new one's fields.

    Raises:
        WrongArgument: a step is none, a word is missing or unknown.
    """
    measured = tuple(_flattened(steps))
    template = EXPERIMENTS.get(key)
    panel = Panel(
        _with_texts(template, values, measured)
        if template
        else _new_experiment(key, values, measured)
    )
    panel.show()
    return panel


def _flattened(steps: Iterable[Any]) -> Iterator[MeasuringStep]:
    for step in steps:
        if isinstance(step, MeasuringStep):
            yield step
        elif isinstance(step, Iterable) and not isinstance(step, str | bytes | Mapping):
            yield from _flattened(step)
        else:
            raise WrongArgument(
                f"{step!r} is no step: pass what timed_step, compared_step, together and others of "
                "labkit.steps return."
            )


def _with_texts(
    template: Experiment, values: Mapping[str, Any], steps: tuple[Any, ...]
) -> Experiment:
    parse = string.Formatter().parse
    parsed = (part for field in WORDS for part in parse(getattr(template, field)))
    placeholders = {placeholder for _, placeholder, _, _ in parsed if placeholder}
    if placeholders != values.keys():
        raise WrongArgument(
            f"{template.key} takes {', '.join(sorted(placeholders)) or 'no words'} beside its "
            f"steps, not {', '.join(sorted(values)) or 'none'}."
        )
    texts = {field: getattr(template, field).format_map(values) for field in WORDS}
    return replace(template, steps=steps, **texts)


def _new_experiment(key: str, fields: Mapping[str, Any], steps: tuple[Any, ...]) -> Experiment:
    missing = [name for name in WORDS if not isinstance(fields.get(name), str)]
    if missing:
        raise WrongArgument(
            f"No experiment {key!r} is known. For a new one give {', '.join(missing)} as texts."
        )
    if unknown := sorted(fields.keys() - OWN):
        raise WrongArgument(f"An experiment has no {', '.join(unknown)}; it has {', '.join(OWN)}.")
    refuse_values("experiment", Experiment, fields)
    return Experiment(key=key, steps=steps, **fields)
