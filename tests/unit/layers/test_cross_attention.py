import torch

from rayinfer.attention.cross_attention_blocks import BLOCK_SIZE, CrossAttentionBlocks
from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.cross_attention import CrossAttention
from rayinfer_kernels import ops

HIDDEN, HEADS, WIDTH, ROWS, LONGEST = 24, 3, 8, 3, 40
CPU = torch.device("cpu")


def make_attention():
    generator = torch.Generator().manual_seed(0)
    attention = CrossAttention(HIDDEN, HEADS, WIDTH, bias=True)
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    rows = CrossAttentionBlocks(ROWS, LONGEST, CPU)
    attention.bind(ops.allocate_kv_cache(rows.num_blocks, BLOCK_SIZE, HEADS, WIDTH, torch.float32, CPU))
    return attention, rows


def step(rows, counts):
    """A batch of requests in these rows with so many tokens each."""
    ends = torch.tensor(counts).cumsum(0)
    return AttentionBatch(
        positions=torch.zeros(int(ends[-1]), dtype=torch.int64),
        slot_mapping=torch.zeros(int(ends[-1]), dtype=torch.int64),
        cu_seqlens_q=torch.cat((torch.zeros(1), ends)).to(torch.int32),
        seq_lens=torch.tensor(counts, dtype=torch.int32),
        block_tables=torch.zeros(len(counts), 1, dtype=torch.int32),
        rows=torch.tensor(rows),
    )


def expected(attention, x, source):
    query, (key, value) = attention.q_proj.forward(x), attention.kv_proj.forward(source).chunk(2, -1)
    heads = [
        (query[:, part] @ key[:, part].T * WIDTH**-0.5).softmax(-1) @ value[:, part]
        for part in (slice(head * WIDTH, (head + 1) * WIDTH) for head in range(HEADS))
    ]
    return attention.o_proj.forward(torch.cat(heads, -1))


def test_each_token_sees_all_of_its_own_rows_source():
    attention, rows = make_attention()
    sources = {2: torch.randn(40, HIDDEN), 0: torch.randn(5, HIDDEN)}
    slot_mapping = rows.fill(list(sources), [len(source) for source in sources.values()])
    attention.keep(torch.cat(list(sources.values())), slot_mapping)
    x = torch.randn(4, HIDDEN)
    attended = attention.forward(x, rows.of(step([0, 2], [3, 1])))
    torch.testing.assert_close(attended[:3], expected(attention, x[:3], sources[0]))
    torch.testing.assert_close(attended[3:], expected(attention, x[3:], sources[2]))


def test_a_shorter_source_leaves_nothing_of_a_longer_one_before_it():
    attention, rows = make_attention()
    attention.keep(torch.randn(30, HIDDEN), rows.fill([1], [30]))
    source, x = torch.randn(4, HIDDEN), torch.randn(2, HIDDEN)
    attention.keep(source, rows.fill([1], [4]))
    torch.testing.assert_close(attention.forward(x, rows.of(step([1], [2]))), expected(attention, x, source))


def test_a_row_without_a_source_gives_numbers():
    attention, rows = make_attention()
    assert attention.forward(torch.randn(1, HIDDEN), rows.of(step([1], [1]))).isfinite().all()
