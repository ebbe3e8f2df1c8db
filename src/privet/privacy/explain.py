"""A privacy statement in plain words, for readers who do not know differential privacy; every number is computed."""

from __future__ import annotations

import math
import textwrap

from privet.privacy.guarantees import Assumed, Claimed, Relation
from privet.privacy.meaning import FALSE_POSITIVE_RATES, PRIORS, VACUOUS_FALSE_POSITIVES, Group, Meaning
from privet.privacy.spent import Spent, round_up

PEOPLE = 1000
FAMILY = 4
WIDTH = 100


def explain(spent: Spent) -> str:
    """Explain what the statement lets an attacker learn about one person, and what it does not promise."""
    found = spent.meaning
    parts = [_lead(found), _attacker(spent), _finding(found), _guessing(found), _believing(found)]
    parts += [_family(found, found.group(FAMILY)), _not_promised(spent)]
    return "\n\n".join(parts)


def _lead(found: Meaning) -> str:
    spent = found.spent
    said = [
        f"WHAT THIS MEANS. The privacy of one {spent.unit} is measured by two numbers. Epsilon ({_size(spent.epsilon)} "
        f"here) says how strongly the release may depend on that {spent.unit}: 0 means not at all. Delta "
        f"({_chance(spent.delta)} here) is the small chance that the limit set by epsilon fails."
    ]
    if math.isinf(spent.epsilon) and not found.curve.vacuous:
        said.append(
            "THIS STATEMENT IS VACUOUS: at this delta epsilon is infinite, and nothing is promised. Ask for a larger delta; the "
            "numbers below do not depend on delta."
        )
    elif found.vacuous:
        said.append(
            "THIS STATEMENT IS VACUOUS: it promises nothing in practice. It allows an attack that finds "
            f"{_of(found.true_positive_rate(VACUOUS_FALSE_POSITIVES), 100_000)} people who are in the data while it wrongly "
            f"names {_of(VACUOUS_FALSE_POSITIVES, 100_000)} who are not{_mark(found)}. Treat the release like the records "
            "themselves."
        )
    match spent.guarantee:
        case Assumed(assumptions=assumptions):
            said.append(f'Each number marked "assumed" holds only if {" and ".join(assumptions)}.')
        case Claimed(by=by, because=because):
            said.append(
                f'Each number marked "claimed" is claimed by {by}, but the claim does not hold for this run: {because}. '
                "The attacker may do better than every limit below."
            )
    return "\n\n".join(_wrapped(text) for text in said)


def _attacker(spent: Spent) -> str:
    add_remove, one = spent.relation is Relation.ADD_REMOVE, _belonging(spent)
    question = (
        f"whether one person's {one} used"
        if add_remove
        else f"which of two possible {_two(spent)} of one person was used"
    )
    return _wrapped(
        f"THE ATTACKER wants to know {question}. Think of the worst one: they know {_all_others(spent)}, the method, its "
        "settings and everything that was released. Only the random noise is hidden from them. "
        f"{_condition(spent)} attacker does better than the numbers below, with any computer and any other data, now or later."
    )


def _finding(found: Meaning) -> str:
    """The trade-off curve as a table of counts."""
    yes, no = _sides(found.spent)
    lines = [
        _wrapped(
            f"FINDING PEOPLE. There are {PEOPLE:,} people {yes}, and {PEOPLE:,} {no}. The attacker names those who seem to be "
            f"of the first kind. The more people they are willing to name wrongly, the more they find{_mark(found)}:"
        ),
        "",
        f"    {'wrongly named':<20}{'found, at most':<28}found by guessing blindly",
    ]
    for rate in FALSE_POSITIVE_RATES:
        most = _of(found.true_positive_rate(rate))
        lines.append(f"    {_of(rate):<20}{most + _mark(found):<28}{_of(rate)}")
    return "\n".join(lines)


def _guessing(found: Meaning) -> str:
    add_remove = found.spent.relation is Relation.ADD_REMOVE
    what = (
        "whether the person is in the data or not"
        if add_remove
        else f"which of two possible {_two(found.spent)} is used"
    )
    right = (1 + found.advantage) / 2
    return _wrapped(
        f"GUESSING ABOUT ONE PERSON. A coin decides in secret {what}. The attacker guesses right in at most {_of(right)} "
        f"such cases{_mark(found)}. Guessing blindly is right in {_of(0.5)}."
    )


def _believing(found: Meaning) -> str:
    """The table of priors and posteriors."""
    what = "that the person is in"
    if found.spent.relation is not Relation.ADD_REMOVE:
        what = f"that the first of the two {_two(found.spent)} was used"
    lines = [
        _wrapped(
            f"CHANGING THEIR MIND. This is how sure the attacker is {what}, before and after they see the release. The "
            f"limit fails with a chance of at most {_chance(found.failure)}{_mark(found)}:"
        ),
        "",
        f"    {'sure before':<20}sure afterwards, at most",
    ]
    for prior in PRIORS:
        after = found.posterior(prior)
        lines.append(f"    {_percent(prior):<20}{_percent(after, up=True)}{_mark(found)}")
    return "\n".join(lines)


def _family(found: Meaning, group: Group) -> str:
    spent, rate = found.spent, 0.01
    who = "A FAMILY" if spent.unit == "user" else "A FAMILY, or one person with several records,"
    together = f"{who} is protected less. For {group.size} {spent.unit}s together "
    if group.delta >= 1 or math.isinf(group.epsilon):
        return _wrapped(f"{together}nothing at all is promised.")
    delta = "the same delta" if group.delta == spent.delta else f"delta = {round_up(group.delta)}"
    return _wrapped(
        f"{together}the statement is epsilon = {round_up(group.epsilon)} at {delta}{_mark(found)}, computed from "
        f"{group.source}. An attacker who wrongly names {_of(rate)} such families finds at most "
        f"{_of(group.curve.true_positive_rate(rate))}{_mark(found)}; of single {spent.unit}s it was "
        f"{_of(found.true_positive_rate(rate))}{_mark(found)}."
    )


def _not_promised(spent: Spent) -> str:
    points = [
        "Facts about people in general. If the records show that smokers fall ill more often, the release may say so, and it "
        "says so about every smoker, whether they are in the data or not.",
        f"More than one {spent.unit} at a time: see the family above.",
        "Other releases from the same records. Their costs add up; this statement counts only its own run.",
        "Safe storage. The records themselves, and everything computed from them without noise, must still be kept safe.",
        "That the code did what the settings say. A proof is about the method; an audit tests the code.",
        "Anything about how accurate or fair the result is.",
    ]
    if spent.relation is Relation.REPLACE_ONE or any("number of" in fact for fact in spent.conditions):
        points.insert(1, f"The number of {spent.unit}s: it counts as public here.")
    if isinstance(spent.guarantee, Claimed):
        points.insert(0, "Any of the numbers above: they are claimed, not proved.")
    listed = [textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ") for text in points]
    return "\n".join(["WHAT IT DOES NOT PROMISE", *listed])


def _sides(spent: Spent) -> tuple[str, str]:
    if spent.relation is Relation.ADD_REMOVE:
        return f"whose {_belonging(spent)} used", f"whose {_belonging(spent)} not used"
    if spent.unit == "user":
        return "whose first set of records was used", "whose second set was used instead"
    return f"whose first {spent.unit} was used", f"whose second {spent.unit} was used instead"


def _belonging(spent: Spent) -> str:
    """One person's part of the data, with its verb."""
    return "records were" if spent.unit == "user" else f"{spent.unit} was"


def _two(spent: Spent) -> str:
    """The two alternatives for one person's part of the data."""
    return "sets of records" if spent.unit == "user" else f"{spent.unit}s"


def _all_others(spent: Spent) -> str:
    return "the records of all other people" if spent.unit == "user" else "all other records"


def _condition(spent: Spent) -> str:
    match spent.guarantee:
        case Assumed():
            return "If the assumptions hold, no"
        case Claimed():
            return "If the claim held, no"
    return "No"


def _mark(found: Meaning) -> str:
    """The mark beside every number that is not proved."""
    match found.spent.guarantee:
        case Assumed():
            return " (assumed)"
        case Claimed():
            return " (claimed)"
    return ""


def _of(share: float, people: int = PEOPLE) -> str:
    """A share of `people`, rounded up, so that the printed number is still a bound."""
    return f"{min(people, math.ceil(share * people * (1 - 1e-12))):,} of {people:,}"


def _percent(share: float, *, up: bool = False) -> str:
    percent = 100 * share
    if up:
        percent = min(100.0, math.ceil(percent * 10 * (1 - 1e-12)) / 10)
    return f"{percent:.1f}".removesuffix(".0") + " %"


def _size(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else round_up(epsilon)


def _chance(probability: float) -> str:
    """A small probability as "1 in N", a larger one as a percentage."""
    if probability > 0.1 or probability <= 0:
        return _percent(probability)
    return f"1 in {math.floor(1 / probability * (1 + 1e-12)):,}" if probability > 1e-12 else f"{probability:.3g}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)
