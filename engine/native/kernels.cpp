// The decoder's float32 kernels besides attention.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// So much of a panel's depth, 48 KiB or 96, stays in the second cache while all rows pass.
constexpr int64_t kPanelDepth = 768;
// So many rows of x, up to 768 KiB of that depth, stay there too while all panels pass.
constexpr int64_t kMostRows = 256;

// out [rows, kPanel] = x [rows, depth] . panel. What lies behind it, which is the next one, is fetched meanwhile: else its memory
// would be waited for in the pass of the first rows, and idle while the others pass.
void multiply(const float* x, const float* panel, int64_t rows, int64_t depth, float* out, int64_t out_stride) {
    constexpr int kLines = kPanel / kLine;  // of a panel, with every step in depth
    for (int64_t first = 0; first < depth; first += kPanelDepth) {
        const int64_t count = std::min(kPanelDepth, depth - first);
        const float *from = panel + first * kPanel, *ahead = from + count * kPanel, *end = ahead + count * kPanel;
        by_row_tiles(rows, [&](auto tile, int64_t m) {
            const float* in = x + m * depth + first;
            float* to = out + m * out_stride;
            if (rows <= kTileRows) {
                panel_tile<tile, 1, kLines>(in, depth, from, 0, count, first == 0, to, out_stride, ahead);
            } else if (ahead < end) {
                panel_tile<tile, 1, 1>(in, depth, from, 0, count, first == 0, to, out_stride, ahead);
                ahead += count * kLine;
            } else {
                panel_tile<tile>(in, depth, from, 0, count, first == 0, to, out_stride);
            }
        });
    }
}

// Up to three rows: against several panels at once, as one of them gives the processor too few sums to work on.
constexpr int64_t kFewRows = 3, kPanelsAtOnce[kFewRows + 1] = {1, 4, 3, 2};

void multiply_few(const float* x, const float* panels, int64_t rows, int64_t depth, float* out, int64_t out_stride) {
    const int64_t stride = depth * kPanel;
    switch (rows) {
        case 1: panel_tile<1, kPanelsAtOnce[1]>(x, depth, panels, stride, depth, true, out, out_stride); break;
        case 2: panel_tile<2, kPanelsAtOnce[2]>(x, depth, panels, stride, depth, true, out, out_stride); break;
        case 3: panel_tile<3, kPanelsAtOnce[3]>(x, depth, panels, stride, depth, true, out, out_stride); break;
    }
}

// See stallscope_linear.
void multiply_rows(const float* x, const float* panels, const float* bias, float* out, int64_t rows, int64_t features,
                   int64_t depth, int32_t threads) {
    const int64_t at_once = rows <= kFewRows ? kPanelsAtOnce[rows] : 1, width = at_once * kPanel;
    const int64_t parts = (features + width - 1) / width;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> edge(rows * kPanel);  // the last panel, if some of it is past `features`
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t end = std::min(features, (part + 1) * width);
            int64_t n = part * width;
            if (at_once > 1 && n + width <= features) {
                multiply_few(x, panels + n * depth, rows, depth, out + n, features);
                n += width;
            }
            for (; n + kPanel <= end; n += kPanel) multiply(x, panels + n * depth, rows, depth, out + n, features);
            if (n < end) {
                multiply(x, panels + n * depth, rows, depth, edge.data(), kPanel);
                for (int64_t row = 0; row < rows; ++row) std::copy_n(edge.data() + row * kPanel, end - n, out + row * features + n);
            }
            if (bias != nullptr)
                for (int64_t row = 0; row < rows; ++row)
                    for (n = part * width; n < end; ++n) out[row * features + n] += bias[n];
        }
    }
}

}  // namespace

extern "C" {

// What this was built from: see build.py.
const char* stallscope_source() { return STALLSCOPE_SOURCE; }

// Whether this processor has the instructions that the library was built with.
int32_t stallscope_runs_here() {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__) && defined(__FMA__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

// How many features a panel of a weight has side by side.
int32_t stallscope_panel() { return kPanel; }

// out [rows, features] = x [rows, depth] . panels [ceil(features / kPanel), depth, kPanel]; what lies past `features` in the
// last panel is not written.
void stallscope_linear(const float* x, const float* panels, const float* bias, float* out, int64_t rows, int64_t features,
                       int64_t depth, int32_t threads) {
    const int64_t parts = (rows + kMostRows - 1) / kMostRows;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = rows * part / parts, count = rows * (part + 1) / parts - first;
        multiply_rows(x + first * depth, panels, bias, out + first * features, count, features, depth, threads);
    }
}

// out = x / sqrt(mean(x^2) + epsilon) * weight, by rows of `size`, a multiple of 8.
void stallscope_rms_norm(const float* x, const float* weight, float* out, int64_t rows, int64_t size, float epsilon) {
    for (int64_t row = 0; row < rows; ++row, x += size, out += size) {
        Vec squares = {};
        for (int64_t i = 0; i < size; i += kLanes) squares += load(x + i) * load(x + i);
        const float scale = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon);
        for (int64_t i = 0; i < size; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
    }
}

// out [rows, size] = silu(gate) * up of gate_up [rows, 2 * size], size a multiple of 8.
void stallscope_silu_mul(const float* gate_up, float* out, int64_t rows, int64_t size, int32_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; ++row) {
        const float *gate = gate_up + row * 2 * size, *up = gate + size;
        for (int64_t i = 0; i < size; i += kLanes) {
            const Vec g = load(gate + i);
            const Vec small = exp_of(g < 0.0f ? g : -g);  // exp(-|g|) <= 1 cannot overflow
            const Vec sigmoid = (g < 0.0f ? small : all(1.0f)) / (small + 1.0f);
            store(out + row * size + i, g * sigmoid * load(up + i));
        }
    }
}

// out [rows, heads, dim] = rotation of x by cos and signed sin [rows, dim]; rows of x are x_stride apart; dim / 2 is a
// multiple of 8. The pair of component i is i + dim / 2.
void stallscope_rotate(const float* x, const float* cosine, const float* sine, float* out, int64_t rows, int64_t heads,
                       int64_t dim, int64_t x_stride) {
    const int64_t half = dim / 2;
    for (int64_t row = 0; row < rows; ++row) {
        const float *c = cosine + row * dim, *s = sine + row * dim;
        for (int64_t head = 0; head < heads; ++head, out += dim) {
            const float* in = x + row * x_stride + head * dim;
            for (int64_t i = 0; i < half; i += kLanes) {
                const Vec first = load(in + i), second = load(in + half + i);
                store(out + i, first * load(c + i) + second * load(s + i));
                store(out + half + i, second * load(c + half + i) + first * load(s + half + i));
            }
        }
    }
}

// Copies rows [rows, size] of key and value, their rows strides apart, to the slots of one layer's pools.
void stallscope_store(const float* key, const float* value, float* keys, float* values, const int64_t* slots, int64_t rows,
                      int64_t size, int64_t key_stride, int64_t value_stride) {
    for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(keys + slots[row] * size, key + row * key_stride, size * sizeof(float));
        std::memcpy(values + slots[row] * size, value + row * value_stride, size * sizeof(float));
    }
}

}  // extern "C"
