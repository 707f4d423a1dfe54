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
    phrases.append(("best mean on GPT-2, by ", _least_lead_over_the_papers(page.archive), " % and more"))
    images, fine_tuning = (_against_radar(page.archive, task) for task in ("cifar10-vit", "wikitext2-finetune"))
    soap = [gains_over_radar(page.archive, task)["SOAP"] for task in CONFIRMED]
    phrases.append(("SOAP by ", soap[0], " % on CIFAR-100 and ", soap[1], " % on Qwen"))
    assert all(images[label].gain < 0 for label in OF_THE_PAPER), "RADAR has the best mean of the paper's optimizers"
    ahead = [label for label in OF_THE_PAPER if fine_tuning[label].gain > 0]
    assert ahead == ["NAdam"], "of the paper's optimizers only NAdam is ahead in fine-tuning"
    return Recomputed(leads(page, match).rows, phrases)


def _least_lead_over_the_papers(archive: Archive) -> float:
    """In per cent, over the one that is closest."""
    verdicts = _against_radar(archive, "wikitext103-gpt2")
    return min(-100 * verdicts[label].gain for label in OF_THE_PAPER)


def _against_radar(archive: Archive, task: str) -> dict[str, Decision]:
    return verdicts_of(archive, archive.study(task, name="compare", reference="RADAR"))
