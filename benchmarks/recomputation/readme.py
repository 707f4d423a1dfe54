"""What README's table of settings and the sentences around it hold: numbers of several pages."""

import re

from recomputation.archive import Archive
from recomputation.conditions import gains_of_radar
from recomputation.explored import CONFIRMED, gains_over_radar
from recomputation.mini import CONTROL, leads, over_all_settings, verdicts_of
from recomputation.pages import Page, Recomputed, Text
from recomputation.verdicts import Decision

OF_THE_PAPER = ("AdamW", "NAdam", "Lion", "Adan", "AdaBelief", "RAD")


def in_short(page: Page, match: re.Match[str]) -> Recomputed:
    """The table of settings; all of them together; longer training; rivals; what was confirmed to be better."""
    tuned = over_all_settings(page.archive, "RADAR(tune='beta1')", CONTROL)
    phrases: list[Text] = [("RADAR is ahead on ", tuned.ahead, " of ", tuned.pairs, " pairs")]
    for condition in ("1,000 steps", "3,000 steps"):
        gains = gains_of_radar(page.archive, condition)
        phrases.append(("by ", gains[0], " % and ", gains[1], " %"))
    phrases += [_over_rivals(page.archive), _without_warmup(page.archive)]
    soap = [gains_over_radar(page.archive, task)["SOAP"] for task in CONFIRMED]
    phrases.append(("SOAP by ", soap[0], " % on CIFAR-100 and ", soap[1], " % on Qwen"))
    return Recomputed(leads(page, match).rows, phrases)


def _over_rivals(archive: Archive) -> Text:
    """On how many pairs RADAR is ahead of the paper's optimizers; where it has the best mean of them."""
    for task in ("cifar10-vit", "wikitext103-gpt2", "fineweb-qwen"):
        verdicts = _against_radar(archive, task)
        assert all(verdicts[label].gain < 0 for label in OF_THE_PAPER), f"RADAR has the best mean on {task}"
    assert _against_radar(archive, "wikitext2-finetune")["NAdam"].verdict == "better"
    tests = {label: over_all_settings(archive, label, "RADAR") for label in OF_THE_PAPER}
    nadam = tests.pop("NAdam")
    assert all(test.ahead == 0 for test in tests.values()), "RADAR is ahead of them on every pair"
    return ("all ", nadam.pairs, " pairs of setting and seed, and of NAdam on ", nadam.pairs - nadam.ahead, " (")


def _without_warmup(archive: Archive) -> Text:
    """What the exact bias correction gains; fine-tuning has no warm-up by itself."""
    studies = [
        archive.study(task, name=name, reference="RADAR")
        for task, name in (("wikitext103-gpt2", "no warm-up"), ("wikitext2-finetune", "bias correction"))
    ]
    gains = [100 * verdicts_of(archive, study)["RADAR(bias_correction='exact')"].gain for study in studies]
    return ("default by ", gains[0], " % on GPT-2 and by ", gains[1], " % in fine-tuning")


def _against_radar(archive: Archive, task: str) -> dict[str, Decision]:
    return verdicts_of(archive, archive.study(task, name="compare", reference="RADAR"))
