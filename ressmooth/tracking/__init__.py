"""Mirrors the Store to MLflow."""
