"""What clients talk to: HTTP protocols over whatever implements `rayinfer.protocols`; no torch, no Ray, no engine."""
