"""Groups of ranks: rendezvous, control connections, heartbeats, and transfers between stages."""
