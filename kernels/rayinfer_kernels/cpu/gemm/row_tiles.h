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
    static_assert(2 <= Most && Most <= 6);
    switch (num_rows) {
        case 1: return run(std::integral_constant<int, 1>());
        case 2: return run(std::integral_constant<int, 2>());
        case 3: return run(std::integral_constant<int, std::min<int>(3, Most)>());
        case 4: return run(std::integral_constant<int, std::min<int>(4, Most)>());
        case 5: return run(std::integral_constant<int, std::min<int>(5, Most)>());
        default: return run(std::integral_constant<int, Most>());
    }
}

}  // namespace rayinfer
