"""Runs that nobody trained: their losses are functions of the config, so that a test can make hundreds of them."""

import math
import random
from collections.abc import Mapping

from aimopt.lab.protocol.run_config import RunConfig
from aimopt.lab.protocol.study import Study
from aimopt.lab.results.run import Run


def invented_runs(study: Study, gains: Mapping[str, float], noise: float = 0.01) -> dict[str, Run]:
    """All runs of a study, by identity. `gains` are by optimizer: how much lower its best loss is, as a ratio.

    The best learning rate is twice the usual one. The seeds share most of their noise, as real ones do.
    """
    runs: dict[str, Run] = {}
    usual = {c.optimizer: study.usual_rate(c) for c in study.contenders}
    while todo := [cell.config for cell in study.cells(runs) if cell.config.identity not in runs]:
        for config in todo:
            distance = math.log(config.lr / (2 * usual[config.optimizer]))
            shared, own = random.Random(config.seed), random.Random(config.identity)
            factor = 1 - gains.get(config.optimizer, 0.0) + 0.05 * distance**2
            loss = factor * math.exp(shared.gauss(0, 3 * noise) + own.gauss(0, noise))
            runs[config.identity] = _invented_run(config, loss)
    return runs


def _invented_run(config: RunConfig, loss: float) -> Run:
    interval = int(config.settings["evaluate_every"])
    history = []
    for step in range(interval, config.steps + 1, interval):
        value = loss * (1 + 3 * math.exp(-6 * step / config.steps))
        history.append({"step": step, "train_loss": value, "valid_loss": value, "seconds": step / 100})
    history[-1]["test_loss"] = loss
    return Run(config=config, status="finished", history=history)
