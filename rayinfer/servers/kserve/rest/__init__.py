"""REST side of KServe's protocols."""
