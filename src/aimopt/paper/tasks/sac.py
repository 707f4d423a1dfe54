"""Soft Actor-Critic (Haarnoja et al. 2018): two critics, a policy and a temperature, with one optimizer each.

A step is an iteration of the paper: one step in the environment, and one update on a batch from the replay buffer. The
warm-up comes before the first step; its actions are uniformly random. Every evaluation uses the policy's mode and the
same initial states. Two evaluations of a run, or two runs with one seed, then differ only by what was learned:

    task = Pendulum.at_scale("mini")
    training = task.start(Context(seed=0, make_optimizer=lambda model: create("RADAR", model, lr=task.lr, gamma=0.01)))
    training.step(0)                   # the loss of the critics
    training.evaluate()                # {"valid_return": -1216.3, "test_return": -1189.0}

The paper reports a "total average return" and does not say at which step. Here the measure is `test_return` at the end
of training. The report also gives the other common definition, the best evaluation in the last tenth of training. The
paper uses GOPS and gives some of its settings. The others are those of GOPS's example for MuJoCo: the bounds of the
standard deviation, the initial temperature, and that all gradients are computed before the first is applied.
"""

import copy
import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, softplus

from aimopt.lab.protocol.optimizers import evaluating, load_state
from aimopt.lab.protocol.randomness import derive, generator
from aimopt.lab.protocol.task import Context, Measure, Task
from aimopt.paper.tasks.experience import Episodes, Replay, simulators


@dataclass(frozen=True, kw_only=True)
class SoftActorCritic(Task):
    """Soft Actor-Critic in an environment of gymnasium with continuous actions; the defaults are the paper's."""

    score: ClassVar[Measure] = Measure("valid_return", "validation return", better="higher")
    measure: ClassVar[Measure] = Measure("test_return", "total average return", better="higher")
    packages: ClassVar[tuple[str, ...]] = ("gymnasium", "mujoco")
    margin: ClassVar[float] = 0.1  # of the size of the reference's mean return; seeds differ far more than in losses

    lr: float = 1e-3
    steps: int = 1_000_000
    evaluate_every: int = 10_000
    log_every: int = 1000
    environment: str
    environment_steps: int = 1  # per update; the paper does not say, GOPS's example has 20
    warmup: int = 10_000  # environment steps with random actions
    width: int = 256  # of the two hidden layers in every network
    batch_size: int = 256
    replay: int = 1_000_000  # number of transitions in the replay buffer
    discount: float = 0.99
    target_rate: float = 0.005  # τ: how fast the target critics follow
    log_std: tuple[float, float] = (-20.0, 0.5)  # lower and upper bound; Haarnoja et al. have 2 as upper bound
    temperature: float = math.e  # initial value; stable-baselines3 has 1
    evaluation_episodes: int = 10  # per evaluation for the search, and the same number for the report

    def checksum(self) -> str:
        gymnasium, mujoco = simulators()
        return hashlib.sha256(f"{self.environment} {gymnasium.__version__} {mujoco.__version__}".encode()).hexdigest()

    def start(self, context: Context) -> "SoftActorCriticTraining":
        return SoftActorCriticTraining(self, context)


# A hundredth of the steps, and networks that a CPU trains in a minute; they need a larger learning rate.
MINI_1: Mapping[str, Any] = {
    "lr": 3e-3,
    "steps": 8000,
    "evaluate_every": 500,
    "log_every": 100,
    "warmup": 1000,
    "width": 64,
    "batch_size": 128,
    "replay": 100_000,
    "temperature": 1.0,
    "evaluation_episodes": 3,
}
# Twice as long, so that AdamW moves forward.
MINI: Mapping[str, Any] = {**MINI_1, "steps": 15_000, "evaluate_every": 1250, "evaluation_episodes": 5}


@dataclass(frozen=True, kw_only=True)
class HalfCheetah(SoftActorCritic):
    """Run forward on two legs; always 1,000 steps per episode."""

    title: ClassVar[str] = "HalfCheetah-v4, SAC"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(("mini", "mini-1"), "HalfCheetah-v4, short SAC")
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mini": MINI, "mini-1": MINI_1, "paper": {}}

    environment: str = "HalfCheetah-v4"


@dataclass(frozen=True, kw_only=True)
class Walker2d(SoftActorCritic):
    """Walk forward without falling; at most 1,000 steps per episode."""

    title: ClassVar[str] = "Walker2d-v4, SAC"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(("mini", "mini-1"), "Walker2d-v4, short SAC")
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mini": MINI, "mini-1": MINI_1, "paper": {}}

    environment: str = "Walker2d-v4"


@dataclass(frozen=True, kw_only=True)
class Pendulum(SoftActorCritic):
    """Swing a pendulum up and hold it; not in the paper, but learned within a minute."""

    title: ClassVar[str] = "Pendulum-v1, SAC"
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mini": {**MINI, "steps": 5000, "evaluate_every": 250, "evaluation_episodes": 10},
        "mini-1": {**MINI_1, "steps": 5000, "evaluate_every": 250},
    }

    environment: str = "Pendulum-v1"


class Policy(nn.Module):
    """A Gaussian for every state, squashed by tanh: actions lie in (−1, 1)."""

    def __init__(self, observations: int, actions: int, width: int, log_std: tuple[float, float]):
        super().__init__()
        self.network, self.log_std = network(observations, width, 2 * actions), log_std

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the standard deviation, before squashing."""
        mean, log_std = self.network(observation).chunk(2, -1)
        return mean, log_std.clamp(*self.log_std)

    def mode(self, observation: Tensor) -> Tensor:
        """The action at the mean of the Gaussian."""
        return self(observation)[0].tanh()

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action for standard normal noise, and the logarithm of its probability density."""
        mean, log_std = self(observation)
        unsquashed = mean + log_std.exp() * noise
        log_gaussian = -noise.square() / 2 - log_std - math.log(2 * math.pi) / 2
        log_slope = 2 * (math.log(2) - unsquashed - softplus(-2 * unsquashed))  # log(1 − tanh²), also where tanh is 1
        return unsquashed.tanh(), (log_gaussian - log_slope).sum(-1)


class Agent(nn.Module):
    """All parameters that are learned."""

    def __init__(self, task: SoftActorCritic, observations: int, actions: int):
        super().__init__()
        self.q1, self.q2 = (network(observations + actions, task.width, 1) for _ in range(2))
        self.policy = Policy(observations, actions, task.width, task.log_std)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(task.temperature)))

    def models(self) -> list[nn.Module]:
        """One model per optimizer; their parameters have the same names as here."""
        networks = {"q1": self.q1, "q2": self.q2, "policy": self.policy}
        temperature = nn.ParameterDict({"log_temperature": self.log_temperature})
        return [*(nn.ModuleDict({name: network}) for name, network in networks.items()), temperature]


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers."""
    hidden = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def values(critics: Iterable[nn.Module], observation: Tensor, action: Tensor) -> list[Tensor]:
    """The value of each action, by every critic."""
    pair = torch.cat((observation, action), -1)
    return [critic(pair).squeeze(-1) for critic in critics]


class SoftActorCriticTraining:
    """Soft Actor-Critic in training."""

    def __init__(self, task: SoftActorCritic, context: Context):
        if context.processes > 1:
            raise ValueError(
                f"Soft Actor-Critic runs in one process, not in {context.processes}; use one process per run"
            )
        self.task, self.context = task, context
        self.episodes, self.episode = Episodes(task.environment), 0
        self._begin_episode()
        observations, self.actions = self.episodes.sizes
        torch.manual_seed(derive(context.seed, "weights"))
        self.agent = Agent(task, observations, self.actions).to(context.device)
        self.critics = nn.ModuleList([self.agent.q1, self.agent.q2])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_params: list[Tensor] = list(self.targets.parameters())
        self.critic_params: list[Tensor] = list(self.critics.parameters())
        self.optimizers: Sequence[torch.optim.Optimizer] = [
            context.make_optimizer(model) for model in self.agent.models()
        ]
        self.replay = Replay(task.replay, observations, self.actions, context.device)
        self.evaluations: list[Episodes] = []

    def step(self, index: int) -> Tensor:
        while self.replay.count < self.task.warmup:
            self._act()
        for _ in range(self.task.environment_steps):
            self._act()
        return self._update(generator(self.context.seed, "step", index))

    def _begin_episode(self) -> None:
        self.episodes.begin(derive(self.context.seed, "episode", self.episode))

    @torch.inference_mode()
    def _act(self) -> None:
        """Take one step in the environment and add it to the replay buffer."""
        draws = generator(self.context.seed, "action", self.replay.count)
        observation = self.episodes.observation
        if self.replay.count < self.task.warmup:
            action = torch.rand(self.actions, generator=draws) * 2 - 1
        else:
            noise = torch.randn(self.actions, generator=draws).to(self.context.device)
            action = self.agent.policy.sample(observation.to(self.context.device), noise)[0].cpu()
        reward, terminated = self.episodes.step(action)
        self.replay.add(torch.cat((observation, action, self.episodes.observation, torch.tensor((reward, terminated)))))
        if self.episodes.over:
            self.episode += 1
            self._begin_episode()

    def _update(self, draws: torch.Generator) -> Tensor:
        """One step per optimizer, with all gradients at the same parameters; returns the loss of the critics."""
        task, agent = self.task, self.agent
        observation, action, next_observation, reward, terminated = self.replay.sample(task.batch_size, draws)
        noise = torch.randn(2, task.batch_size, self.actions, generator=draws).to(self.context.device)
        for optimizer in self.optimizers:
            optimizer.zero_grad()

        target = self._critic_target(next_observation, reward, terminated, noise[0])
        first, second = values(self.critics, observation, action)
        critic_loss = mse_loss(first, target) + mse_loss(second, target)
        critic_loss.backward()

        proposed, log_probability = agent.policy.sample(observation, noise[1])
        value = torch.minimum(*values(self.critics, observation, proposed))
        policy_loss = (agent.log_temperature.detach().exp() * log_probability - value).mean()
        policy_loss.backward(inputs=list(agent.policy.parameters()))

        entropy = -log_probability.detach().mean()
        agent.log_temperature.grad = entropy + self.actions  # of log α·(entropy − target); the target is −1 per action

        for optimizer in self.optimizers:
            optimizer.step()
        torch._foreach_lerp_(self.target_params, self.critic_params, task.target_rate)
        return critic_loss.detach()

    @torch.no_grad()
    def _critic_target(self, next_observation: Tensor, reward: Tensor, terminated: Tensor, noise: Tensor) -> Tensor:
        """The target of the critics: the reward plus, if the environment has not ended, the next state's soft value."""
        action, log_probability = self.agent.policy.sample(next_observation, noise)
        value = torch.minimum(*values(self.targets, next_observation, action))  # a single critic overestimates
        soft_value = value - self.agent.log_temperature.exp() * log_probability
        return reward + self.task.discount * (1 - terminated) * soft_value

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        count = self.task.evaluation_episodes
        starts = [(split, number) for split in ("valid", "test") for number in range(count)]
        if not self.evaluations:
            self.evaluations = [Episodes(self.task.environment) for _ in starts]
        for episodes, start in zip(self.evaluations, starts, strict=True):
            episodes.begin(derive(self.context.seed, "evaluation", *start))
        returns = [0.0] * len(starts)
        with evaluating(self.optimizers):
            while running := [i for i, episodes in enumerate(self.evaluations) if not episodes.over]:
                observations = torch.stack([self.evaluations[i].observation for i in running])
                actions = self.agent.policy.mode(observations.to(self.context.device)).cpu()
                for i, action in zip(running, actions, strict=True):
                    returns[i] += self.evaluations[i].step(action)[0]
        return {"valid_return": statistics.fmean(returns[:count]), "test_return": statistics.fmean(returns[count:])}

    def weights(self) -> Mapping[str, Tensor]:
        return self.agent.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "agent": self.agent.state_dict(),
            "targets": self.targets.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "replay": self.replay.state_dict(),
            "episodes": self.episodes.state_dict(),
            "episode": self.episode,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.agent.load_state_dict(state["agent"])
        self.targets.load_state_dict(state["targets"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            load_state(optimizer, saved)
        self.replay.load_state_dict(state["replay"])
        self.episodes.load_state_dict(state["episodes"])
        self.episode = state["episode"]
