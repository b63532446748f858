"""HTTP servers over implementations of `rayinfer.protocols`; no torch, no Ray, no engine."""
