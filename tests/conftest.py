from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.postgres_server"]

# The same examples every time, and as much time for each as the machine needs: what passes today passes tomorrow.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
