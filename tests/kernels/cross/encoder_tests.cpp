// All layers of an encoder in one call, beside the same layers in plain double.

#include "linear_tests.h"

namespace {

constexpr int64_t kHidden = 72, kHeads = 3, kHeadDim = 24, kInner = 100, kNumLayers = 2, kMaxDistance = 6;
constexpr int64_t kQueryWidth = kHeads * kHeadDim;
constexpr float kEps = 1e-5f;
using Doubles = std::vector<double>;

template <class T>
struct Layer {
    TestWeight weights[4];  // qkv, output, up, down
    Weight arguments[4];
    std::vector<T> biases[4], norm_weights[2], norm_biases[2];

    Layer(Format format, Generator& generator) {
        const WeightShape shapes[] = {{format, kHidden, 3 * kQueryWidth},
                                      {format, kQueryWidth, kHidden},
                                      {format, kHidden, kInner},
                                      {format, kInner, kHidden}};
        for (int i = 0; i < 4; ++i) {
            weights[i] = make_weight(shapes[i], generator);
            biases[i] = generator.numbers<T>(shapes[i].out_features, 0.1f);
        }
        for (int i = 0; i < 2; ++i) {
            norm_weights[i] = generator.numbers<T>(kHidden, 0.2f);
            norm_biases[i] = generator.numbers<T>(kHidden, 0.2f);
            for (T& each : norm_weights[i]) each = to_number<T>(to_float(each) + 1.0f);
        }
    }

    EncoderLayerArgument argument() {
        for (int i = 0; i < 4; ++i) arguments[i] = weights[i].argument();
        return {&arguments[0],
                &arguments[1],
                &arguments[2],
                &arguments[3],
                biases[0].data(),
                biases[1].data(),
                biases[2].data(),
                biases[3].data(),
                {norm_weights[0].data(), norm_biases[0].data()},
                {norm_weights[1].data(), norm_biases[1].data()}};
    }
};

template <class T>
Doubles multiply(const Layer<T>& layer, int which, const Doubles& x, Activation activation) {
    const TestWeight& weight = layer.weights[which];
    const int64_t width = weight.shape.in_features, num_rows = (int64_t)x.size() / width;
    Doubles out;
    for (int64_t row = 0; row < num_rows; ++row)
        for (int64_t output = 0; output < weight.shape.out_features; ++output) {
            double sum = to_float(layer.biases[which][(size_t)output]);
            for (int64_t i = 0; i < width; ++i) sum += weight.at(output, i) * x[(size_t)(row * width + i)];
            out.push_back(activate(activation, sum));
        }
    return out;
}

template <class T>
void norm(Doubles& x, const Layer<T>& layer, int which) {
    for (size_t row = 0; row < x.size(); row += kHidden) {
        double mean = 0.0, squares = 0.0;
        for (size_t i = 0; i < kHidden; ++i) mean += x[row + i] / kHidden;
        for (size_t i = 0; i < kHidden; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
        const double factor = 1.0 / std::sqrt(squares / kHidden + kEps);
        for (size_t i = 0; i < kHidden; ++i)
            x[row + i] = (x[row + i] - mean) * factor * to_float(layer.norm_weights[which][i]) +
                         to_float(layer.norm_biases[which][i]);
    }
}

// One text's attention: every token sees all of them.
Doubles attend(const Doubles& heads, const std::vector<float>& bias) {
    const int64_t stride = 3 * kQueryWidth, length = (int64_t)heads.size() / stride;
    Doubles out((size_t)(length * kQueryWidth));
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t query = 0; query < length; ++query) {
            Doubles weights;
            double total = 0.0;
            for (int64_t key = 0; key < length; ++key) {
                double score = 0.0;
                for (int64_t d = head * kHeadDim; d < (head + 1) * kHeadDim; ++d)
                    score += heads[(size_t)(query * stride + d)] * heads[(size_t)(key * stride + kQueryWidth + d)];
                score /= std::sqrt((double)kHeadDim);
                const int64_t distance = std::clamp(key - query, -kMaxDistance, kMaxDistance);
                if (!bias.empty()) score += bias[(size_t)(head * (2 * kMaxDistance + 1) + kMaxDistance - distance)];
                weights.push_back(std::exp(score));
                total += weights.back();
            }
            for (int64_t d = head * kHeadDim; d < (head + 1) * kHeadDim; ++d)
                for (int64_t key = 0; key < length; ++key)
                    out[(size_t)(query * kQueryWidth + d)] +=
                        weights[(size_t)key] / total * heads[(size_t)(key * stride + 2 * kQueryWidth + d)];
        }
    return out;
}

template <class T>
struct Encoder {
    std::vector<Layer<T>> layers;
    std::vector<float> bias;
    std::vector<int32_t> starts;
    std::vector<T> x;

    Encoder(Format format, std::vector<int32_t> of_starts, bool has_bias) : starts(std::move(of_starts)) {
        Generator generator((uint64_t)format + 31);
        for (int64_t i = 0; i < kNumLayers; ++i) layers.emplace_back(format, generator);
        x = generator.numbers<T>(starts.back() * kHidden);
        if (has_bias) bias = generator.numbers<float>(kHeads * (2 * kMaxDistance + 1));
    }

    std::vector<T> run(const std::vector<int32_t>& some, int64_t first_token, int32_t pooling, int num_threads) {
        std::vector<EncoderLayerArgument> arguments;
        for (Layer<T>& layer : layers) arguments.push_back(layer.argument());
        const EncoderArgument encoder = {
            arguments.data(),
            kNumLayers,
            kHidden,
            {kHeads, kHeadDim, 1.0f / std::sqrt((float)kHeadDim), bias.empty() ? nullptr : bias.data(), kMaxDistance},
            kEps,
            (int32_t)Activation::gelu,
            {}};
        const int64_t num_texts = (int64_t)some.size() - 1;
        std::vector<T> out((size_t)((pooling ? num_texts : some.back()) * kHidden));
        TextsArgument texts = {};
        texts.x = &x[(size_t)(first_token * kHidden)], texts.out = out.data();
        texts.starts = some.data(), texts.num_texts = num_texts, texts.pooling = pooling;
        kernel::run_encoder<T>(&encoder, &texts, num_threads);
        return out;
    }

    Doubles expected(size_t text) const {
        Doubles sums;
        for (int64_t i = starts[text] * kHidden; i < starts[text + 1] * kHidden; ++i)
            sums.push_back(to_float(x[(size_t)i]));
        for (const Layer<T>& layer : layers) {
            const Doubles attended = attend(multiply(layer, 0, sums, Activation::none), bias);
            const Doubles output = multiply(layer, 1, attended, Activation::none);
            for (size_t i = 0; i < sums.size(); ++i) sums[i] += output[i];
            norm(sums, layer, 0);
            const Doubles down = multiply(layer, 3, multiply(layer, 2, sums, Activation::gelu), Activation::none);
            for (size_t i = 0; i < sums.size(); ++i) sums[i] += down[i];
            norm(sums, layer, 1);
        }
        return sums;
    }
};

template <class T>
void test_type(Format format, bool has_bias, double tolerance) {
    Encoder<T> encoder(format, {0, 5, 6, 50, 83}, has_bias);
    const std::string what = std::string("encoder ") + type_name<T> + ", format " + std::to_string((int)format);
    const auto all = encoder.run(encoder.starts, 0, 0, 1), again = encoder.run(encoder.starts, 0, 0, 2);
    check_same_bits(what + ", two threads", again.data(), all.data(), (int64_t)all.size());
    std::vector<Expected> expected, means;
    for (size_t text = 0; text + 1 < encoder.starts.size(); ++text) {
        const int64_t first = encoder.starts[text], length = encoder.starts[text + 1] - first;
        const auto own = encoder.expected(text);
        for (double each : own) expected.push_back({each, tolerance});
        for (int64_t i = 0; i < kHidden; ++i) {
            double sum = 0.0;
            for (int64_t token = 0; token < length; ++token) sum += own[(size_t)(token * kHidden + i)];
            means.push_back({sum / (double)length, tolerance});
        }
        const auto one = encoder.run({0, (int32_t)length}, first, 0, 1 + (int)text % 2);
        check_same_bits(what + ", a text alone", one.data(), &all[(size_t)(first * kHidden)], (int64_t)one.size());
    }
    check_near(what, all.data(), expected);
    check_near(what + ", means", encoder.run(encoder.starts, 0, 1, 2).data(), means);
    for (int32_t pooling : {2, 3}) {
        const auto picked = encoder.run(encoder.starts, 0, pooling, 2);
        for (size_t text = 0; text + 1 < encoder.starts.size(); ++text) {
            const int64_t token = pooling == 2 ? encoder.starts[text] : encoder.starts[text + 1] - 1;
            check_same_bits(what + ", a picked token", &picked[text * kHidden], &all[(size_t)(token * kHidden)], kHidden);
        }
    }
}

}  // namespace

void test_encoder() {
    test_type<float>(Format::float32, false, 1e-4);
    test_type<float>(Format::float32, true, 1e-4);
    test_type<float>(Format::int8, false, 1e-4);
    test_type<float>(Format::int8_dynamic, false, 0.1);
    test_type<bfloat16>(Format::bfloat16, true, 0.1);
}
