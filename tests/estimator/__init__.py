"""Doors for code: Estimator, TrainingJob, functions."""
