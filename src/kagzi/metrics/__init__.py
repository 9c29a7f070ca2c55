"""What can be counted, and how it is shown to Prometheus."""
