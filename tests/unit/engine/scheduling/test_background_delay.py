"""Delay of interactive requests by a full queue of background requests, in virtual time: at most the running step."""

import random

import pytest

from support.fakes.fake_executor import drive, numbers

STEP_S, TOKEN_S = 0.010, 0.0003  # a step takes the one, and each of its tokens the other
NUM_ROWS, BUDGET = 16, 64


class Simulation:
    """Engine whose steps take virtual time; requests arrive at any moment and are seen after the running step."""

    def __init__(self):
        self.driven = drive(num_blocks=4096, max_model_len=512, max_num_seqs=NUM_ROWS, budget=BUDGET, caching=False)
        self.now = 0.0
        self.steps = []
        self.chance = random.Random(0)
        self.num_rows = 0

    def fill(self, priority):
        while self.driven.engine.stats.num_waiting < NUM_ROWS // 4:
            prompt = numbers(self.chance.randint(8, 100), self.num_rows)
            self.driven.add(
                f"row {self.num_rows}",
                prompt,
                max_tokens=self.chance.randint(8, 60),
                priority=priority,
                ignore_eos=True,
            )
            self.num_rows += 1
            if not self.driven.engine.stats.num_running:
                self.step()

    def step(self):
        deltas = self.driven.step()
        seconds = STEP_S + TOKEN_S * self.driven.executor.plans[-1].num_tokens
        self.steps.append(seconds)
        self.now += seconds
        self.driven.clock.now = self.now
        return {delta.request_id for delta in deltas}

    def first_token_s(self, name, prompt_len, priority=None):
        """Add a request at a random moment of a step, and return its time to the first token."""
        if priority is None:
            arrival = self.now
        else:
            self.fill(priority)
            begin = self.now
            self.step()
            arrival = self.chance.uniform(begin, self.now)
        self.driven.add(name, numbers(prompt_len, 7), max_tokens=1)
        while name not in self.step():
            if priority is not None:
                self.fill(priority)
        return self.now - arrival


def added_steps(priority):
    """Return how much later first tokens come beside a full queue, in longest steps."""
    alone, loaded = Simulation(), Simulation()
    chance, added = random.Random(1), []
    for number in range(200):
        prompt_len = chance.randint(1, 150)
        without = alone.first_token_s(f"alone {number}", prompt_len)
        added.append(loaded.first_token_s(f"beside {number}", prompt_len, priority) - without)
    return [each / max(loaded.steps) for each in added]


def test_a_first_token_comes_at_most_the_running_step_later():
    assert max(added_steps(10)) <= 1.0 + 1e-6


@pytest.mark.parametrize("priority", [0, 9])
def test_other_priorities_may_delay_it_longer(priority):
    assert max(added_steps(priority)) > 1.0
