import pytest

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.recording.recorder import FileRecorder
from rayinfer.engine.recording.replay import ScheduleReplay
from rayinfer.errors import ConfigError
from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PROMPTS = ["What is the capital of France?", "Once upon a time", "def add(left, right):"]
SETTINGS = {"num_kv_blocks": 7, "max_num_seqs": 4, "max_num_batched_tokens": 16, "num_threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def recording(tmp_path_factory, model):
    """Record drawn tokens, preemptions, an abort and a pause."""
    folder = tmp_path_factory.mktemp("recordings")
    with LLM(str(model), record_schedule=str(folder), **SETTINGS) as llm:
        llm.generate(PROMPTS, SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True), use_tqdm=False)
        aborted = llm.add_request(PROMPTS[0], SamplingParams(max_tokens=20))
        llm.step()
        llm.abort(aborted)
        llm.generate(PROMPTS[:2], SamplingParams(max_tokens=8, temperature=0.0), use_tqdm=False)
    (path,) = folder.iterdir()
    return path


def replayed(path, folder):
    schedule = ScheduleReplay(path)
    engine = build_engine(engine_config(**schedule.header.config), folder, recorder=schedule)
    try:
        return schedule, schedule.run(engine)
    finally:
        engine.exit()


def test_a_repeated_schedule_has_the_same_plans_and_tokens(recording, model):
    schedule, difference = replayed(recording, model)
    assert difference is None
    assert schedule.num_tokens > 120
    assert schedule.num_steps > 40
    assert recording.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}], ids=str)
def test_a_schedule_with_drafts_is_repeated(settings, tmp_path, model):
    with LLM(str(model), record_schedule=str(tmp_path), speculation="auto", **settings, **SETTINGS) as llm:
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        llm.generate([prompt * 2 for prompt in PROMPTS], params, use_tqdm=False)
        assert llm.stats.accepted_draft_tokens_total > 0
    (path,) = tmp_path.iterdir()
    schedule, difference = replayed(path, model)
    assert difference is None
    assert schedule.num_tokens == 120


def test_the_first_token_that_differs_is_named(recording, tmp_path):
    other = make_tiny_llama(tmp_path / "other", seed=7)
    _, difference = replayed(recording, other)
    assert difference.what == "a token differs"
    assert difference.recorded_token != difference.repeated_token
    assert difference.request_id
    assert difference.step <= 4


def test_a_recording_of_another_scheduler_differs_in_its_plan(recording, model, tmp_path):
    schedule = ScheduleReplay(recording)
    config = engine_config(**schedule.header.config | {"max_num_batched_tokens": 8})
    engine = build_engine(config, model, recorder=schedule)
    try:
        difference = schedule.run(engine)
    finally:
        engine.exit()
    assert (difference.step, difference.what) == (1, "the plan differs")
    assert "tokens from position 0" in difference.recorded


def test_a_recording_that_was_cut_off_is_repeated_up_to_there(recording, model, tmp_path):
    cut = tmp_path / recording.name
    cut.write_bytes(recording.read_bytes()[: recording.stat().st_size // 2])
    schedule, difference = replayed(cut, model)
    assert (difference, schedule.num_steps > 10) == (None, True)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x00\x01\x80", b"{}", b"\xff" * 100])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a recorded schedule"):
        ScheduleReplay(path)


def test_a_full_recording_ends_and_the_engine_goes_on(tmp_path):
    recorder = FileRecorder(tmp_path, engine_config(model="tiny"), max_bytes=5000)
    for _ in range(1000):
        recorder.aborted("request")
    assert recorder.clock() > 0
    assert recorder.path.stat().st_size <= 5000
    recorder.close()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot record the schedule"):
        FileRecorder(tmp_path / "file" / "folder", engine_config(model="tiny"))
