// Rows cut into tiles whose sums fit into registers, and a function of its own for every size of a tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace rayinfer {

// Tiles as even as can be, the larger ones first.
struct RowTiles {
    int64_t count, smaller, larger_end;
    RowTiles(int64_t num_rows, int64_t most) {
        count = std::max<int64_t>(1, (num_rows + most - 1) / most);
        smaller = num_rows / count;
        larger_end = (num_rows - count * smaller) * (smaller + 1);
    }
    int64_t end_of(int64_t row) const { return row + smaller + (row < larger_end); }
};

// Calls `run` with the number of rows as a constant; there are at most `Most` of them.
template <int64_t Most, class Run>
inline void with_rows(int64_t num_rows, Run run) {
    static_assert(2 <= Most && Most <= 12);
    switch (num_rows) {
#define RAYINFER_ROWS(n) \
    case n: return run(std::integral_constant<int, std::min<int>(n, Most)>());
        RAYINFER_ROWS(1)
        RAYINFER_ROWS(2)
        RAYINFER_ROWS(3)
        RAYINFER_ROWS(4)
        RAYINFER_ROWS(5)
        RAYINFER_ROWS(6)
        RAYINFER_ROWS(7)
        RAYINFER_ROWS(8)
        RAYINFER_ROWS(9)
        RAYINFER_ROWS(10)
        RAYINFER_ROWS(11)
#undef RAYINFER_ROWS
        default: return run(std::integral_constant<int, Most>());
    }
}

}  // namespace rayinfer
