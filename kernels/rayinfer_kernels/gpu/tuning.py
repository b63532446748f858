"""All performance parameters of the kernels: tiles, warps, pipeline depths, splits. None changes a result's meaning.

They were chosen for Hopper (132 multiprocessors, 228 KiB of shared memory each): those of decode attention, rotation,
products of few rows and sampling by measuring on an H100, the others by counting bytes and registers. Each distinct set
of them compiles a kernel once, so they depend on a model's shape and on the coarse size of a step, never on a step's
exact size.
"""

from dataclasses import dataclass

from rayinfer_kernels.gpu.language import next_power_of_2

NUM_MULTIPROCESSORS = 132
PROGRAMS_PER_MULTIPROCESSOR = 4  # of decode attention: enough loads in flight to keep memory busy
MIN_SPLIT_TOKENS = 64  # a shorter split costs more in combining than its parallel reading gains
SPLIT_TOKENS = 2048  # so that one long context does not keep the others waiting, where programs are few enough for it
LONGEST_SPLIT_TOKENS = 8192  # and however many they are: about as long as the processor reads for a large batch
# Programs of a launch for each that runs at a time: most of a large batch's find no tokens, and cost a nanosecond each.
MAX_ROUNDS = 16
MAX_SPLITS = 64
MIN_DOT_ROWS = 16  # minimum of the tensor cores
MIN_DOT_INPUTS = 16  # the same, of numbers that are summed
ACTIVATION_BLOCK = 1024  # columns of a row in one program
ACTIVATION_WARPS = 4
MAX_SKINNY_ROWS = 4  # that are multiplied without tensor cores: more would be bound by their sums, not by memory
LOW_RANK_TILE_ROWS = 16  # of one adapter: a decoding batch has few
ARGMAX_BLOCK = 8192  # numbers of a row that a program looks at together
ARGMAX_WARPS = 32
SAMPLING_WARPS = 16
CHOICE_WARPS = 16
CANDIDATES_MAX_REGISTERS = 64  # of a thread that looks for them, so that two programs fit on a multiprocessor


@dataclass(frozen=True, slots=True)
class AttentionTuning:
    """Tile sizes, warps and pipeline stages of an attention program."""

    num_rows: int  # of queries: tokens x heads of a group
    tile_tokens: int  # keys and values that are loaded at once
    num_warps: int
    num_stages: int  # of the loop's pipeline
    max_registers: int | None = None  # of a thread, so that enough programs fit on a multiprocessor


@dataclass(frozen=True, slots=True)
class RowsTuning:
    """Tile size and warps of a program over rows of heads."""

    num_rows: int  # tokens of one head
    num_warps: int


@dataclass(frozen=True, slots=True)
class SamplingTuning:
    """Block sizes of the sampling programs, each a power of two."""

    block: int = 4096  # scores of a row that a program looks at together
    choice_block: int = 4096  # the same, of a row that is searched as a whole
    candidate_block: int = 1024  # candidates for a token that a program looks at together
    max_candidates: int = 16384  # of a row; top-p keeps more only where nearly nothing is known of the next token
    max_row_parts: int = 32  # that a row is cut into where rows are few

    def row_parts_for(self, num_rows: int, num_blocks: int) -> int:
        """Return the most parts of a row of logits, such that each multiprocessor has two of them."""
        return max(1, min(num_blocks, self.max_row_parts, 2 * NUM_MULTIPROCESSORS // num_rows))


@dataclass(frozen=True, slots=True)
class ProductTuning:
    """Tile sizes, warps and pipeline stages of a matrix product's program."""

    num_rows: int  # of its tile of results
    num_columns: int
    num_inputs: int  # that are loaded at once
    num_warps: int
    num_stages: int


def decode_tuning(
    group: int,
    head_dim: int,
    cache_bytes: int,
    model_bytes: int,
    block_size: int,
    num_programs: int | None = None,
    num_multiprocessors: int = NUM_MULTIPROCESSORS,
) -> AttentionTuning:
    """Tune for one token of each request; `num_programs`, the number without splits, is None for any batch.

    Even one query head is multiplied by tensor cores, padded to their 16 rows: for bfloat16 that takes a quarter of the
    instructions that plain products and sums take, and few enough to keep up with memory.
    """
    width = next_power_of_2(head_dim)
    tile = (16 << 10) // (width * cache_bytes)  # 16 KiB of keys and as much of values: four programs fit
    tile = min(tile, max(64, next_power_of_2(block_size)))  # then a tile of a larger block lies in one
    if model_bytes == 4:
        tile = min(tile, 32 * cache_bytes // 4)
    elif width > 128:
        tile = min(tile, 32)
    most = 128 if model_bytes == 2 and head_dim == width <= 128 else None
    rows, num_warps = max(MIN_DOT_ROWS, next_power_of_2(group)), 4
    if cache_bytes < model_bytes and (num_programs or 0) >= num_multiprocessors * PROGRAMS_PER_MULTIPROCESSOR:
        num_warps = 2  # which wait for each other less; there are enough programs to load for them
    return AttentionTuning(rows, max(16, tile), num_warps, num_stages=2, max_registers=most)


def prefill_tuning(head_dim: int, model_bytes: int, max_query: int, group: int) -> AttentionTuning:
    """Tune for chunks of prompts, alone or beside decoding requests; few rows where no request has many tokens."""
    width = next_power_of_2(head_dim)
    if model_bytes == 4:  # without tensor cores; registers are short
        return AttentionTuning(max(16, next_power_of_2(group)), 16, num_warps=4 if width <= 128 else 8, num_stages=2)
    if max_query * group <= 64:
        rows, tile = MIN_DOT_ROWS if max_query * group <= MIN_DOT_ROWS else 64, 64 if width <= 128 else 32
        return AttentionTuning(rows, tile, num_warps=4, num_stages=3)
    if width >= 256:
        return AttentionTuning(64, 32, num_warps=8, num_stages=3)
    return AttentionTuning(128, 64 if width == 128 else 128, num_warps=8, num_stages=3)


def low_rank_tuning(model_bytes: int) -> ProductTuning:
    """Tune for both products of adapters' terms, which read more than they compute."""
    return ProductTuning(LOW_RANK_TILE_ROWS, num_columns=64, num_inputs=256 // model_bytes, num_warps=4, num_stages=3)


def num_splits_for(
    num_requests: int, num_kv_heads: int, max_context: int, num_multiprocessors: int = NUM_MULTIPROCESSORS
) -> int:
    """Return the number of splits of each context: a power of two that fills the GPU and leaves no split too long.

    It looks at shapes only, so that a captured graph's grid holds for every step of its batch size; so it must suit the
    usual batch, in which few contexts are as long as tables allow, and do for the one long context in it.
    """
    at_once = num_multiprocessors * PROGRAMS_PER_MULTIPROCESSOR
    num_programs = max(1, num_requests * num_kv_heads)  # of one split
    filling = min(at_once // num_programs, max_context // MIN_SPLIT_TOKENS)
    affordable = 1 << max(0, (MAX_ROUNDS * at_once // num_programs).bit_length() - 1)
    short = min(-(-max_context // SPLIT_TOKENS), affordable)
    bearable = -(-max_context // LONGEST_SPLIT_TOKENS)
    return min(MAX_SPLITS, next_power_of_2(max(1, filling, short, bearable)))


def least_split(num_requests: int, num_kv_heads: int, num_multiprocessors: int = NUM_MULTIPROCESSORS) -> int:
    """Return the fewest tokens of a split: the more, the more programs the batch alone gives the GPU.

    Every part waits for its first tokens before it computes any, and leaves sums that are read again.
    """
    programs = max(1, num_requests * num_kv_heads)
    parts = num_multiprocessors * PROGRAMS_PER_MULTIPROCESSOR // programs  # of each context that run at a time
    return max(MIN_SPLIT_TOKENS, SPLIT_TOKENS // next_power_of_2(parts + 1))


def combined_at_once(group: int, head_dim: int) -> int:
    """Return how many splits of a group of heads are loaded together to be combined: up to 32 numbers a thread."""
    return max(1, min(MAX_SPLITS, 4096 // (next_power_of_2(group) * next_power_of_2(head_dim))))


def rope_tuning(num_tokens: int) -> RowsTuning:
    """Tune RoPE: few tokens a program while there are few, so that all multiprocessors have some; else many."""
    if num_tokens == 1:
        return RowsTuning(num_rows=1, num_warps=1)
    if num_tokens <= 128:
        return RowsTuning(num_rows=4, num_warps=4)
    if num_tokens <= 256:
        return RowsTuning(num_rows=8, num_warps=4)
    return RowsTuning(num_rows=16, num_warps=8 if num_tokens <= 1024 else 4)


def row_warps(block: int) -> int:
    """Return the warps of a program that holds `block` columns of a row: about eight numbers a thread."""
    return min(max(block // 256, 1), 16)


def grouped_tuning(num_rows: int, num_groups: int, model_bytes: int) -> ProductTuning:
    """Tune a grouped GEMM: small tiles where reading weights dominates, large ones where rows are many."""
    if model_bytes == 4:
        return ProductTuning(16, 64, 32, num_warps=4, num_stages=2)
    rows_per_group = num_rows / num_groups
    if rows_per_group <= 32:
        return ProductTuning(16 if rows_per_group <= 16 else 32, 64, 128, num_warps=4, num_stages=4)
    if rows_per_group <= 96:
        return ProductTuning(64, 128, 64, num_warps=4, num_stages=4)
    return ProductTuning(128, 128, 64, num_warps=8, num_stages=4)


def skinny_gemm_tuning(
    num_rows: int,
    num_results: int,
    in_features: int,
    *,
    is_gated: bool,
    num_multiprocessors: int = NUM_MULTIPROCESSORS,
) -> ProductTuning:
    """Tune for one, two or four rows and a matrix: each thread loads eight neighboring numbers of some columns.

    What counts is a whole layer, in which the next kernels load their weights while this one ends: so few programs that
    all of them run at once are better there than those that are fastest alone.
    """
    is_long = in_features > 1024
    if num_rows == 1:
        num_warps = 8 if is_long and is_gated else 4
        columns = (4 if is_long else 8) // (2 if is_gated else 1)
        while columns > 1 and num_results < 2 * num_multiprocessors * columns:  # so that all have two of them
            columns //= 2
    else:
        num_warps, columns = 8 if is_long and not is_gated else 2, 4
    num_warps = min(num_warps, max(1, next_power_of_2(in_features) // 256))
    return ProductTuning(num_rows, columns, num_inputs=num_warps * 32 * 8, num_warps=num_warps, num_stages=1)
