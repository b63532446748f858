from rayinfer.outputs import CompletionOutput, EngineStats, RequestOutput, StepMessage


def test_usage_is_the_share_of_blocks_with_readers():
    assert EngineStats(kv_blocks_used=3, kv_blocks_total=12).kv_cache_usage == 0.25
    assert EngineStats().kv_cache_usage == 0.0


def test_two_messages_do_not_share_their_lists():
    one, other = (StepMessage(deltas=[], stats=EngineStats()) for _ in range(2))
    one.blocks_stored.append(b"x")
    one.stats.requests_finished_total["stop"] = 1
    assert other.blocks_stored == []
    assert other.stats.requests_finished_total == {}


def test_an_output_says_by_default_that_it_is_not_over():
    output = RequestOutput(
        request_id="r", prompt_token_ids=[1], outputs=[CompletionOutput(index=0, text="", token_ids=[])]
    )
    assert not output.finished
    assert output.outputs[0].finish_reason is None
