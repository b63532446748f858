"""Discovery of engines, and the load reports that autoscaling follows."""
