"""Metrics: what is counted, and how Prometheus reads it."""
