"""The statement of a run for readers to whom epsilon says nothing, and what it does not cover."""

from __future__ import annotations

import math

from privet.attacks import Interval
from privet.privacy import Spent, delta_warning
from privet.report import words
from privet.report.limit import Limit
from privet.report.record import RunRecord

_CHANGES = {"add-remove": "putting it in or leaving it out", "replace-one": "replacing it by another"}
_VOID = math.log(1e6)
"""From this epsilon on, a factor is no promise that anybody can lean on."""


def released(record: RunRecord) -> str:
    """What leaves the building."""
    return "synthetic data set" if record.synthetic else "trained model"


def standing(spent: Spent) -> words.Standing:
    """How the whole statement is shown."""
    return words.standing(spent.guarantee) if math.isfinite(spent.epsilon) else words.UNPROTECTED


def opening(record: RunRecord, spent: Spent) -> str:
    """The words before the ledger's own sentence."""
    what = f"The {released(record)} is"
    if not math.isfinite(spent.epsilon):
        return f"{what} not differentially private:"
    if standing(spent).kind == "claimed":
        return f"{what} only claimed to be differentially private:"
    return f"{what} differentially private:"


def calibrated(other: Spent | None, spent: Spent) -> str:
    """What the accountant says that gave the noise, where it is another than that of the statement."""
    if other is None:
        return ""
    return (
        f"The noise was calibrated by {other.accountant}, which says: {other}. "
        f"The statement above is that of {spent.accountant} for the same steps."
    )


def meaning(record: RunRecord, spent: Spent) -> str:
    """What the statement promises to one person."""
    what = released(record).split(maxsplit=1)[-1]
    if not math.isfinite(spent.epsilon):
        return f"Nothing limits what the {what} may reveal about a {spent.unit}."
    claimed = standing(spent).kind == "claimed"
    if spent.epsilon >= _VOID:
        digits = math.floor(spent.epsilon / math.log(10)) + 1
        return (
            f"{'Even if the claim held, it would promise' if claimed else 'It promises'} nothing in practice: for any one "
            f"{spent.unit}, {_CHANGES[spent.relation.value]} may change the probability of a result by a factor that is "
            f"a number of {digits:,} digits. An epsilon of that size does not keep whoever has the {what} from telling "
            f"whether a given {spent.unit} was used, every time. Treat the {what} like the records themselves."
        )
    limit = Limit(spent.epsilon, spent.delta)
    factor = math.exp(spent.epsilon)
    size = f"{math.ceil(factor * 10) / 10:,.1f}" if factor < 1000 else f"{math.ceil(factor):,}"
    lead = "If the claim held, it would mean: for" if claimed else "For"
    return (
        f"{lead} any one {spent.unit}, {_CHANGES[spent.relation.value]} changes the probability of any result by a "
        f"factor of at most {size}, except with probability {words.odds(spent.delta)}. "
        f"Whoever guesses from the {what} whether a given {spent.unit} was used, and is wrong about "
        f"{words.share(0.01)} of those that were not, is right about at most "
        f"{words.share_at_most(limit(0.01))} of those that were."
    )


def accuracy_interval(record: RunRecord) -> Interval | None:
    """The interval of the accuracy, as it was measured; None where nothing was measured for others to see."""
    found = record.utility
    return Interval(found.low, found.high, found.level, "noisy" if found.noise else "Wilson") if found else None


def measured(record: RunRecord) -> str:
    """How well the release does, in a sentence that may be published."""
    found = record.released_utility
    whose = "of a model that was trained on the synthetic data alone" if record.synthetic else "of the model"
    if found is None and record.data.public:  # a record of version 0.1.0
        return f"The accuracy {whose} is {words.share(record.test_accuracy)}, measured on the test records."
    if found is None:
        return (
            f"The accuracy {whose} was not measured in a way that may be published: exact figures of private records stay "
            "with their holder."
        )
    on = "on the test records"
    if record.data.measured_share and not record.data.public:
        on = f"on about {words.share(record.data.measured_share)} of the records, which were not trained on"
    if found.noise:
        on += f", with noise of {words.number(found.noise)} on each count, which the ledger holds"
    return (
        f"The accuracy {whose} is {words.share(found.accuracy)} ({100 * found.level:g} % interval {words.share(found.low)} to "
        f"{words.share(found.high)}), measured {on}. Always answering the most frequent class has an accuracy of "
        f"{words.share(found.majority)}."
    )


def caveats(record: RunRecord, spent: Spent) -> list[tuple[str, str]]:
    """What the statement does not cover, each with a name."""
    what = released(record).split(maxsplit=1)[-1]
    listed = "They were not looked for."
    if record.others is not None:
        found_here = "Those that were found are listed" if record.others else "None was found beside this one"
        listed = f"{found_here}; runs that are kept elsewhere, or were deleted, are not counted."
    found = [
        (
            "Other runs.",
            "Settings that were chosen by looking at other runs on the same records cost privacy that this ledger does "
            f"not hold. {listed}",
        ),
        (
            "Other attacks.",
            "An attack that finds nothing proves nothing; only the statement bounds every attack.",
        ),
        (
            "Other units.",
            f"One {spent.unit} is protected. Somebody who is in several is protected less.",
        ),
        (
            "Facts about everybody.",
            f"What the {what} says about people in general, it also says about those whose {spent.unit} was not used.",
        ),
    ]
    if said := delta_warning(spent.delta, record.data.protected_records, spent.unit):
        found.insert(0, ("A large delta.", said))
    if record.seeded:
        verb = "publish" if record.synthetic else "release"
        found.insert(
            0,
            (
                "Seeded noise.",
                "The noise was drawn from a seeded generator so that the run can be repeated. Whoever knows the seed "
                f"can take the noise away again: do not {verb} this {what}; make the release with secure noise.",
            ),
        )
    return found
