"""Datatypes of the Open Inference Protocol."""

from dataclasses import dataclass

from rayinfer.errors import InvalidParameter, shown


@dataclass(frozen=True, slots=True)
class Datatype:
    """One datatype and its forms in JSON, in arrays and in gRPC."""

    name: str
    numpy: str  # type of the array; little-endian, as the protocol's binary form
    contents: str  # field of gRPC's InferTensorContents; "" where there is none
    config_number: int  # in Triton's model configuration
    kind: str  # of its JSON: bool, integer, float or text; "" where there is none
    lowest: int = 0  # of integers
    highest: int = 0

    @property
    def size(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements differ."""
        return 0 if self.name == "BYTES" else int(self.numpy[2:])

    @property
    def config_name(self) -> str:
        """Name in Triton's model configuration."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"


def _integer(name: str, contents: str, config_number: int) -> Datatype:
    is_signed = not name.startswith("U")
    num_bits = int(name.removeprefix("U").removeprefix("INT"))
    numpy = f"<{'i' if is_signed else 'u'}{num_bits // 8}"
    low = -(2 ** (num_bits - 1)) if is_signed else 0
    high = 2 ** (num_bits - 1 if is_signed else num_bits) - 1
    return Datatype(name, numpy, contents, config_number, "integer", low, high)


DATATYPES = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", "|b1", "bool_contents", 1, "bool"),
        _integer("UINT8", "uint_contents", 2),
        _integer("UINT16", "uint_contents", 3),
        _integer("UINT32", "uint_contents", 4),
        _integer("UINT64", "uint64_contents", 5),
        _integer("INT8", "int_contents", 6),
        _integer("INT16", "int_contents", 7),
        _integer("INT32", "int_contents", 8),
        _integer("INT64", "int64_contents", 9),
        Datatype("FP16", "<f2", "", 10, ""),
        Datatype("BF16", "<u2", "", 14, ""),  # no array type of numpy's: the bits are carried unchanged
        Datatype("FP32", "<f4", "fp32_contents", 11, "float"),
        Datatype("FP64", "<f8", "fp64_contents", 12, "float"),
        Datatype("BYTES", "|O", "bytes_contents", 13, "text"),
    )
}


def find_datatype(name: object, param: str) -> Datatype:
    """Look a datatype up; raises InvalidParameter."""
    if not isinstance(name, str) or name not in DATATYPES:
        raise InvalidParameter(f"{param} must be one of {', '.join(DATATYPES)}, got {shown(name)}", param)
    return DATATYPES[name]
