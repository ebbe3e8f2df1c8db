"""The plain words: every number in them is computed, rounded against the reader, and marked where it is not proved."""

import math
import re
from dataclasses import replace

import pytest

from privet.privacy import ApproximateDP, Assumed, Gaussian, NotPrivate, PublishedClaim, PureEpsilon, accountant_named
from privet.privacy.meaning import WIDTH, explain
from privet.privacy.spent import round_up

MU = 0.5
JARGON = ("adversary", "mechanism", "neighbour", "neighbor", "sensitivity", "posterior", "prior")
ABBREVIATIONS = ("PLD", "Poisson", "sigma", "TPR", "FPR")


def spent(event, relation="add-remove", delta=1e-5):
    return accountant_named("pld").spent(event, delta, relation)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_the_numbers_are_those_of_the_statement():
    statement = spent(Gaussian(1 / MU))
    found, said = statement.meaning, plain(explain(statement))
    for rate in (0.001, 0.01, 0.1):
        most = math.ceil(1000 * found.true_positive_rate(rate))
        assert f"{round(1000 * rate):,} of 1,000 {most:,} of 1,000 {round(1000 * rate):,} of 1,000" in said
    assert f"guesses right in at most {math.ceil(500 * (1 + found.advantage))} of 1,000 such cases" in said
    assert f"10 % {math.ceil(1000 * found.posterior(0.1)) / 10:g} %" in said
    assert "The limit fails with a chance of at most 1 in 50,000:" in said
    family = found.group(4)
    assert f"For 4 records together the statement is epsilon = {round_up(family.epsilon)} at the same delta" in said
    assert f"finds at most {math.ceil(1000 * family.curve.true_positive_rate(0.01))} of 1,000; of single" in said
    assert "computed from the run itself, for 4 records at once" in said


def test_other_numbers_give_other_words():
    assert explain(spent(Gaussian(2.0))) != explain(spent(Gaussian(2.1)))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_it_uses_no_word_that_needs_a_course(relation):
    said = explain(spent(Gaussian(2.0), relation))
    assert not [word for word in JARGON + ABBREVIATIONS if re.search(rf"\b{word}", said)]
    assert all(len(line) <= WIDTH for line in said.splitlines())
    assert "Epsilon" in said and "Delta" in said  # named, and each with its gloss


def test_replacing_is_a_choice_between_two_records():
    said = plain(explain(spent(Gaussian(2.0), "replace-one")))
    assert "which of two possible records of one person was used" in said
    assert "whether one person's record was used" not in said
    assert "The number of records: it counts as public here." in said


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_of_users_it_speaks_of_people_with_all_their_records(relation):
    """ "Whether one person's user was used" means nothing."""
    statement = replace(spent(Gaussian(2.0), relation), unit="user", conditions=("the number of users is public",))
    said = plain(explain(statement))
    assert "user was used" not in said and "one person with several records" not in said
    asked = (
        "whether one person's records were used"
        if relation == "add-remove"
        else "which of two possible sets of records"
    )
    assert asked in said and "they know the records of all other people" in said
    assert (
        "The number of users: it counts as public here." in said and "A FAMILY is protected less. For 4 users" in said
    )


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (Gaussian(2.0).under(Assumed("labels are public")), "assumed"),
        (PublishedClaim(3.0, 1e-5, "a paper", "it leaks"), "claimed"),
    ],
)
def test_what_is_not_proved_keeps_its_word_beside_every_number(event, word):
    said = explain(spent(event))
    rows = [line for line in said.splitlines() if re.match(r" {4}\d", line)]
    assert len(rows) == 7
    assert all(f"({word})" in row for row in rows)
    text = plain(said)
    for number in re.findall(r"at most [\d,]+ of 1,000(?: such cases)?(.{10})", text):
        assert number.startswith(f" ({word})")
    assert ("labels are public" in text) == (word == "assumed")
    assert ("the claim does not hold for this run: it leaks" in text) == (word == "claimed")
    assert ("If the claim held, no attacker" in text) == (word == "claimed")


def test_a_family_of_a_claim_has_a_larger_delta_where_nothing_follows_at_the_stated_one():
    said = plain(explain(spent(PublishedClaim(2.0, 1e-6, "a paper", "it leaks"), delta=1e-6)))
    grown = 1e-6 * sum(math.exp(2 * i) for i in range(4))
    assert f"epsilon = 8 at delta = {round_up(grown)} (claimed)" in said


@pytest.mark.parametrize("event", [Gaussian(0.0129), PureEpsilon(3000.0), NotPrivate()])
def test_a_vacuous_statement_is_called_one_before_anything_else(event):
    said = plain(explain(spent(event)))
    assert said.index("THIS STATEMENT IS VACUOUS") < said.index("THE ATTACKER")
    assert "finds 100,000 of 100,000 people who are in the data while it wrongly names 1 of 100,000" in said
    assert "1,000 of 1,000" in said
    assert "VACUOUS" not in explain(spent(Gaussian(2.0)))


@pytest.mark.parametrize("delta", [0.0, 1e-300, 0.3, 0.9])
def test_every_delta_has_words(delta):
    assert "WHAT IT DOES NOT PROMISE" in explain(spent(PureEpsilon(1.0), delta=delta))


def test_an_infinite_epsilon_of_a_curve_that_is_finite_says_that_delta_is_too_small():
    statement = spent(ApproximateDP(1.0, 1e-3), delta=1e-5)
    said = plain(explain(statement))
    assert statement.vacuous and statement.meaning.vacuous
    assert "Epsilon (infinite here)" in said
    assert "at this delta epsilon is infinite, and nothing is promised" in said
    assert f"{math.ceil(1000 * statement.meaning.true_positive_rate(0.1))} of 1,000" in said
