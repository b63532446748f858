// The most products that a processor can compute: sums in registers, of factors that never leave them.

#include "gemm/byte_sums.h"
#include "gemm/register_sums.h"

namespace rayinfer {
namespace {

constexpr int kChains = kHas32Registers ? 24 : 12;  // independent sums: of 32 registers, or of 16

enum class Kind : int32_t { float32 = 0, bfloat16 = 1, int8 = 2 };

template <class Sum, class Factor, class Add>
void multiply(int64_t num_rounds, Factor factor, Add add) {
    Sum sums[kChains] = {};
    for (int64_t round = 0; round < num_rounds; ++round)
#pragma GCC unroll 24
        for (int i = 0; i < kChains; ++i) {
            RAYINFER_KEEP_IN_REGISTER(factor);  // unknown from here on: no product can be taken out of the loop
            add(sums[i], factor);
            RAYINFER_KEEP_IN_REGISTER(sums[i]);
        }
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) asm volatile("" : : RAYINFER_VECTOR(sums[i]));  // used: else nothing would be computed
}

template <class E>
double multiply_floats(int64_t num_rounds) {
    using U = Units<E, kSimd>;
    using Factor = typename U::Columns;
    typename U::Factor other = {};
    asm("" : "+r"(other));  // unknown, too: a factor of zero would be no product
    multiply<typename Lanes<kSimd>::Float>(num_rounds, Factor{}, [=](auto& sum, Factor factor) RAYINFER_LAMBDA {
        sum = U::add(sum, factor, other);
    });
    return 2.0 * kSimd * (sizeof(typename U::Factor) / sizeof(Plain<E>));
}

double multiply_bytes(int64_t num_rounds) {
#if RAYINFER_HAS_BYTE_DOTS
    multiply<ByteSums>(num_rounds, Quads{}, [](ByteSums& sums, Quads factor) RAYINFER_LAMBDA {
        add_products<Sign::columns>(sums, factor, factor);
    });
    return 8.0 * kByteLanes;
#else
    multiply<ByteSums>(num_rounds, Shorts{}, [](ByteSums& sums, Shorts factor) RAYINFER_LAMBDA {
        sums += products_of_pairs(factor, factor);
    });
    return 4.0 * kByteLanes;
#endif
}

}  // namespace
}  // namespace rayinfer

// Returns how many multiplications and additions all threads did.
extern "C" __attribute__((visibility("default"))) double rayinfer_multiply_in_registers(int32_t kind, int64_t num_rounds,
                                                                                        int num_threads) {
    using namespace rayinfer;
    double per_sum = 0.0;
#pragma omp parallel num_threads(num_threads)
    {
        double own = 0.0;
        switch ((Kind)kind) {
            case Kind::float32: own = multiply_floats<float>(num_rounds); break;
            case Kind::bfloat16: own = multiply_floats<bfloat16>(num_rounds); break;
            case Kind::int8: own = multiply_bytes(num_rounds); break;
        }
#pragma omp atomic
        per_sum += own;
    }
    return per_sum * (double)num_rounds * kChains;
}
