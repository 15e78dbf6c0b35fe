"""Weights on their way from the learner to the engines, whatever library either of them uses."""
