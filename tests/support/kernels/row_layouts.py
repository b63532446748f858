"""The same rows, wherever their numbers lie."""

import torch

LAYOUTS = ["whole", "slice", "turned"]


def laid_out(rows: torch.Tensor, layout: str, device: torch.device) -> torch.Tensor:
    """Rows [num_rows, width] as they are, as a slice of wider rows that hold NaN beside them, or column by column."""
    rows = rows.to(device)
    if layout == "slice":
        wide = rows.new_full((len(rows), rows.shape[1] + 8), float("nan"))
        wide[:, 3:-5] = rows
        return wide[:, 3:-5]
    return rows.T.contiguous().T if layout == "turned" else rows
