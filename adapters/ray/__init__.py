"""Workers as actors of a Ray cluster, of this machine or at an address.

Ray places and carries, and no more: what is retried, restarted or given up is decided in core/, from events.
"""

from __future__ import annotations

from .bundles import ClusterRefused
from .cluster import RayCluster
from .launcher import RayLauncher
from .worker import RayWorker

__all__ = ["ClusterRefused", "RayCluster", "RayLauncher", "RayWorker"]
