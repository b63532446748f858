"""What the choice of the number of engines is worth, simulated over request traces."""
