"""The statement of a run for readers who do not know epsilon, and what it does not cover."""

from __future__ import annotations

import math
from typing import Any

from privet.attacks import Interval
from privet.privacy import Claimed, Spent, delta_warning
from privet.privacy.meaning import VACUOUS_FALSE_POSITIVES
from privet.privacy.spent import round_up
from privet.report import words
from privet.report.record import RunRecord


def released(record: RunRecord) -> str:
    """The name of the release: the model or the data."""
    return "synthetic data set" if record.synthetic else "trained model"


def standing(record: RunRecord, spent: Spent) -> words.Standing:
    """How the statement is shown. If an audit refuted it, that counts more than its proof."""
    if any(audit.refuted for audit in record.audits) and not isinstance(spent.guarantee, Claimed):
        return words.REFUTED
    if not math.isfinite(spent.epsilon):
        return words.UNPROTECTED
    return words.standing(spent.guarantee, vacuous=spent.vacuous)


def title(record: RunRecord, spent: Spent) -> str:
    """The title of the run. It says "private" only if the release is protected."""
    return record.title if standing(record, spent).protects else record.title.replace("private ", "", 1)


def opening(record: RunRecord, spent: Spent) -> str:
    """The words before the sentence from the ledger."""
    what, shown = released(record), standing(record, spent)
    if shown.kind == "open":
        return f"The {what} is not differentially private:"
    if shown.kind == "refuted":
        return f"An audit refutes that the {what} is differentially private as stated:"
    if shown.kind == "claimed":
        nothing = ", and the claim promises nothing" if shown.vacuous else ""
        return f"The {what} is only claimed to be differentially private{nothing}:"
    if shown.vacuous:
        return f"The budget of the {what} is too large to protect anybody:"
    return f"The {what} is differentially private:"


def calibrated(other: Spent | None, spent: Spent) -> str:
    """The statement of the accountant that calibrated the noise, if it is not the one of the statement."""
    if other is None:
        return ""
    return (
        f"The noise was calibrated by {other.accountant}, which says: {other}. "
        f"The statement above is that of {spent.accountant} for the same steps."
    )


def meaning(record: RunRecord, spent: Spent) -> str:
    """What the statement promises to one person."""
    what = released(record).split(maxsplit=1)[-1]
    shown = standing(record, spent)
    if shown.kind == "open":
        return f"Nothing limits what the {what} may reveal about a {spent.unit}."
    if shown.kind == "refuted":
        return (
            f"The statement does not hold: the code that made the {what} reveals more about a {spent.unit} than it allows. "
            f"Do not release the {what}."
        )
    found = spent.meaning
    inside, outside = f"those whose {spent.unit} was used", f"those whose {spent.unit} was not used"
    used = "used"
    if spent.unit == "user":
        used = "in the data"
        inside, outside = "the users who were in the data", "the users who were not"
    if shown.vacuous:
        nothing = {
            "claimed": "Even if the claim held, it would promise",
            "assumed": "Even if its assumptions hold, it promises",
        }
        few = VACUOUS_FALSE_POSITIVES
        return (
            f"{nothing.get(shown.kind, 'It promises')} nothing in practice: it allows an attacker who has the {what}, and who "
            f"wrongly names {words.odds(few)} of {outside}, to find up to "
            f"{words.share_at_most(found.true_positive_rate(few))} of {inside}. "
            f"Treat the {what} like the records themselves."
        )
    lead = {"claimed": "If the claim held, it would mean: an", "assumed": "If its assumptions hold: an"}.get(
        shown.kind, "An"
    )
    return (
        f"{lead} attacker who has the {what} and knows everything else, and who wrongly names {words.share(0.01)} of "
        f"{outside}, finds at most {words.share_at_most(found.true_positive_rate(0.01))} of "
        f"{inside}. Somebody who thought it {words.share(0.5)} likely that a given {spent.unit} was {used} thinks it at "
        f"most {words.share_at_most(found.posterior(0.5))} likely afterwards, except with probability "
        f"{words.odds(found.failure)}."
    )


def data(record: RunRecord, spent: Spent) -> str:
    """The public numbers of the data, and which of the records the statement covers."""
    about = record.data
    said = f"{about.training_records:,} training {about.unit}s"
    if about.public:
        protected = ", which are protected" if standing(record, spent).protects else ""
        return f"{said}{protected}, and {about.test_records:,} test records, which are public"
    if not standing(record, spent).protects:
        return said
    if about.unprotected:
        return f"{said}, which are protected"
    if not about.measured_share:
        return f"{said}, which are protected; so are the test records"
    return (
        f"about {said}, which are protected; so are the others, about {words.share(about.measured_share)}, which were used "
        "only for measuring"
    )


def a_record(record: RunRecord) -> str:
    """What one unit of the statement is, in words."""
    if record.data.unit == "user":
        column = f", as the column {record.data.user} says" if record.data.user else ""
        return f"all records of one user{column}"
    if len(record.data.shape) == 3:
        return "one image with its label"
    if record.data.source.startswith(("csv:", "parquet:")):
        return "one row of the table"
    return "one example with its label or target"


def protected(record: RunRecord, spent: Spent) -> str:
    """Who is protected: the unit, what it is, and the public number of them."""
    known = "a number that was stated" if record.data.size_is_stated else "a number that is taken as public"
    size = f"{record.data.protected_records:,} {record.data.unit}s, {known}"
    shown = standing(record, spent)
    if not shown.protects:
        return f"Nobody: {shown.title[0].lower()}{shown.title[1:]}. {size}, were used."
    neighbors = spent.relation.describe(spent.unit)
    return f"One {spent.unit}: {a_record(record)}. There are {size}. Neighboring data sets: {neighbors}."


def in_numbers(record: RunRecord, spent: Spent) -> dict[str, Any] | None:
    """What the statement allows an attacker, as numbers; None if it allows everything, or was refuted."""
    return None if standing(record, spent).kind in ("open", "refuted") else spent.meaning.to_dict()


def numbers(record: RunRecord, spent: Spent) -> str:
    """The numbers of `in_numbers` in a sentence: true positive rates, beliefs, and several records at once."""
    found = in_numbers(record, spent)
    if found is None:
        return "No number bounds what an attacker can learn."
    rates = (
        f"{words.share_at_most(rate)} at {words.share(float(at))}" for at, rate in found["true_positive_rates"].items()
    )
    beliefs = found["posteriors"]["from_prior"].items()
    posteriors = (f"{words.share(float(prior))} to at most {words.share_at_most(after)}" for prior, after in beliefs)
    groups = (_for_several(group, spent) for group in found["groups"])
    lead = {"claimed": "If the claim held: an", "assumed": "If the assumptions hold: an"}.get(
        standing(record, spent).kind, "An"
    )
    return (
        f"{lead} attack finds at most {', '.join(rates)} false positives. A belief that a given {spent.unit} was used grows from "
        f"{', from '.join(posteriors)}, except with probability {words.odds(found['posteriors']['failure'])}. "
        f"{'. '.join(groups)}."
    )


def _for_several(group: dict[str, Any], spent: Spent) -> str:
    what = f"{group['size']} {spent.unit}s at once"
    if group["epsilon"] is None or group["delta"] >= 1:
        return f"For {what} nothing is promised"
    return f"For {what} epsilon is at most {round_up(group['epsilon'])} at delta = {group['delta']:.3g}"


def spent_so_far(record: RunRecord, total: object) -> str:
    """Everything that was spent on these data so far, with its date; `total` is that of this run and those found beside it."""
    if record.account is not None:
        return f"{record.account}."
    found = f" Together with the other runs that were found beside it: {total}." if total is not None else ""
    looked = (
        "and other runs were not looked for"
        if record.others is None
        else "so deleted runs and runs elsewhere are not counted"
    )
    return f"No account of these data is kept, {looked}. On {record.created[:10]} this run had spent what it states.{found}"


def tried(record: RunRecord) -> list[str]:
    """What was attacked and audited, when, and with which power, in publishable sentences."""
    attacks = [
        f"Attacked on {attack.date[:10] or 'an unknown date'}: {attack.name}. {_power(attack.power)}"
        for attack in record.attacks
    ]
    audits = [
        f"Audited on {audit.date[:10] or 'an unknown date'}: {audit.name}, {audit.verdict}. {_power(audit.power)}"
        + (f" Not audited: {audit.not_audited}." if audit.not_audited else "")
        for audit in record.audits
    ]
    return [
        *(attacks or ["Nothing was attacked."]),
        *(audits or ["Nothing was audited: whether the code does what the plan says."]),
    ]


def _power(power: str) -> str:
    return f"Power: {power}." if power else "With which power is not known."


def not_protected(record: RunRecord, spent: Spent) -> list[str]:
    """Who and what the statement does not protect, in sentences; more of it is in `caveats`."""
    unit = spent.unit
    found = [record.data.who_is_unprotected] if record.data.who_is_unprotected else []
    if record.data.set_aside:
        found.append(f"{record.data.set_aside:,} test records were used as public ones, without protection.")
    found += [
        "Users who belong together, such as a family, have less protection."
        if unit == "user"
        else f"People with several {unit}s have less protection.",
        "What is true of people in general is not hidden.",
        "Other releases from the same data cost extra.",
    ]
    if spent.conditions:
        found.append(f"Taken as public: {'; '.join(spent.conditions)}.")
    return found


def not_for_release(record: RunRecord) -> str:
    """Why the run must not be released, in a sentence or two; empty if it may be."""
    said = []
    if any(audit.refuted for audit in record.audits):
        said.append("NOT FOR RELEASE: an audit refutes the statement of this run.")
    if record.seeded:
        said.append(
            "NOT FOR RELEASE: the noise was drawn from a seed. Anybody who knows the seed can remove the noise."
        )
    return " ".join(said)


def accuracy_interval(record: RunRecord) -> Interval | None:
    """The interval of the accuracy that may be published; None if there is none."""
    found = record.utility
    return Interval(found.low, found.high, found.level, "noisy" if found.noise else "Wilson") if found else None


def measured(record: RunRecord) -> str:
    """How well the release does, in a sentence that may be published."""
    if record.data.target:
        return _measured_regression(record)
    found = record.released_utility
    whose = "of a model that was trained on the synthetic data alone" if record.synthetic else "of the model"
    if found is None and record.data.public and record.test_accuracy is not None:  # a record of version 0.1.0
        return f"The accuracy {whose} is {words.share(record.test_accuracy)}, measured on the test records."
    if record.test_accuracy is None:
        return f"The accuracy {whose} was not measured."
    if found is None:
        return (
            f"The accuracy {whose} was not measured in a way that may be published: exact figures of private records stay "
            "with their holder."
        )
    on = "on the test records"
    if record.data.measured_share and not record.data.public:
        on = f"on about {words.share(record.data.measured_share)} of the {record.data.unit}s, which were not trained on"
    if found.noise:
        on += f", with noise of {words.number(found.noise)} on each count, which the ledger holds"
    return (
        f"The accuracy {whose} is {words.share(found.accuracy)} ({100 * found.level:g} % interval {words.share(found.low)} to "
        f"{words.share(found.high)}), measured {on}. Always answering the most frequent class has an accuracy of "
        f"{words.share(found.majority)}."
    )


def _measured_regression(record: RunRecord) -> str:
    found, target = record.released_error, record.data.target
    if found is None:
        return (
            f"The error of the model for {target} was not measured in a way that may be published: exact figures of private "
            "records stay with their holder."
        )
    on = "on the test records"
    if record.data.measured_share and not record.data.public:
        on = f"on about {words.share(record.data.measured_share)} of the {record.data.unit}s, which were not trained on"
    if found.noise:
        on += (
            f", with noise of {words.number(found.noise)} on each of the sums behind it, which the ledger holds; an error above "
            f"half of the range of {target} counts as half of it"
        )
    return (
        f"The error of the model for {target}, the root of the mean square, is {found.error:.4g} ({100 * found.level:g} % "
        f"interval {found.low:.4g} to {found.high:.4g}), measured {on}. The best constant has an error of {found.constant:.4g}."
    )


def choice(record: RunRecord, spent: Spent) -> list[str]:
    """How a tuned release was chosen and what the choice cost, in publishable sentences; empty for a single run."""
    found = record.tuning
    if found is None:
        return []
    what, many = released(record), len(found.candidates)
    tried = f"Each of {many:,} candidates was tried once, and the best one is the release."
    if found.trials:
        tried = (
            f"The {what} is the best of a random number of trials ({found.trials}), each of one of {many:,} candidates, drawn at "
            f"random. How many trials there were is secret, and the statement holds only as long as it stays secret."
        )
    return [
        tried,
        f"It was chosen by {found.score}. Its own score was {words.share(found.best)}: the best of several, so too optimistic. "
        f"An accuracy that is given for it was measured on other records.",
        f"The statement covers the choice. At delta = {spent.delta:g}, one run with the settings and the noise of the {what} "
        f"costs epsilon = {round_up(found.one)}, the choice as it was made epsilon = {round_up(spent.epsilon)}, and one run of "
        f"each candidate would cost epsilon = {round_up(found.all_once)}.",
    ]


def caveats(record: RunRecord, spent: Spent) -> list[tuple[str, str]]:
    """What the statement does not cover, each with a name."""
    what = released(record).split(maxsplit=1)[-1]
    listed = "They were not looked for."
    if record.others is not None:
        when = f"when this one was made, on {record.created[:10]}"
        found_here = f"Those found {when}, are listed" if record.others else f"None was found {when}"
        listed = f"{found_here}; later runs, runs in other folders and deleted runs are not counted."
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
            "The statement is about one user with all their records. For users who belong together, as a family does, it is "
            "weaker."
            if spent.unit == "user"
            else f"The statement is about one {spent.unit}. For a person with several it is weaker.",
        ),
        (
            "Facts about everybody.",
            f"What the {what} says about people in general, it also says about those who were not in the data.",
        ),
    ]
    if record.tuning is not None and record.tuning.trials:
        found.insert(
            1,
            (
                "How long the tuning took.",
                f"Anybody who knows the duration can guess the number of trials, and the statement does not cover that: keep the "
                f"duration and the logs of the machine secret. The files of this {what} do not reveal it.",
            ),
        )
    if said := delta_warning(spent.delta, record.data.protected_records, spent.unit):
        found.insert(0, ("A large delta.", said))
    if record.seeded:
        verb = "publish" if record.synthetic else "release"
        found.insert(
            0,
            (
                "Seeded noise.",
                "The noise was drawn from a seeded generator so that the run can be repeated. Anybody who knows the seed "
                f"can remove the noise: do not {verb} this {what}; make the release with secure noise.",
            ),
        )
    return found
