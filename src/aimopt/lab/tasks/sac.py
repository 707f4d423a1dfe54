"""Soft Actor-Critic (Haarnoja et al. 2018): two critics, a policy and a temperature, each with an optimizer of its own.

A step is an iteration of the paper: one step in the environment, one update on a batch of what was seen so far. The
first step is preceded by the warm-up, whose actions are uniform. An evaluation follows the policy's mode from the same
starts every time, so that two evaluations of a run, and the runs of one seed, differ by what was learned:

    task = Pendulum.at("mini")
    training = task.start(Context(seed=0, build=lambda named: RADAR(named, lr=task.lr, gamma=0.01)))
    training.step(0)                   # the loss of the critics
    training.evaluate()                # {"valid_return": -1216.3, "test_return": -1189.0}

The paper reports a "total average return" and does not say of when. Here `test_return` at the end of training is the
measure; the report also gives the other common reading, the best evaluation of the last tenth. It plugs optimizers
into GOPS and names some of its settings; for the rest GOPS's example for MuJoCo decides (the bounds of the standard
deviation, the first temperature, gradients that are all taken before the first of them is applied).
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

from aimopt.lab.optimizers import load_state
from aimopt.lab.randomness import derive, generator
from aimopt.lab.tasks.experience import Episodes, Replay, simulators
from aimopt.lab.tasks.task import Context, Measure, Task


@dataclass(frozen=True, kw_only=True)
class SoftActorCritic(Task):
    """An environment of gymnasium with continuous actions, learned by Soft Actor-Critic; the paper's settings."""

    score: ClassVar[Measure] = Measure("valid_return", "validation return", better="higher")
    measure: ClassVar[Measure] = Measure("test_return", "total average return", better="higher")
    extra: ClassVar[str] = "rl"

    lr: float = 1e-3
    steps: int = 1_000_000
    search_steps: int = 100_000
    evaluate_every: int = 10_000
    log_every: int = 1000
    grid: tuple[float, ...] = (1.0,)  # the paper searched no learning rate here
    environment: str
    environment_steps: int = 1  # before an update; the paper does not say, GOPS's example takes 20
    warmup: int = 10_000  # environment steps with random actions
    width: int = 256  # of both hidden layers of every network
    batch_size: int = 256
    replay: int = 1_000_000  # transitions that are remembered
    discount: float = 0.99
    target_rate: float = 0.005  # τ: how fast the target critics follow
    log_std: tuple[float, float] = (-20.0, 0.5)  # the bounds for the policy's; Haarnoja et al. end at 2
    temperature: float = math.e  # at the start; stable-baselines3 has 1
    gamma: float = 0.01  # RADAR's
    weight_decay: float = 0.0  # the paper does not say; decay would pull the temperature to 1
    evaluation_episodes: int = 10  # for the search, and as many others for the report

    def options(self, optimizer: str) -> dict[str, Any]:
        return {"weight_decay": self.weight_decay, "gamma": self.gamma}

    def checksum(self) -> str:
        gymnasium, mujoco = simulators()
        return hashlib.sha256(f"{self.environment} {gymnasium.__version__} {mujoco.__version__}".encode()).hexdigest()

    def start(self, context: Context) -> "SoftActorCriticTraining":
        return SoftActorCriticTraining(self, context)


PAPER: Mapping[str, Any] = {"seeds": tuple(range(10))}

# A hundredth of the budget, and networks that a processor trains in a minute; they take a larger learning rate.
MINI: Mapping[str, Any] = {
    "lr": 3e-3,
    "steps": 8000,
    "search_steps": 4000,
    "evaluate_every": 500,
    "log_every": 100,
    "warmup": 1000,
    "width": 64,
    "batch_size": 128,
    "replay": 100_000,
    "temperature": 1.0,
    "evaluation_episodes": 3,
}


@dataclass(frozen=True, kw_only=True)
class HalfCheetah(SoftActorCritic):
    """Run forward on two legs; 1,000 steps an episode, always."""

    title: ClassVar[str] = "HalfCheetah-v4, SAC"
    titles: ClassVar[Mapping[str, str]] = {"mini": "HalfCheetah-v4, short SAC"}
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mini": MINI, "paper": PAPER}
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (9569, 926),
        "RAD": (8996, 1025),
        "Adam": (8557, 939),
        "AdamW": (8828, 790),
        "NAdam": (8582, 1493),
        "Adan": (8127, 559),
        "AdaBelief": (9194, 828),
        "Lion": (8251, 828),
    }

    environment: str = "HalfCheetah-v4"


@dataclass(frozen=True, kw_only=True)
class Walker2d(SoftActorCritic):
    """Walk forward without falling; at most 1,000 steps an episode."""

    title: ClassVar[str] = "Walker2d-v4, SAC"
    titles: ClassVar[Mapping[str, str]] = {"mini": "Walker2d-v4, short SAC"}
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mini": MINI, "paper": PAPER}
    published: ClassVar[Mapping[str, tuple[float, float]]] = {
        "RADAR": (3580, 282),
        "RAD": (2687, 932),
        "Adam": (2798, 1117),
        "AdamW": (3196, 1124),
        "NAdam": (3362, 776),
        "Adan": (2561, 1318),
        "AdaBelief": (2729, 980),
        "Lion": (2877, 1025),
    }

    environment: str = "Walker2d-v4"


@dataclass(frozen=True, kw_only=True)
class Pendulum(SoftActorCritic):
    """Swing a pendulum up and hold it; not in the paper, but learned within a minute."""

    title: ClassVar[str] = "Pendulum-v1, SAC"
    scales: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mini": {**MINI, "steps": 5000, "search_steps": 2500, "evaluate_every": 250}
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
        """The action that the mean becomes."""
        return self(observation)[0].tanh()

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action that standard normal noise becomes, and the logarithm of its probability density."""
        mean, log_std = self(observation)
        before = mean + log_std.exp() * noise
        gaussian = -noise.square() / 2 - log_std - math.log(2 * math.pi) / 2
        slope = 2 * (math.log(2) - before - softplus(-2 * before))  # log(1 − tanh²), where tanh rounds to 1 too
        return before.tanh(), (gaussian - slope).sum(-1)


class Agent(nn.Module):
    """All that is learned."""

    def __init__(self, task: SoftActorCritic, observations: int, actions: int):
        super().__init__()
        self.q1, self.q2 = (network(observations + actions, task.width, 1) for _ in range(2))
        self.policy = Policy(observations, actions, task.width, task.log_std)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(task.temperature)))

    def parts(self) -> list[list[tuple[str, Tensor]]]:
        """The named parameters of each optimizer."""
        named = list(self.named_parameters())
        return [
            [(name, p) for name, p in named if name.startswith(part)]
            for part in ("q1.", "q2.", "policy.", "log_temperature")
        ]


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    hidden = (nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def values(critics: Iterable[nn.Module], observation: Tensor, action: Tensor) -> list[Tensor]:
    """What each critic says of actions."""
    pair = torch.cat((observation, action), -1)
    return [critic(pair).squeeze(-1) for critic in critics]


class SoftActorCriticTraining:
    """Soft Actor-Critic in training."""

    def __init__(self, task: SoftActorCritic, context: Context):
        if context.processes > 1:
            raise ValueError(
                f"Soft Actor-Critic runs in one process, not in {context.processes}; start one for each seed"
            )
        self.task, self.context = task, context
        self.episodes, self.episode = Episodes(task.environment), 0
        self._begin()
        observations, self.actions = self.episodes.sizes
        torch.manual_seed(derive(context.seed, "weights"))
        self.agent = Agent(task, observations, self.actions).to(context.device)
        self.critics = nn.ModuleList([self.agent.q1, self.agent.q2])
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.followers: list[Tensor] = list(self.targets.parameters())
        self.followed: list[Tensor] = list(self.critics.parameters())
        self.optimizers: Sequence[torch.optim.Optimizer] = [context.build(part) for part in self.agent.parts()]
        self.replay = Replay(task.replay, observations, self.actions, context.device)
        self.evaluations: list[Episodes] = []

    def step(self, index: int) -> Tensor:
        while self.replay.count < self.task.warmup:
            self._act()
        for _ in range(self.task.environment_steps):
            self._act()
        return self._update(generator(self.context.seed, "step", index))

    def _begin(self) -> None:
        self.episodes.begin(derive(self.context.seed, "episode", self.episode))

    @torch.inference_mode()
    def _act(self) -> None:
        """Take a step in the environment and remember it."""
        draws = generator(self.context.seed, "action", self.replay.count)
        seen = self.episodes.observation
        if self.replay.count < self.task.warmup:
            action = torch.rand(self.actions, generator=draws) * 2 - 1
        else:
            noise = torch.randn(self.actions, generator=draws).to(self.context.device)
            action = self.agent.policy.sample(seen.to(self.context.device), noise)[0].cpu()
        reward, terminated = self.episodes.step(action)
        self.replay.add(torch.cat((seen, action, self.episodes.observation, torch.tensor((reward, terminated)))))
        if self.episodes.over:
            self.episode += 1
            self._begin()

    def _update(self, draws: torch.Generator) -> Tensor:
        """One step of each optimizer, all from gradients at the same parameters; gives the loss of the critics."""
        task, agent = self.task, self.agent
        observation, action, following, reward, terminated = self.replay.sample(task.batch_size, draws)
        noise = torch.randn(2, task.batch_size, self.actions, generator=draws).to(self.context.device)
        for optimizer in self.optimizers:
            optimizer.zero_grad()

        goal = self._goal(following, reward, terminated, noise[0])
        first, second = values(self.critics, observation, action)
        critic_loss = mse_loss(first, goal) + mse_loss(second, goal)
        critic_loss.backward()

        proposed, log_probability = agent.policy.sample(observation, noise[1])
        worth = torch.minimum(*values(self.critics, observation, proposed))
        policy_loss = (agent.log_temperature.detach().exp() * log_probability - worth).mean()
        policy_loss.backward(inputs=list(agent.policy.parameters()))

        entropy = -log_probability.detach().mean()
        agent.log_temperature.grad = entropy + self.actions  # of log α·(entropy − its target, −1 for every action)

        for optimizer in self.optimizers:
            optimizer.step()
        torch._foreach_lerp_(self.followers, self.followed, task.target_rate)
        return critic_loss.detach()

    @torch.no_grad()
    def _goal(self, following: Tensor, reward: Tensor, terminated: Tensor, noise: Tensor) -> Tensor:
        """What the critics should say: the reward, and unless the environment ended, the next state's soft value."""
        action, log_probability = self.agent.policy.sample(following, noise)
        worth = torch.minimum(*values(self.targets, following, action))  # one critic alone errs upwards
        soft = worth - self.agent.log_temperature.exp() * log_probability
        return reward + self.task.discount * (1 - terminated) * soft

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        count = self.task.evaluation_episodes
        starts = [(split, number) for split in ("valid", "test") for number in range(count)]
        if not self.evaluations:
            self.evaluations = [Episodes(self.task.environment) for _ in starts]
        for episodes, start in zip(self.evaluations, starts, strict=True):
            episodes.begin(derive(self.context.seed, "evaluation", *start))
        returns = [0.0] * len(starts)
        while running := [i for i, episodes in enumerate(self.evaluations) if not episodes.over]:
            seen = torch.stack([self.evaluations[i].observation for i in running])
            for i, action in zip(running, self.agent.policy.mode(seen.to(self.context.device)).cpu(), strict=True):
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
