"""Images of URLs, from hosts that a service allows, within bounds, and never from private networks by accident."""
