"""The experience of an agent: episodes of an environment, and a replay buffer of transitions.

    episodes = Episodes("HalfCheetah-v4")
    episodes.begin(seed=0)
    reward, terminated = episodes.step(torch.zeros(6))
    replay.add(...)

Both can be saved at any time, also in the middle of an episode, and continue exactly as without saving.
"""

import importlib
import math
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from aimopt.messages.extras import install_command


class Replay:
    """The last transitions, one per row: observation, action, next observation, reward, whether the episode ended."""

    def __init__(self, capacity: int, observations: int, actions: int, device: torch.device):
        self.columns = (observations, actions, observations, 1, 1)
        self.rows = torch.empty(capacity, sum(self.columns), device=device)
        self.count = 0  # transitions added; the oldest are overwritten

    @property
    def filled(self) -> Tensor:
        return self.rows[: self.count]

    def add(self, row: Tensor) -> None:
        self.rows[self.count % len(self.rows)] = row
        self.count += 1

    def sample(self, size: int, draws: torch.Generator) -> tuple[Tensor, ...]:
        chosen = torch.randint(len(self.filled), (size,), generator=draws).to(self.rows.device)
        observation, action, following, reward, terminated = self.rows[chosen].split(self.columns, -1)
        return observation, action, following, reward.squeeze(-1), terminated.squeeze(-1)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.filled.cpu().clone(), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        self.filled.copy_(state["rows"])


class Episodes:
    """The episodes of an environment, one after another; they can be saved in the middle of one.

    The time limit is applied here, because it differs from an end: without the limit the episode would continue, so its
    last state still has a value. The environment draws random numbers only at the start of an episode.
    """

    def __init__(self, name: str):
        self.environment, self.limit = _make_environment(name)
        space = self.environment.action_space
        if not hasattr(space, "low"):
            raise ValueError(f"the actions of {name} are {space}; choose an environment with continuous ones")
        self.low, self.high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.observation, self.elapsed, self.over = torch.empty(0), 0, True

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of values per observation and per action."""
        return self.environment.observation_space.shape[0], len(self.low)

    def begin(self, seed: int) -> None:
        self.observation, self.elapsed, self.over = self._as_tensor(self.environment.reset(seed=seed)[0]), 0, False

    def step(self, action: Tensor) -> tuple[float, bool]:
        """Take an action in (−1, 1); the result is the reward, and whether the environment ended the episode."""
        if not action.isfinite().all():  # the network has diverged; further steps have no meaning
            self.over = True
            return math.nan, False
        scaled = self.low + (action + 1) / 2 * (self.high - self.low)
        observation, reward, terminated, _, _ = self.environment.step(scaled.numpy())
        self.observation, self.elapsed = self._as_tensor(observation), self.elapsed + 1
        self.over = bool(terminated) or self.elapsed == self.limit
        return float(reward), bool(terminated)

    @staticmethod
    def _as_tensor(observation: Any) -> Tensor:
        return torch.from_numpy(observation).float()

    def state_dict(self) -> dict[str, Any]:
        return {"physics": _physics(self.environment), "observation": self.observation, "elapsed": self.elapsed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _set_physics(self.environment, state["physics"])
        self.observation, self.elapsed = state["observation"], state["elapsed"]


def simulators() -> tuple[ModuleType, ModuleType]:
    """The packages gymnasium and mujoco."""
    try:
        return importlib.import_module("gymnasium"), importlib.import_module("mujoco")
    except ImportError as error:
        raise ImportError(f"reinforcement learning needs {error.name}: {install_command('rl')}") from error


def _make_environment(name: str) -> tuple[Any, int]:
    """An environment without its wrappers, and the time limit of an episode in steps."""
    gymnasium, mujoco = simulators()
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():  # both packages warn that the versions of the paper are old
            warnings.simplefilter("ignore", DeprecationWarning)
            environment = gymnasium.make(name, disable_env_checker=True).unwrapped
    finally:
        mujoco.set_mju_user_warning(warn)
    return environment, gymnasium.spec(name).max_episode_steps


def _physics(environment: Any) -> Tensor:
    """The state that determines the next step of an environment, MuJoCo's or gymnasium's classic control."""
    if not hasattr(environment, "data"):
        return torch.tensor(environment.state)
    mujoco = simulators()[1]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = torch.empty(mujoco.mj_stateSize(environment.model, kind), dtype=torch.float64)
    mujoco.mj_getState(environment.model, environment.data, physics.numpy(), kind)
    return physics


def _set_physics(environment: Any, physics: Tensor) -> None:
    if not hasattr(environment, "data"):
        environment.state = physics.numpy().copy()
        return
    mujoco = simulators()[1]
    mujoco.mj_setState(environment.model, environment.data, physics.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
