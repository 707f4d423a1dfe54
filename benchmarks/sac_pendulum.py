"""Our Soft Actor-Critic against stable-baselines3's: the same pendulum, settings, optimizer, budget and evaluation.

Both learn with torch's Adam at 1e-3. The other settings are those of `pendulum-sac` at scale `mini-1`, except the
bounds of the standard deviation, which stable-baselines3 fixes. A return is the mean over ten episodes of the policy's
mode, from the same ten starts for both. Run `python benchmarks/sac_pendulum.py`.
"""

import statistics
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC

from aimopt.lab.protocol.randomness import derive
from aimopt.lab.protocol.task import Context
from aimopt.paper.tasks.sac import Pendulum

STEPS, EVERY, SEEDS = 5000, 1000, 3
TASK = Pendulum.at_scale("mini-1", {"log_std": (-20.0, 2.0), "lr": 1e-3, "evaluation_episodes": 10})


def ours(seed: int) -> list[float]:
    training = TASK.start(
        Context(seed=seed, make_optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=TASK.lr))
    )
    returns = []
    for index in range(STEPS):
        training.step(index)
        if (index + 1) % EVERY == 0:
            returns.append(training.evaluate()["test_return"])
    return returns


def theirs(seed: int) -> list[float]:
    model = SAC(
        "MlpPolicy",
        TASK.environment,
        learning_rate=TASK.lr,
        buffer_size=TASK.replay,
        learning_starts=TASK.warmup,
        batch_size=TASK.batch_size,
        tau=TASK.target_rate,
        gamma=TASK.discount,
        policy_kwargs={"net_arch": [TASK.width, TASK.width]},
        seed=seed,
        device="cpu",
    )
    model.learn(TASK.warmup)
    returns = []
    for _ in range(STEPS // EVERY):
        model.learn(EVERY, reset_num_timesteps=False)
        returns.append(_evaluate(lambda observation: model.predict(observation, deterministic=True)[0], seed))
    return returns


def _evaluate(act: Callable[[np.ndarray], np.ndarray], seed: int) -> float:
    """As `training.evaluate`, in a loop of gymnasium."""
    environment = gymnasium.make(TASK.environment)
    total = 0.0
    for number in range(TASK.evaluation_episodes):
        observation, ended = environment.reset(seed=derive(seed, "evaluation", "test", number))[0], False
        while not ended:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
    return total / TASK.evaluation_episodes


def main() -> None:
    torch.set_num_threads(1)
    print(f"return on {TASK.environment} over the number of updates, {SEEDS} seeds: mean ± standard deviation")
    print(f"  {'':<20}" + "".join(f"{steps:>14}" for steps in range(EVERY, STEPS + 1, EVERY)))
    for name, run in (("aimopt", ours), ("stable-baselines3", theirs)):
        columns = zip(*(run(seed) for seed in range(SEEDS)), strict=True)
        cells = (f"{statistics.mean(column):.0f} ± {statistics.stdev(column):.0f}" for column in columns)
        print(f"  {name:<20}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
