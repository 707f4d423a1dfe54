"""Where an agent's experience comes from and where it is kept: episodes of an environment, and a memory of transitions.

    episodes = Episodes("HalfCheetah-v4")
    episodes.begin(seed=0)
    reward, terminated = episodes.step(torch.zeros(6))
    replay.add(...)

Both can be saved at any time, in the middle of an episode too, and go on exactly as they would have.
"""

import importlib
import math
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class Replay:
    """The last transitions, one a row: observation, action, next observation, reward, whether the environment ended."""

    def __init__(self, capacity: int, observations: int, actions: int, device: torch.device):
        self.columns = (observations, actions, observations, 1, 1)
        self.rows = torch.empty(capacity, sum(self.columns), device=device)
        self.count = 0  # transitions seen; the oldest give way

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
    """An environment, episode after episode, that can be saved in the middle of one.

    Its time limit is ours, to be told from an end: an episode that runs out of time would have gone on, and its last
    state is still worth something. What an environment draws, it draws at the start of an episode.
    """

    def __init__(self, environment: str):
        self.world, self.limit = _world(environment)
        space = self.world.action_space
        if not hasattr(space, "low"):
            raise ValueError(f"the actions of {environment} are {space}; choose an environment with continuous ones")
        self.low, self.high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        self.observation, self.elapsed, self.over = torch.empty(0), 0, True

    @property
    def sizes(self) -> tuple[int, int]:
        """Of an observation and of an action."""
        return self.world.observation_space.shape[0], len(self.low)

    def begin(self, seed: int) -> None:
        self.observation, self.elapsed, self.over = self._seen(self.world.reset(seed=seed)[0]), 0, False

    def step(self, action: Tensor) -> tuple[float, bool]:
        """Take an action in (−1, 1); gives the reward, and whether the environment ended the episode."""
        if not action.isfinite().all():  # of a network that has diverged; what would follow has no meaning
            self.over = True
            return math.nan, False
        scaled = self.low + (action + 1) / 2 * (self.high - self.low)
        observation, reward, terminated, _, _ = self.world.step(scaled.numpy())
        self.observation, self.elapsed = self._seen(observation), self.elapsed + 1
        self.over = bool(terminated) or self.elapsed == self.limit
        return float(reward), bool(terminated)

    @staticmethod
    def _seen(observation: Any) -> Tensor:
        return torch.from_numpy(observation).float()

    def state_dict(self) -> dict[str, Any]:
        return {"physics": _physics(self.world), "observation": self.observation, "elapsed": self.elapsed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _set_physics(self.world, state["physics"])
        self.observation, self.elapsed = state["observation"], state["elapsed"]


def simulators() -> tuple[ModuleType, ModuleType]:
    """The packages gymnasium and mujoco."""
    try:
        return importlib.import_module("gymnasium"), importlib.import_module("mujoco")
    except ImportError as error:
        raise ImportError(f"reinforcement learning needs {error.name}: pip install 'aimopt[rl]'") from error


def _world(environment: str) -> tuple[Any, int]:
    """An environment without its wrappers, and the number of steps after which an episode is cut off."""
    gymnasium, mujoco = simulators()
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():  # the paper's versions are old, and both packages say so
            warnings.simplefilter("ignore", DeprecationWarning)
            world = gymnasium.make(environment, disable_env_checker=True).unwrapped
    finally:
        mujoco.set_mju_user_warning(warn)
    return world, gymnasium.spec(environment).max_episode_steps


def _physics(world: Any) -> Tensor:
    """All that the next step of an environment depends on: of MuJoCo's, or of gymnasium's classic control."""
    if not hasattr(world, "data"):
        return torch.tensor(world.state)
    mujoco = simulators()[1]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = torch.empty(mujoco.mj_stateSize(world.model, kind), dtype=torch.float64)
    mujoco.mj_getState(world.model, world.data, physics.numpy(), kind)
    return physics


def _set_physics(world: Any, physics: Tensor) -> None:
    if not hasattr(world, "data"):
        world.state = physics.numpy().copy()
        return
    mujoco = simulators()[1]
    mujoco.mj_setState(world.model, world.data, physics.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
