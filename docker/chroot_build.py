"""Build of docker/Dockerfile without a container engine: its instructions, run in plain root file systems by chroot.

    sudo python docker/chroot_build.py build/image --target cpu

The base image is replaced by debootstrap's Debian of the same release with its Python. Instructions that only describe
the image (LABEL, EXPOSE, VOLUME, HEALTHCHECK) are checked and kept in image.json beside the root file system.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DESCRIPTIVE = {"LABEL", "EXPOSE", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD", "SHELL"}
# Of this machine's environment, what package managers need to reach their registries.
PASSED_ON = re.compile(r"(PIP_.*|SSL_CERT_FILE|(https?|no|all)_proxy)", re.IGNORECASE)
# What the manifests count on, as the image's user on a read-only root.
CHECK = """set -eu
for program in rayinfer ray hf wget grep tini; do command -v $program; done
if command -v g++ gcc cc; then echo "a compiler is in the image" >&2; exit 1; fi
if touch /opt/rayinfer/file 2> /dev/null; then echo "the root is not read-only" >&2; exit 1; fi
bash -lc 'command -v rayinfer'
echo "$(grep -c '"purl"' /opt/rayinfer/sbom.cdx.json) packages in the SBOM"
rayinfer doctor | grep -E 'kernels|compiler'
"""
MOUNTS = ("/proc", "/sys", "/dev")
HOST_FILES = ("/etc/resolv.conf", "/etc/ssl/certs")


@dataclass
class Stage:
    """Root file system of a stage, and its settings so far."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    description: dict[str, list[str]] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"


def main() -> None:
    """Build the stages that a target needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the stages' root file systems")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--bind", action="append", default=[], metavar="FROM[:TO]", help="folder of this machine")
    options = parser.parse_args()
    build = ChrootBuild(options.folder.absolute(), dict(each.split("=", 1) for each in options.build_arg), options.bind)
    instructions = list(read_instructions((ROOT / "docker" / "Dockerfile").read_text()))
    stage = build.stage(options.target, instructions)
    print(f"{stage.folder}: {_size_mib(stage.folder):,} MiB", flush=True)
    build.run(stage, ["/bin/bash", "-c", CHECK], is_read_only=True)


def read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), rest.strip()


class ChrootBuild:
    """Stages of one Dockerfile, each built once."""

    def __init__(self, folder: Path, arguments: dict[str, str], binds: list[str]) -> None:
        self._folder, self._arguments, self._binds = folder, arguments, binds
        self._stages: dict[str, Stage] = {}

    def stage(self, name: str, instructions: list[tuple[str, str]]) -> Stage:
        """Build a stage and those that it is made from."""
        if name in self._stages:
            return self._stages[name]
        globals_, own, parent = _stage_instructions(name, instructions)
        folder = self._folder / name
        digest = self._digest(name, instructions)
        if (kept := self._kept(name, digest)) is not None:
            print(f"== stage {name}, as it was built before", flush=True)
            self._stages[name] = kept
            return kept
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        print(f"== stage {name}", flush=True)
        if parent is None:
            stage = Stage(folder)
            _debootstrap(folder)
        else:
            before = self.stage(parent, instructions)
            _copy_tree(before.folder, folder)
            stage = Stage(
                folder,
                dict(before.environment),
                description={key: list(each) for key, each in before.description.items()},
                workdir=before.workdir,
                user=before.user,
            )
        defaults = dict(globals_)
        for instruction, rest in own:
            print(f"   {instruction} {rest[:110]}", flush=True)
            self._run(stage, instruction, rest, defaults, instructions)
        settings = {"digest": digest, "environment": stage.environment, "user": stage.user, "workdir": stage.workdir}
        (self._folder / f"{name}.json").write_text(json.dumps(settings | stage.description))
        self._stages[name] = stage
        return stage

    def _digest(self, name: str, instructions: list[tuple[str, str]]) -> str:
        """Hash a stage's instructions and the files that they copy, and those of the stages that it is made from."""
        _, own, parent = _stage_instructions(name, instructions)
        digest = hashlib.sha256(json.dumps([own, self._arguments]).encode())
        if parent is not None:
            digest.update(self._digest(parent, instructions).encode())
        for words in (shlex.split(rest) for instruction, rest in own if instruction == "COPY"):
            if words[0].startswith("--from="):
                digest.update(self._digest(words[0].removeprefix("--from="), instructions).encode())
                continue
            for path in sorted(file for name in words[:-1] for file in _files(ROOT / name)):
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _kept(self, name: str, digest: str) -> Stage | None:
        try:
            found = json.loads((self._folder / f"{name}.json").read_text())
        except OSError:
            return None
        if found.get("digest") != digest:
            return None
        description = {key: value for key, value in found.items() if key in DESCRIPTIVE}
        return Stage(
            self._folder / name,
            found["environment"],
            description=description,
            workdir=found["workdir"],
            user=found["user"],
        )

    def _run(
        self, stage: Stage, name: str, rest: str, defaults: dict[str, str], instructions: list[tuple[str, str]]
    ) -> None:
        if name == "ARG":
            key, _, default = rest.partition("=")
            stage.arguments[key] = self._arguments.get(key, defaults.get(key, default.strip('"')))
        elif name == "ENV":
            for pair in shlex.split(_expand(rest, stage)):
                key, _, value = pair.partition("=")
                stage.environment[key] = value
        elif name == "WORKDIR":
            stage.workdir = rest
            (stage.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = rest
        elif name == "COPY":
            self._copy(stage, shlex.split(rest), instructions)
        elif name == "RUN":
            self.run(stage, ["/bin/bash", "-o", "pipefail", "-c", rest])
        elif name in DESCRIPTIVE:
            stage.description.setdefault(name, []).append(_expand(rest, stage))
        else:
            raise SystemExit(f"no such instruction is known: {name} {rest}")

    def _copy(self, stage: Stage, words: list[str], instructions: list[tuple[str, str]]) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = self.stage(words.pop(0).removeprefix("--from="), instructions).folder
        *names, target = words
        to = stage.folder / os.path.normpath(Path(stage.workdir) / target).lstrip("/")
        for name in names:
            path = source / name.lstrip("/")
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if source == ROOT else None
                shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)

    def run(self, stage: Stage, command: list[str], *, is_read_only: bool = False) -> None:
        """Run a command in a stage's root file system, as its user, in mount and process namespaces of its own."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        passed_on = {key: value for key, value in os.environ.items() if PASSED_ON.fullmatch(key)}
        environment = {"PATH": path, "HOME": "/root"} | passed_on | stage.arguments | stage.environment
        mounts = [f"mount --rbind {each} {stage.folder}{each}" for each in MOUNTS]
        for each in [*HOST_FILES, *self._binds]:
            source, _, target = each.partition(":")
            if Path(source).exists():
                to = Path(f"{stage.folder}{target or source}")
                (to.mkdir(parents=True, exist_ok=True) if Path(source).is_dir() else to.touch())
                mounts.append(f"mount --bind {source} {to}")
        if is_read_only:
            root, home = str(stage.folder), stage.environment["HOME"]
            mounts.insert(0, f"mount --bind {root} {root} && mount -o remount,bind,ro {root}")
            mounts += [
                f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
                f"mount -t tmpfs -o mode=1777 tmpfs {root}{home}",
            ]
        inside = f"cd {shlex.quote(stage.workdir)} && exec {shlex.join(command)}"
        chroot = ["chroot", f"--userspec={stage.user}", str(stage.folder), "/bin/bash", "-c", inside]
        script = " && ".join([*mounts, f"exec {shlex.join(chroot)}"])
        done = subprocess.run(["unshare", "--mount", "--fork", "/bin/sh", "-c", script], env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)[:200]} ended with {done.returncode}")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts]


def _stage_instructions(
    name: str, instructions: list[tuple[str, str]]
) -> tuple[dict[str, str], list[tuple[str, str]], str | None]:
    """Return the arguments before the first stage, a stage's instructions, and the stage that it starts from."""
    globals_: dict[str, str] = {}
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current = None
    for instruction, rest in instructions:
        if instruction == "FROM":
            parent, _, current = rest.split()
            stages[current] = (parent, [])
        elif current is None:
            key, _, value = rest.partition("=")
            globals_[key] = value
        else:
            stages[current][1].append((instruction, rest))
    if name not in stages:
        raise SystemExit(f"no stage {name!r}: there are {', '.join(stages)}")
    parent, own = stages[name]
    return globals_, own, parent if parent in stages else None


def _debootstrap(folder: Path) -> None:
    """Make a minimal Debian with Python, in place of the official Python image."""
    if (folder / "usr/local/bin/python").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    packages = "ca-certificates,python3,python3-venv,libstdc++6"
    release = "bookworm"
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={packages}", release, str(folder)], check=True)
    apt = Path("/etc/apt")
    for file in [apt / "sources.list", *apt.glob("sources.list.d/*"), *apt.glob("apt.conf.d/*registry*")]:
        if file.is_file():
            shutil.copy2(file, folder / file.relative_to("/"))
    (folder / "usr/local/bin/python").symlink_to("/usr/bin/python3")


def _copy_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", str(source), str(target)], check=True)


def _expand(text: str, stage: Stage) -> str:
    values = (
        stage.arguments | {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} | stage.environment
    )
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], ""), text)


def _size_mib(folder: Path) -> int:
    command = ["du", "--summarize", "--one-file-system", "--block-size=1M", str(folder)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("chroot and debootstrap need root")
    main()
