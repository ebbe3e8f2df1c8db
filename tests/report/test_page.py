"""The page: self-contained, deterministic, honest about what is proved, and readable without colour or sight."""

import dataclasses
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import pytest
from typer.testing import CliRunner

from privet.attacks.result import Rate
from privet.audit import Audit, Claim
from privet.cli import app
from privet.errors import InputError, PrivetError
from privet.privacy import Assumed, Claimed, Gaussian, Ledger, NotPrivate, PoissonSampled, PureEpsilon
from privet.report import RunRecord, SyntheticSummary, render, words, write_page
from privet.report.others import together
from privet.report.page import above_the_limit
from privet.report.statement import meaning

STEP = PoissonSampled(0.1, Gaussian(2.0))
CSS = resources.files("privet.report").joinpath("templates/report.css").read_text()


class Outline(HTMLParser):
    """The elements of a page with their attributes, and the text of those that have an id."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(page)
        assert not self._open, "every element is closed"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, name in self._open:
            if name:
                self.text[name] = self.text.get(name, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def record(finished_run) -> RunRecord:
    return RunRecord.read(finished_run)


@pytest.fixture(scope="module")
def ledger(finished_run, record) -> Ledger:
    return record.open_ledger(finished_run)


@pytest.fixture(scope="module")
def page(record, ledger) -> str:
    return render(record, ledger)


def test_the_statement_is_the_ledgers_own(page, record, ledger):
    assert Outline(page).text["statement"] == str(ledger.spent(record.delta))


def test_made_twice_it_has_the_same_bytes_also_in_another_process(finished_run, tmp_path):
    first = write_page(finished_run).read_bytes()
    assert write_page(finished_run).read_bytes() == first
    code = "import sys, pathlib; from privet.report import write_page; write_page(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(finished_run)], check=True)
    assert (finished_run / "report.html").read_bytes() == first


def test_it_asks_nobody_for_anything(page):
    outline = Outline(page)
    for _, attributes in outline.elements:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"@import|@font-face|url\((?!#)", page)
    assert not outline.all("script")


def test_it_names_every_figure_and_heads_every_table(page):
    outline = Outline(page)
    drawings = outline.all("svg")
    assert [drawing["id"] for drawing in drawings] == ["noise", "roc", "roc-log", "budget", "loss"]
    assert all(drawing["role"] == "img" and len(drawing["aria-label"]) > 40 for drawing in drawings)
    assert len(outline.all("figcaption")) == len(drawings)
    assert len(outline.all("caption")) == len(outline.all("table")) == len(outline.all("thead"))
    assert all(cell.get("scope") in ("row", "col") for cell in outline.all("th"))


def test_headings_descend_and_ids_are_unique(page):
    outline = Outline(page)
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in outline.elements if "aria-labelledby" in a} <= set(ids)
    assert outline.all("html")[0]["lang"] == "en"


def test_what_the_user_named_cannot_become_markup(record, ledger):
    name = '<script>alert(1)</script> & "quotes"'
    hostile = dataclasses.replace(
        record, title=name, method=name, settings={name: name}, command=("privet", name), seeds={name: name}
    )
    outline = Outline(render(hostile, ledger))
    assert not outline.all("script")


def attacked(record: RunRecord, *attacks) -> RunRecord:
    return dataclasses.replace(record, attacks=attacks)


def with_event(event) -> Ledger:
    ledger = Ledger()
    ledger.record(event)
    return ledger


def test_a_claim_is_called_a_claim_in_the_first_sentence(record):
    claim = Claimed("the paper", "its first layers see the records without noise")
    page = render(record, with_event(STEP.under(claim)))
    assert "The trained model is only claimed to be differentially private:" in page
    assert '<section class="statement claimed"' in page
    assert "Claimed, not proved" in page
    assert "If the claim held, it would mean" in page
    assert "its first layers see the records without noise" in page
    assert "Claimed limit" in page
    assert "the claim would allow" in page
    assert "the guarantee allows" not in page


def test_an_epsilon_that_promises_nothing_is_said_to_do_so(record):
    huge = Gaussian(0.01)
    page = render(record, with_event(huge.under(Claimed("the paper", "nothing enforces its bound"))))
    assert "Even if the claim held, it would promise nothing in practice" in page
    assert "Claimed, not proved, and vacuous" in page
    assert "only claimed to be differentially private, and the claim promises nothing:" in page
    spent = with_event(huge).spent(record.delta)
    assert meaning(record, spent).startswith("It promises nothing in practice")
    assert "wrongly names 1 in 100,000 of those" in meaning(record, spent)
    assert "to find up to 100\N{NO-BREAK SPACE}% of those" in meaning(record, spent)


@pytest.mark.parametrize("event", [Gaussian(0.0129), PureEpsilon(2999.0)])
def test_a_proved_budget_that_promises_nothing_is_neither_green_nor_called_private(record, event):
    """An epsilon of 2999 was once a green "Proved ... is differentially private"."""
    page = render(record, with_event(event))
    assert '<section class="statement vacuous"' in page
    assert '<section class="statement proved"' not in page
    assert "∅</span>Proved, but vacuous" in page
    assert "is differentially private" not in page
    assert "The budget of the trained model is too large to protect anybody:" in page
    assert "proved, but vacuous: it promises nothing in practice" in page
    assert "A private classifier" not in page and "<h1>A classifier of digits</h1>" in page
    assert "protected in name only" in page and "protected: may leave" not in page
    assert "Records used" in page and "Records protected" not in page


@pytest.mark.parametrize(
    ("event", "title"),
    [(STEP, "A private classifier of digits"), (STEP.under(Claimed("a paper", "it leaks")), "A classifier of digits")],
)
def test_only_what_is_protected_is_called_private_in_its_title(record, event, title):
    assert f"<h1>{title}</h1>" in render(record, with_event(event))


def test_the_limit_of_the_attack_is_the_run_s_own_curve(record, ledger):
    spent = record.spent(ledger)
    own, alone = spent.meaning.true_positive_rate(0.01), dataclasses.replace(spent, event=None).meaning
    assert own < alone.true_positive_rate(0.01)
    assert words.share_at_most(own) in render(record, ledger)


def test_what_an_audit_refutes_is_neither_green_nor_called_private(record, ledger):
    audit = Audit("One step", Claim(1.0, 1e-5, "x"), 2.5, 4.3, 0.99, "m", "e")
    page = render(dataclasses.replace(record, audits=(audit,), seeds={}), ledger)
    assert "✗</span>Refuted by an audit" in page and '<section class="statement proved"' not in page
    assert "NOT FOR RELEASE: an audit refutes the statement of this run." in page
    assert "An audit refutes that the trained model is differentially private as stated:" in page
    assert "Do not release the model." in page and "<h1>A classifier of digits</h1>" in page
    assert "they are protected" not in page and "Records used" in page
    assert "Refuted" not in render(dataclasses.replace(record, audits=(), seeds={}), ledger)


def test_assumptions_are_spelled_out(record):
    page = render(record, with_event(STEP.under(Assumed("the labels are public"))))
    assert '<section class="statement assumed"' in page
    assert "It holds if: the labels are public." in page


def test_an_unprotected_use_is_not_dressed_up(record):
    page = render(record, with_event(NotPrivate()))
    assert "The trained model is not differentially private:" in page
    assert "Nothing limits what the model may reveal" in page
    assert '<section class="statement open"' in page


def test_an_empty_ledger_says_that_the_data_was_not_used(record):
    assert "The data was not used." in render(record, Ledger())


def test_a_seeded_noise_is_a_warning_and_a_secure_one_is_not(record, ledger, page):
    assert "Anybody who knows the seed" in page
    secure = dataclasses.replace(record, seeds={"sampling": "secure", "noise": "secure"})
    assert "Anybody who knows the seed" not in render(secure, ledger)


def test_too_few_non_members_for_a_rate_are_named(record, ledger, page):
    assert "The non-members are too few for this rate" in page  # 0.1 % of 360 is less than one
    public = dataclasses.replace(record, data=dataclasses.replace(record.data, public=True))
    assert "360 non-members are too few for this rate" in render(public, ledger)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.45, 0.55, "does no better than a coin"),
        (0.51, 0.55, "better than a coin: the whole interval lies above one half"),
        (0.41, 0.45, "does worse than a coin"),
    ],
)
def test_the_verdict_follows_the_interval(record, ledger, low, high, verdict):
    rates = tuple(Rate(rate.fpr, rate.fpr, 0.0, 1.0) for rate in record.attack.rates)
    attack = dataclasses.replace(record.attack, low=low, high=high, rates=rates)
    assert verdict in render(attacked(record, attack), ledger)


def test_the_verdict_does_not_contradict_the_rates_in_the_table(record, ledger):
    """The area of an attack that finds a few records for sure can be a coin's."""
    rates = (Rate(0.001, 0.02, 0.01, 0.03), Rate(0.01, 0.01, 0.005, 0.02))
    attack = dataclasses.replace(record.attack, low=0.49, high=0.51, rates=rates, non_members=10_000)
    page = " ".join(render(attacked(record, attack), ledger).split())
    assert "The attack does no better than a coin" not in page
    assert "at 0.1 % false positives it finds more members than a coin" in page


def test_a_rate_whose_threshold_rests_on_a_few_others_is_not_called_better_than_a_coin(record, ledger):
    """1.9 % found at "1 %" of 180 others was called better than a coin; the true false positive rate may be 3 %."""
    rates = (Rate(0.001, 0.012, 0.0069, 0.0189), Rate(0.01, 0.0188, 0.0124, 0.0272))
    few = dataclasses.replace(record.attack, low=0.49, high=0.51, rates=rates, non_members=180)
    many = dataclasses.replace(few, non_members=180_000)
    said = "it finds more members than a coin, by more than chance explains"
    assert said not in " ".join(render(attacked(record, few), ledger).split())
    assert said in " ".join(render(attacked(record, many), ledger).split())


def test_a_rate_that_the_others_are_too_few_for_is_not_compared_with_the_limit(record, ledger):
    """3 % found "at 0.1 %", with a limit of 0.8 % beside it, reads like a refuted guarantee; 250 others cannot show that."""
    rates = (Rate(0.001, 0.03, 0.005, 0.04), Rate(0.01, 0.03, 0.005, 0.04))
    attack = dataclasses.replace(record.attack, low=0.49, high=0.51, rates=rates, non_members=250)
    page = " ".join(render(attacked(record, attack), ledger).split())
    assert page.count("<td>not comparable*</td>") == 1 and "no rate in the table is surely above a coin" in page
    few = " ".join(render(attacked(record, dataclasses.replace(attack, non_members=1)), ledger).split())
    assert few.count("<td>not comparable*</td>") == 2 and "the others are too few to compare this" in few


def test_an_attack_above_the_limit_is_said_to_be(record, ledger):
    """Of a file with forty copies of each record the page said "allowed as long as it stays below the limit"."""
    said = "The attack does better than the statement allows, by more than chance explains."
    curve = {"false_positive_rate": (0.0, 0.0, 1.0), "true_positive_rate": (0.0, 0.99, 1.0)}
    for others, above in ((2000, True), (2, False)):
        attack = dataclasses.replace(record.attack, low=0.8, high=0.9, members=2000, non_members=others, **curve)
        page = " ".join(render(attacked(record, attack), ledger).split())
        assert (said in page) is above
    assert said not in " ".join(render(record, ledger).split())


def test_every_attack_is_listed_with_date_power_command_and_result(record, ledger):
    (first,) = record.attacks
    rates = tuple(Rate(rate.fpr, rate.fpr, 0.0, 1.0) for rate in first.rates)
    first = dataclasses.replace(first, low=0.45, high=0.55, rates=rates)
    second = dataclasses.replace(
        first,
        name="RMIA <b>",
        auc=0.56,
        low=0.52,
        high=0.6,
        date="2025-02-03T04:05:06+00:00",
        power="The attacker has everything",
        command=("privet", "attack", "runs/a b", "--attack", "rmia"),
    )
    outline = Outline(render(attacked(record, first, second), ledger))
    listed = " ".join(outline.text["attacks"].split())
    for told in (first.name, second.name, "2025-02-03", second.power, "privet attack 'runs/a b' --attack rmia"):
        assert told in listed
    assert "0.560 (0.520 to 0.600)" in listed and f"{first.auc:.3f} (0.450 to 0.550)" in listed
    assert "the figures above are those of RMIA" in listed
    assert listed.index("no better than a coin") < listed.index("better than a coin", listed.index("RMIA <b>", 200))
    page = " ".join(render(attacked(record, first, second), ledger).split())
    assert (
        "the most successful of 2 attacks" in page
        and "Among many attacks, some do better than a coin by chance" in page
    )
    alone = render(record, ledger)
    assert "most successful" not in alone and "The only attack that was made on this run" in alone


def test_an_attack_above_the_limit_is_shown_first_although_another_has_a_larger_area(record, ledger):
    """An attack that is sure of a few records can have a small area, and refute the statement."""
    said = "The attack does better than the statement allows, by more than chance explains."
    (first,) = record.attacks
    usual = dataclasses.replace(first, name="usual", low=0.6, high=0.7, members=2000, non_members=2000)
    curve = {"false_positive_rate": (0.0, 0.0, 1.0), "true_positive_rate": (0.0, 0.99, 1.0)}
    sharp = dataclasses.replace(usual, name="sharp", low=0.4, high=0.5, **curve)
    page = " ".join(render(attacked(record, usual, sharp), ledger).split())
    assert said in page and '<p class="lead">sharp:' in page
    assert said not in " ".join(render(attacked(record, usual), ledger).split())


def test_the_more_attacks_were_tried_the_more_one_must_show(record, ledger):
    limit = record.spent(ledger).meaning.true_positive_rate
    found = 0.5
    attack = dataclasses.replace(
        record.attack,
        members=2000,
        non_members=2000,
        false_positive_rate=(0.0, 0.0, 1.0),
        true_positive_rate=(0.0, found, 1.0),
    )
    most = next(tried for tried in (10**power for power in range(300)) if not above_the_limit(attack, limit, tried))
    assert above_the_limit(attack, limit) and most > 1


def test_the_page_claims_nothing_of_rows_that_was_not_checked(record, ledger):
    made = dataclasses.replace(record, synthetic=SyntheticSummary(rows=10_000, files=("release/data.csv",)))
    page = render(made, ledger)
    assert "is a record." not in page and "internal/quality.md" in page


def test_other_runs_are_those_of_a_date(record, ledger):
    page = " ".join(render(dataclasses.replace(record, others=()), ledger).split())
    assert f"None was found when this one was made, on {record.created[:10]}" in page


def test_a_run_without_attack_or_history_still_has_a_page(record, ledger):
    page = render(dataclasses.replace(record, attacks=(), history=()), ledger)
    assert "The attack" not in page.split("<main>")[1].split("What the statement does not cover")[0]
    assert "The comparison." not in page and "without noise: the training accuracy." in page
    assert [drawing["id"] for drawing in Outline(page).all("svg")] == ["noise"]


def test_everything_a_run_can_have_is_on_the_page(whole_run):
    record = RunRecord.read(whole_run)
    outline = Outline(write_page(whole_run).read_text())
    drawings = [drawing["id"] for drawing in outline.all("svg")]
    assert drawings == ["noise", "roc", "roc-log", "audits", "budget", "accuracy", "loss"]
    (samples,) = outline.all("img")
    assert samples["src"].startswith("data:image/png;base64,") and len(samples["alt"]) > 40
    assert outline.text["together"] == str(together(record, record.open_ledger(whole_run)))
    assert outline.text["samples-table"].split()[-2:] == ["ab", "1x"]
    assert len(outline.all("figcaption")) == len(outline.all("figure")) == len(drawings) + 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "the samples of the run cannot be read"), (b"<svg>", "the samples of the run are no PNG")],
)
def test_samples_that_are_missing_or_something_else_are_named(whole_run, tmp_path, content, sentence):
    for name in ("record.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((whole_run / name).read_bytes())
    if content:
        (tmp_path / "samples.png").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        write_page(tmp_path)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    channels = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_every_text_colour_has_the_contrast_of_wcag_aa(mode):
    palettes = [
        dict(re.findall(r"(--[\w]+): (#[0-9a-f]+)", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S)
    ]
    colours = palettes[["light", "dark", "print"].index(mode)]
    for text in ("--ink", "--soft", "--accent", "--bound", "--proved", "--assumed", "--claimed"):
        for ground in ("--paper", "--card"):
            high, low = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (mode, text, ground)


def test_the_verb_makes_the_page_and_says_what_was_spent(finished_run, ledger, record):
    made = CliRunner().invoke(app, ["report", str(finished_run)])
    assert made.exit_code == 0
    card, page = finished_run / "CARD.md", finished_run / "report.html"
    assert made.stdout == f"{ledger.spent(record.delta)}\nThe card: {card}\nThe page, which is internal: {page}\n"
    assert made.stderr.startswith("NOT FOR RELEASE: the noise was drawn from a seed.")


@pytest.mark.parametrize(
    ("damage", "error"), [(lambda path: path.unlink(), InputError), (lambda path: path.write_text("x\n"), PrivetError)]
)
def test_a_missing_or_damaged_ledger_stops_the_page(finished_run, tmp_path, record, damage, error):
    record.write(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes((finished_run / "ledger.jsonl").read_bytes())
    damage(tmp_path / "ledger.jsonl")
    with pytest.raises(error):
        write_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_ledger_of_another_run_is_not_taken_for_this_ones(record, tmp_path):
    record.write(tmp_path)
    with Ledger(tmp_path / "ledger.jsonl") as other:
        other.record(STEP)
    with pytest.raises(PrivetError, match="expected head"):
        write_page(tmp_path)
