"""stable-baselines3: `python examples/stable_baselines.py`, with stable-baselines3 and gymnasium installed.

The optimizer is a class and keywords of the policy; the agent sets the learning rate, and may schedule it.
"""

from typing import Any

from stable_baselines3 import PPO

import aimopt


def main() -> None:
    policy: dict[str, Any] = {
        "optimizer_class": aimopt.RADAR,
        "optimizer_kwargs": {"gamma": 0.01, "zeta": 1e-10},  # PPO's Adam has eps=1e-5, and zeta is eps²
        "net_arch": [16, 16],
    }
    agent = PPO("MlpPolicy", "CartPole-v1", 1e-3, n_steps=128, policy_kwargs=policy, seed=0, device="cpu")
    agent.learn(256)
    optimizer = agent.policy.optimizer
    print(f"PPO with {type(optimizer).__name__}: {int(max(s['step'] for s in optimizer.state.values()))} steps")


if __name__ == "__main__":
    main()
