from rayinfer.servers import sse


def test_an_event_is_one_data_line_and_a_blank_one():
    assert sse.event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert sse.DONE == b"data: [DONE]\n\n"


def test_streams_ask_proxies_not_to_buffer():
    assert sse.HEADERS == {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
