"""All dashboards, in the order of their links."""

from rayinfer_deployments.monitoring.dashboards.batches import BATCHES
from rayinfer_deployments.monitoring.dashboards.cluster import CLUSTER
from rayinfer_deployments.monitoring.dashboards.engines import ENGINES
from rayinfer_deployments.monitoring.dashboards.predictors import PREDICTORS
from rayinfer_deployments.monitoring.dashboards.service import SERVICE
from rayinfer_deployments.monitoring.dashboards.tenants import TENANTS
from rayinfer_deployments.monitoring.panels import Dashboard


def all_dashboards() -> tuple[Dashboard, ...]:
    """Return the dashboards."""
    return (SERVICE, ENGINES, TENANTS, CLUSTER, BATCHES, PREDICTORS)
