"""Soft Actor-Critic: its formulas against torch's distributions, returns against gymnasium, and exact resumption."""

import io
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

import aimopt
from aimopt.lab.protocol import optimizers
from aimopt.lab.protocol.randomness import derive, generator
from aimopt.lab.protocol.task import Context
from aimopt.lab.protocol.tasks import find
from aimopt.paper.protocols import PROTOCOLS
from aimopt.paper.tasks.experience import Episodes, Replay
from aimopt.paper.tasks.sac import (
    Agent,
    HalfCheetah,
    Pendulum,
    Policy,
    SoftActorCritic,
    SoftActorCriticTraining,
    Walker2d,
    values,
)

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

SMALL: dict[str, Any] = {"width": 16, "batch_size": 8, "warmup": 20, "evaluation_episodes": 2}
TASKS = [Pendulum, HalfCheetah, Walker2d]


def begin(task: SoftActorCritic, seed: int = 0, optimizer: str = "RADAR", lr: float | None = None) -> Any:
    options = optimizers.resolved(optimizer, PROTOCOLS["pendulum-sac"]["mini"].options(optimizer), {})
    rate = task.lr if lr is None else lr
    build = lambda model: optimizers.make(optimizer, model, lr=rate, options=options)  # noqa: E731
    return SoftActorCriticTraining(task, Context(seed=seed, make_optimizer=build))


def squashed(policy: Policy, observation: Tensor) -> TransformedDistribution:
    mean, log_std = policy(observation)
    return TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)])


def test_log_probability_is_that_of_a_squashed_gaussian() -> None:
    torch.manual_seed(0)
    policy = Policy(3, 2, 16, (-20.0, 0.5)).double()
    observation, noise = torch.randn(64, 3).double(), torch.randn(64, 2).double()
    action, log_probability = policy.sample(observation, noise)
    mean, log_std = policy(observation)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_probability, squashed(policy, observation).log_prob(action))


def test_log_probability_is_finite_where_tanh_rounds_to_one() -> None:
    policy = Policy(1, 1, 4, (-20.0, 0.5))
    action, log_probability = policy.sample(torch.zeros(1, 1), torch.full((1, 1), 40.0))
    assert action.item() == 1.0
    assert log_probability.isfinite().all()


def test_target_continues_after_a_time_limit_and_stops_at_an_end() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL))
    next_observation, reward, noise = torch.randn(2, 3), torch.tensor([1.0, 2.0]), torch.randn(2, 1)
    target = training._critic_target(next_observation, reward, torch.tensor([0.0, 1.0]), noise)
    action, log_probability = training.agent.policy.sample(next_observation, noise)
    value = torch.stack(values(training.targets, next_observation, action)).amin(0)
    expected = 1.0 + 0.99 * (value[0] - training.task.temperature * log_probability[0])
    torch.testing.assert_close(target, torch.stack((expected.detach(), torch.tensor(2.0))))


def test_a_time_limit_is_not_stored_as_an_end() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL | {"warmup": 250}))
    training.step(0)
    observation, _, next_observation, _, terminated = training.replay.filled.split(training.replay.columns, -1)
    assert training.episode == 1
    assert not terminated.any()
    assert torch.equal(next_observation[:199], observation[1:200])
    assert not torch.equal(next_observation[199], observation[200])  # the last of an episode, the first of the next


def test_a_fall_is_stored_as_an_end() -> None:
    training = begin(Walker2d.at_scale("mini", SMALL | {"warmup": 300}))
    training.step(0)
    terminated = training.replay.filled[:, -1]
    assert terminated.sum() == training.episode > 0


def test_gradients_are_those_of_the_three_losses() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL), optimizer="SGDM", lr=0.0)
    training.step(0)
    loss = training._update(generator(0, "again"))

    draws, agent = generator(0, "again"), training.agent
    observation, action, next_observation, reward, terminated = training.replay.sample(8, draws)
    noise = torch.randn(2, 8, 1, generator=draws)
    target = training._critic_target(next_observation, reward, terminated, noise[0])
    critic_loss = sum(((value - target) ** 2).mean() for value in values(training.critics, observation, action))
    proposed = agent.policy.sample(observation, noise[1])[0]
    log_probability = squashed(agent.policy, observation).log_prob(proposed)
    value = torch.stack(values(training.critics, observation, proposed)).amin(0)
    policy_loss = (agent.log_temperature.exp().detach() * log_probability - value).mean()
    temperature_loss = -(agent.log_temperature * (log_probability.detach() - 1)).mean()

    torch.testing.assert_close(loss, critic_loss)
    for part, expected in (
        (training.critics, critic_loss),
        (agent.policy, policy_loss),
        (torch.nn.ParameterList([agent.log_temperature]), temperature_loss),
    ):
        for p, gradient in zip(part.parameters(), torch.autograd.grad(expected, list(part.parameters())), strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-3, atol=1e-5)


def test_targets_follow_the_critics() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL | {"target_rate": 0.25}))
    before = [p.clone() for p in training.targets.parameters()]
    training.step(0)
    for target, start, critic in zip(training.targets.parameters(), before, training.critics.parameters(), strict=True):
        torch.testing.assert_close(target, 0.75 * start + 0.25 * critic)


def test_replay_forgets_the_oldest() -> None:
    replay = Replay(3, 1, 1, torch.device("cpu"))
    for number in range(5):
        replay.add(torch.full((5,), float(number)))
    assert sorted(replay.filled[:, 0].tolist()) == [2, 3, 4]


@pytest.mark.parametrize("task", TASKS)
def test_returns_are_those_of_gymnasiums_own_loop(task: type[SoftActorCritic]) -> None:
    training = begin(task.at_scale("mini", SMALL))
    world = gymnasium.wrappers.TimeLimit(
        training.episodes.environment, gymnasium.spec(training.task.environment).max_episode_steps
    )
    returns = []
    for number in range(2):
        observation, _ = world.reset(seed=derive(0, "evaluation", "test", number))
        total, over = 0.0, False
        while not over:
            action = training.agent.policy.mode(torch.from_numpy(observation).float()).detach().numpy()
            observation, reward, terminated, truncated, _ = world.step(action * world.action_space.high)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert training.evaluate()["test_return"] == pytest.approx(sum(returns) / 2, rel=1e-3)


def run(training: Any, steps: range) -> list[float]:
    return [training.step(index).item() for index in steps]


@pytest.mark.parametrize("task", TASKS)
def test_a_resumed_run_continues_exactly(task: type[SoftActorCritic]) -> None:
    settings = SMALL | {"replay": 40}  # which is full before the end
    straight, saved, resumed = (begin(task.at_scale("mini", settings)) for _ in range(3))
    losses = run(straight, range(60))
    assert run(saved, range(30)) == losses[:30]
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    saved.step(30)  # what goes on after a state was taken leaves the state alone
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert run(resumed, range(30, 60)) == losses[30:]
    assert torch.equal(resumed.replay.filled, straight.replay.filled)
    assert resumed.evaluate() == straight.evaluate()


def test_a_run_is_a_function_of_its_seed() -> None:
    first, again, other = (begin(Pendulum.at_scale("mini", SMALL), seed=seed) for seed in (0, 0, 1))
    assert run(first, range(20)) == run(again, range(20)) != run(other, range(20))
    assert first.evaluate() == again.evaluate() != other.evaluate()


@pytest.mark.nightly
def test_pendulum_is_learned() -> None:
    training = begin(Pendulum.at_scale("mini"))
    run(training, range(3000))
    assert training.evaluate()["test_return"] > -700  # random actions: -1200, untrained networks: less


def test_a_diverged_policy_has_no_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = begin(HalfCheetah.at_scale("mini", SMALL))
    with torch.no_grad():
        for p in training.agent.parameters():
            p.fill_(math.nan)
    assert math.isnan(training.step(0))
    assert all(math.isnan(value) for value in training.evaluate().values())
    assert not list(tmp_path.iterdir())  # MuJoCo writes what it complains of into the current folder


def test_the_networks_are_the_papers() -> None:
    task = find("halfcheetah-sac").at_scale("paper")
    assert isinstance(task, HalfCheetah)
    with torch.device("meta"):
        counts = [sum(p.numel() for p in model.parameters()) for model in Agent(task, 17, 6).models()]
    assert counts == [72_193, 72_193, 73_484, 1]


def test_each_part_has_one_optimizer() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL))
    names = [optimizer.param_groups[0]["param_names"] for optimizer in training.optimizers]
    assert [{name.partition(".")[0] for name in part} for part in names] == [
        {"q1"},
        {"q2"},
        {"policy"},
        {"log_temperature"},
    ]
    assert sorted(name for part in names for name in part) == sorted(training.weights())


def test_hidden_matrices_are_stepped_by_a_hybrid() -> None:
    training = begin(Pendulum.at_scale("mini", SMALL), optimizer="Muon")
    run(training, range(2))
    by_geometry: dict[str, list[str]] = {}
    for group in (group for optimizer in training.optimizers for group in optimizer.param_groups):
        by_geometry.setdefault(group["geometry"], []).extend(group["param_names"])
    prefixes = ("q1", "q2", "policy.network")
    assert by_geometry["Spectral"] == [f"{prefix}.{layer}.weight" for prefix in prefixes for layer in (0, 2)]
    assert sorted(name for names in by_geometry.values() for name in names) == sorted(training.weights())


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install 'aimopt\[rl\]'"):
        Pendulum.at_scale("mini").checksum()


def test_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="continuous"):
        Episodes("CartPole-v1")
    with pytest.raises(ValueError, match="one process"):
        Pendulum.at_scale("mini").start(
            Context(seed=0, make_optimizer=lambda model: aimopt.create("RADAR", model), processes=2)
        )
