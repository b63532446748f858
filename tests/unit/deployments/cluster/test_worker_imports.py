import json
import subprocess
import sys

import pytest

from rayinfer_deployments.cluster.worker_imports import MOST_CORES, SERVE_MODULES, modules_to_import

# As a worker does it, and what it then has.
IMPORT = """
import json, os, sys
os.environ["RAY_JOB_ID"] = sys.argv[1]
import rayinfer_deployments.cluster.worker_imports, gc
print(json.dumps([sorted({"ray", "ray.serve", "torch", "transformers"} & set(sys.modules)), gc.isenabled()]))
"""


@pytest.mark.parametrize(
    ("job", "num_cores", "expected"),
    [
        ("ffffffff", 2, SERVE_MODULES),
        ("ffffffff", MOST_CORES + 1, ()),  # as many workers as cores
        ("01000000", 2, ()),  # an engine's, or a router's
        ("", 2, ()),
    ],
)
def test_only_workers_without_a_job_import_ahead(job, num_cores, expected):
    assert modules_to_import({"RAY_JOB_ID": job} if job else {}, num_cores) == expected


@pytest.mark.parametrize(("job", "expected"), [("ffffffff", ["ray", "ray.serve"]), ("01000000", [])])
def test_engines_workers_load_no_serve_and_no_worker_loads_torch_ahead(job, expected):
    found = subprocess.run([sys.executable, "-c", IMPORT, job], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(found.stdout) == [expected, True]
