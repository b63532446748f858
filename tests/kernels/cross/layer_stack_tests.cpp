// All layers of a decoder in one call, beside the same layers as single operations of float32.

#include "linear_tests.h"
#include "paged_cache.h"

namespace {

constexpr int64_t kHidden = 96, kHeads = 4, kKvHeads = 2, kHeadDim = 24, kInner = 80, kBlockSize = 16, kNumLayers = 2;
constexpr int64_t kQueryWidth = kHeads * kHeadDim, kKvWidth = kKvHeads * kHeadDim,
                  kHeadsWidth = kQueryWidth + 2 * kKvWidth;
constexpr float kEps = 1e-5f;

// The same weight in float32, where its own type is bfloat16.
TestWeight in_float32(const TestWeight& weight) {
    if (weight.shape.format != Format::bfloat16) return weight;
    TestWeight wide{weight.shape, weight.dense, {}, {}, {}, {}, {}};
    wide.shape.format = Format::float32;
    wide.panels.assign((size_t)(wide.num_panels() * 32 * wide.shape.in_features * 4), 0);
    for (int64_t row = 0; row < wide.shape.num_rows(); ++row)
        for (int64_t i = 0; i < wide.shape.in_features; ++i) {
            const float number = (float)wide.at(row, i);
            const int64_t at = (wide.panel_of(row) * wide.shape.in_features + i) * 32 + wide.column_of(row);
            std::memcpy(&wide.panels[(size_t)(at * 4)], &number, 4);
        }
    return wide;
}

template <class T>
struct Layer {
    TestWeight weights[4], wide[4];  // qkv, output, gate and up, down
    Weight arguments[4];
    std::vector<T> norms[4];  // attention, feed-forward, query, key
    std::vector<T> qkv_bias;
    int64_t window;

    Layer(Format format, int64_t of_window, Generator& generator) : window(of_window) {
        const WeightShape shapes[] = {{format, kHidden, kHeadsWidth},
                                      {format, kQueryWidth, kHidden},
                                      {format, kHidden, kInner, true},
                                      {format, kInner, kHidden}};
        for (int i = 0; i < 4; ++i) {
            weights[i] = make_weight(shapes[i], generator);
            wide[i] = in_float32(weights[i]);
            norms[i] = generator.numbers<T>(i < 2 ? kHidden : kHeadDim, 0.2f);
            for (T& each : norms[i]) each = to_number<T>(to_float(each) + 1.0f);
        }
        qkv_bias = generator.numbers<T>(kHeadsWidth, 0.1f);
    }

    LayerArgument argument() {
        for (int i = 0; i < 4; ++i) arguments[i] = weights[i].argument();
        LayerArgument layer = {};
        layer.attention_norm = norms[0].data(), layer.feed_forward_norm = norms[1].data();
        layer.query_norm = norms[2].data(), layer.key_norm = norms[3].data();
        layer.qkv = &arguments[0], layer.output = &arguments[1], layer.gate_up = &arguments[2],
        layer.down = &arguments[3];
        layer.qkv_bias = qkv_bias.data();
        layer.window = window, layer.is_rotated = 1;
        return layer;
    }
};

std::vector<float> multiply(const TestWeight& packed, const std::vector<float>& x, const std::vector<float>& bias,
                            Activation activation) {
    const Weight weight = packed.argument();
    const int64_t num_rows = (int64_t)x.size() / weight.in_features;
    std::vector<float> out((size_t)(num_rows * weight.out_features));
    kernel::linear<float>(x.data(), weight.in_features, &weight, bias.empty() ? nullptr : bias.data(),
                          (int32_t)activation, nullptr, nullptr, 0, out.data(), num_rows, 1);
    return out;
}

std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& weight) {
    std::vector<float> out(x.size());
    const int64_t width = (int64_t)weight.size();
    kernel::rms_norm<float>(x.data(), 1, width, 0, nullptr, weight.data(), out.data(), (int64_t)x.size() / width, width,
                            kEps, 0, 1);
    return out;
}

void add(std::vector<float>& sums, const std::vector<float>& terms) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
}

template <class T, class E>
struct Stack {
    std::vector<Layer<T>> layers;
    Step step;
    std::vector<PagedCache<E>> caches;
    std::vector<T> x, cos, sin, last_norm;
    std::vector<int64_t> positions;

    Stack(Format format, const std::vector<Request>& requests) : step(requests, kBlockSize) {
        Generator generator((uint64_t)format + 21);
        for (int64_t i = 0; i < kNumLayers; ++i) {
            layers.emplace_back(format, i == 1 ? 20 : 0, generator);
            caches.emplace_back(CacheShape{step.num_blocks, kKvHeads, kBlockSize, kHeadDim});
        }
        x = generator.numbers<T>(step.num_tokens() * kHidden);
        last_norm = layers[0].norms[0];
        for (const Request& each : requests)
            for (int64_t i = 0; i < each.num_new; ++i) positions.push_back(each.length - each.num_new + i);
        for (int64_t position = 0; position < 100; ++position)
            for (int64_t i = 0; i < kHeadDim; ++i) {
                const double angle = (double)position * std::pow(100.0, -2.0 * (double)(i % (kHeadDim / 2)) / kHeadDim);
                cos.push_back(to_number<T>((float)std::cos(angle)));
                sin.push_back(to_number<T>((float)std::sin(angle)));
            }
    }

    // `cu_outputs`: of each request's last tokens that are returned; null: all are.
    std::vector<T> run(const Step& some, int64_t first_token, int num_threads, const int32_t* cu_outputs = nullptr) {
        std::vector<LayerArgument> arguments;
        for (size_t i = 0; i < layers.size(); ++i) {
            LayerArgument layer = layers[i].argument();
            layer.key = caches[i].key.data(), layer.value = caches[i].value.data();
            layer.key_scales = caches[i].key_scale_data(), layer.value_scales = caches[i].value_scale_data();
            arguments.push_back(layer);
        }
        const StackArgument stack = {arguments.data(),
                                     last_norm.data(),
                                     cos.data(),
                                     sin.data(),
                                     kNumLayers,
                                     kHidden,
                                     kHeads,
                                     kKvHeads,
                                     kHeadDim,
                                     kHeadDim,
                                     kBlockSize,
                                     caches[0].shape.padded_dim(),
                                     kEps,
                                     1.0f / std::sqrt((float)kHeadDim),
                                     0.0f,
                                     (int32_t)Activation::silu};
        const auto slots = some.slots(false);
        const int64_t num_outputs = cu_outputs == nullptr ? some.num_tokens() : cu_outputs[some.requests.size()];
        std::vector<T> out((size_t)(num_outputs * kHidden));
        const StepArgument argument = {&x[(size_t)(first_token * kHidden)],
                                       out.data(),
                                       &positions[(size_t)first_token],
                                       slots.data(),
                                       some.cu_seqlens_q.data(),
                                       some.seq_lens.data(),
                                       some.block_tables.data(),
                                       nullptr,
                                       cu_outputs,
                                       some.num_columns,
                                       some.num_tokens(),
                                       (int64_t)some.requests.size(),
                                       num_outputs,
                                       0};
        kernel::run_layers<T>(&stack, &argument, num_threads);
        return out;
    }

    // Of single operations of float32.
    std::vector<float> expected() const {
        std::vector<float> sums = to_floats(x);
        for (const Layer<T>& layer : layers) {
            add(sums, multiply(layer.wide[1], attended(layer, sums), {}, Activation::none));
            const auto inner = multiply(layer.wide[2], normed(sums, to_floats(layer.norms[1])), {}, Activation::silu);
            add(sums, multiply(layer.wide[3], inner, {}, Activation::none));
        }
        return normed(sums, to_floats(last_norm));
    }

    std::vector<float> rotated(const std::vector<float>& heads, int64_t num_heads) const {
        std::vector<float> out(heads.size()), own_cos, own_sin;
        for (int64_t position : positions)
            for (int64_t i = 0; i < kHeadDim; ++i) {
                own_cos.push_back(to_float(cos[(size_t)(position * kHeadDim + i)]));
                own_sin.push_back(to_float(sin[(size_t)(position * kHeadDim + i)]));
            }
        kernel::rotary_embedding<float>(heads.data(), num_heads, num_heads * kHeadDim, kHeadDim, own_cos.data(),
                                        own_sin.data(), out.data(), step.num_tokens(), kHeadDim, 1);
        return out;
    }

    std::vector<float> attended(const Layer<T>& layer, const std::vector<float>& sums) const {
        const auto all = multiply(layer.wide[0], normed(sums, to_floats(layer.norms[0])), to_floats(layer.qkv_bias),
                                  Activation::none);
        std::vector<float> query, key, value, out((size_t)(step.num_tokens() * kQueryWidth));
        for (int64_t token = 0; token < step.num_tokens(); ++token) {
            const auto row = all.begin() + token * kHeadsWidth;
            query.insert(query.end(), row, row + kQueryWidth);
            key.insert(key.end(), row + kQueryWidth, row + kQueryWidth + kKvWidth);
            value.insert(value.end(), row + kQueryWidth + kKvWidth, row + kHeadsWidth);
        }
        query = rotated(normed(query, to_floats(layer.norms[2])), kHeads);
        key = rotated(normed(key, to_floats(layer.norms[3])), kKvHeads);
        PagedCache<float> cache(caches[0].shape);
        cache.write(key.data(), value.data(), step.slots(false));
        kernel::paged_attention<float>(
            query.data(), kQueryWidth, kHeadDim, out.data(), cache.key.data(), cache.value.data(), nullptr, nullptr,
            kKvHeads, kBlockSize, cache.shape.padded_dim(), step.block_tables.data(), step.num_columns,
            step.cu_seqlens_q.data(), step.seq_lens.data(), (int64_t)step.requests.size(), kHeads, kHeadDim,
            1.0f / std::sqrt((float)kHeadDim), layer.window, 0.0f, nullptr, 0, nullptr, 1);
        return out;
    }
};

// Results are about 1 in size; whole requests, as the cache has nothing of them before.
template <class T, class E>
void test_stack(Format format, double tolerance) {
    Stack<T, E> stack(format, {{33, 33}, {1, 1}, {7, 7}, {20, 20}});
    const std::string what = std::string("layer stack ") + type_name<T> +
                             (PagedCache<E>::kHasScales ? " int8 cache" : "") + ", format " +
                             std::to_string((int)format);
    std::vector<Expected> expected;
    for (float each : stack.expected()) expected.push_back({each, tolerance});
    const auto all = stack.run(stack.step, 0, 1), again = stack.run(stack.step, 0, 2);
    check_near(what, all.data(), expected);
    check_same_bits(what + ", two threads", again.data(), all.data(), (int64_t)all.size());
    const int32_t cu_outputs[] = {0, 1, 1, 3, 4};  // lines 32, 39, 40 and 60
    const auto outputs = stack.run(stack.step, 0, 2, cu_outputs);
    const int64_t lines[] = {32, 39, 40, 60};
    for (int64_t i = 0; i < 4; ++i)
        check_same_bits(what + ", output " + std::to_string(i), &outputs[(size_t)(i * kHidden)],
                        &all[(size_t)(lines[i] * kHidden)], kHidden);
    for (size_t r = 0; r < stack.step.requests.size(); ++r) {
        const int64_t first = stack.step.cu_seqlens_q[r];
        const auto one = stack.run(stack.step.alone(r), first, 1 + (int)r % 2);
        check_same_bits(what + ", request " + std::to_string(r) + " alone", one.data(), &all[(size_t)(first * kHidden)],
                        (int64_t)one.size());
    }
}

}  // namespace

void test_layer_stack() {
    test_stack<float, float>(Format::float32, 1e-4);
    test_stack<float, float>(Format::int8, 1e-4);
    test_stack<float, float>(Format::int8_dynamic, 0.1);
    test_stack<float, float>(Format::int4_dynamic, 0.1);
    test_stack<float, int8_t>(Format::float32, 0.1);
    test_stack<bfloat16, bfloat16>(Format::bfloat16, 0.1);
    test_stack<bfloat16, int8_t>(Format::bfloat16, 0.1);
    test_stack<bfloat16, bfloat16>(Format::int8_dynamic, 0.2);
}
