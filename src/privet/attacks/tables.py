"""Singling out and linkability of synthetic tables, by Anonymeter (Giomi et al. 2023), an extra of its own."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from privet.attacks.roc import Interval
from privet.errors import PrivetError


@dataclass(frozen=True)
class TableRisk:
    """How much better than on held-out records an attacker with the synthetic table does on the real ones.

    Attributes:
        name: the attack.
        risk: the excess success, from 0 (no better than on held-out records) to 1.
        interval: of the risk.
        attack_rate, control_rate, guess_rate: how often the attack succeeded on the records, on held-out records, and by
            guessing.
    """

    name: str
    risk: float
    interval: Interval
    attack_rate: float
    control_rate: float
    guess_rate: float

    def __str__(self) -> str:
        return (
            f"{self.name}: risk {self.risk:.3f} ({100 * self.interval.level:g} % interval {self.interval.low:.3f} to "
            f"{self.interval.high:.3f}); succeeds on {100 * self.attack_rate:.1f} % of the records, "
            f"{100 * self.control_rate:.1f} % of held-out ones, {100 * self.guess_rate:.1f} % by guessing"
        )


def singling_out(
    training: Any,
    synthetic: Any,
    holdout: Any,
    *,
    attacks: int = 500,
    columns: int = 3,
    level: float = 0.95,
    seed: int = 0,
) -> TableRisk:
    """Can the synthetic table be used to say something that is true of exactly one real record?

    The tables are pandas data frames with the same columns. `columns` is how many a statement combines; 1 looks at
    each alone.
    """
    evaluator = _evaluators().SinglingOutEvaluator(
        ori=training, syn=synthetic, control=holdout, n_attacks=attacks, n_cols=columns, seed=seed
    )
    return _run(evaluator, "Singling out", level, mode="univariate" if columns == 1 else "multivariate")


def linkability(
    training: Any,
    synthetic: Any,
    holdout: Any,
    known: tuple[list[str], list[str]],
    *,
    attacks: int = 500,
    neighbours: int = 1,
    level: float = 0.95,
) -> TableRisk:
    """Can the synthetic table be used to join two parts of a record, of which the attacker knows the columns `known`?"""
    evaluator = _evaluators().LinkabilityEvaluator(
        ori=training, syn=synthetic, control=holdout, aux_cols=known, n_attacks=attacks, n_neighbors=neighbours
    )
    return _run(evaluator, "Linkability", level, n_jobs=1)


def _run(evaluator: Any, name: str, level: float, **settings: Any) -> TableRisk:
    with warnings.catch_warnings():
        # It warns where an attack does no better than guessing, which the result says too.
        warnings.simplefilter("ignore")
        evaluator.evaluate(**settings)
        results = evaluator.results(confidence_level=level)
        risk = results.risk()
    interval = Interval(float(risk.ci[0]), float(risk.ci[1]), level, "Anonymeter")
    rates = (float(rate.value) for rate in (results.attack_rate, results.control_rate, results.baseline_rate))
    return TableRisk(name, float(risk.value), interval, *rates)


def _evaluators() -> Any:
    try:
        return import_module("anonymeter.evaluators")
    except ImportError as error:
        raise PrivetError(
            f"Attacks on tables need Anonymeter, which is not installed ({error}): pip install 'privet[anonymeter]'. It "
            f"needs NumPy below 1.27, so give it an environment of its own."
        ) from None
