"""Types of settings that Kubernetes' objects are made from, and what it accepts."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Manifest = dict[str, Any]

QUANTITY = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

# What Kubernetes accepts.
PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"  # between the dots of a name
ObjectName = Annotated[str, Field(pattern=rf"^{PART}(\.{PART})*$", max_length=253)]
OptionalName = Annotated[str, Field(pattern=rf"^({PART}(\.{PART})*)?$", max_length=253)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
HostName = Annotated[str, Field(pattern=rf"^(\*\.)?{PART}(\.{PART})*$", max_length=253)]
Cidr = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
LabelName = Annotated[
    str, Field(pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Labels = dict[LabelName, LabelValue]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def in_bytes(quantity: str) -> float:
    """Return the number of bytes that a quantity names."""
    number = quantity.rstrip("kMGTi")
    return float(number) * BYTES[quantity[len(number) :]]


class Settings(BaseModel):
    """Settings of one part of the file; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
