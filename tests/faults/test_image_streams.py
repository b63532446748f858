"""Engines are killed under streams of which half have images: their next engine encodes these again."""

import random
import time

import pytest

from support.faults.fault_load import image_body, record_answers, request_body
from support.faults.fault_models import SERVED_NAME
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, under_load, wait_until_whole
from support.faults.faulty_service import FaultyService, kill
from support.tiny_models.tiny_qwen_vision import make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import encoded, make_tiny_vision_model, picture_of

NUM_REQUESTS, NUM_TOKENS = 12, 64
SIDES = [(72, 72), (24, 24), (100, 30), (30, 100)]
SEEN_KILLS = 4  # without migration


@pytest.fixture(scope="module")
def service(host, request, tmp_path_factory):
    make = make_tiny_vision_model if request.param == "smolvlm" else make_tiny_qwen_vision_model
    folder = make(tmp_path_factory.mktemp("vision"), family=request.param)
    model = {"name": SERVED_NAME, "model": str(folder), "dtype": "float32", "num_replicas": 2, "num_kv_blocks": 512}
    service = FaultyService(host, f"images-{request.param}", [model])
    yield service
    service.delete()


def body_of(number):
    if number % 2:
        image = encoded(picture_of(*SIDES[number // 2 % 4], number % 7))
        return image_body(number // 2, image, max_tokens=NUM_TOKENS)
    return request_body(number // 2, max_tokens=NUM_TOKENS)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("service", "without", "share"),
    [("smolvlm", "", 1), ("smolvlm", "no-migration", 1), ("qwen2_5_vl", "", 5)],
    indirect=["service"],
)
def test_streams_with_images_survive_kills(service, report, without, share, pytestconfig):
    row, draw = FaultRow(fault="kills", injected="engines killed under streams, half with images"), random.Random(31)
    wanted, num_kills = SEEN_KILLS if without else pytestconfig.getoption("--image-kills") // share, 0
    with service.switched(without, slow_steps="0.02"):
        expected = record_answers(service.url, {number: body_of(number) for number in range(NUM_REQUESTS)})
        texts = {answer.choices[0][0] for number, answer in expected.items() if number % 2}
        assert len(texts) == NUM_REQUESTS // 2
        with under_load(service, expected, row, num_streams=12, whole_per_s=0.0):
            while num_kills < wanted:
                time.sleep(draw.uniform(0.5, 3.0))
                alive = service.known_engines()
                if len(alive) > 1:
                    kill(alive[num_kills % len(alive)])
                    num_kills += 1
            row.recovery_s = wait_until_whole(service)
        assert service.metric("rayinfer_image_encodings_total") > 0
    row.note = f"{num_kills} kills"
    judge(report, row, service, without)
