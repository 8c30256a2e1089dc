"""Mirrors the Store to MLflow."""

STUDY_TAG = "ressmooth.study_uid"  # of experiments and parent runs in MLflow
