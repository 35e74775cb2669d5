// The decoder's float32 kernels besides attention. A product has two orders of operations (see vectors.h): of few rows, and of
// many.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// out[m][n] = x[m] . weight[n] for M rows and N rows of weight. kFetch: the weight is read for the first time, and what comes
// after it is asked for meanwhile; once it is in the cache, asking again would cost a quarter of the time.
template <int M, int N, bool kFetch>
inline void dot_tile(const float* x, const float* weight, int64_t depth, float* out, int64_t out_stride) {
    Vec partial[M][N] = {};
    for (int64_t k = 0; k < depth; k += kLanes) {
        Vec w[N];
        for (int n = 0; n < N; ++n) {
            w[n] = load(weight + n * depth + k);
            // The rows of the next tile: a prefetch of memory that is not there is harmless.
            if (kFetch && k % 16 == 0) __builtin_prefetch(weight + (n + N) * depth + k);
        }
        for (int m = 0; m < M; ++m) {
            Vec row = load(x + m * depth + k);
            for (int n = 0; n < N; ++n) partial[m][n] += row * w[n];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) out[m * out_stride + n] = sum(partial[m][n]);
}

template <int M, bool kFetch>
inline void dot_rows(const float* x, const float* weight, int64_t rows, int64_t depth, float* out, int64_t out_stride) {
    constexpr int N = M == 1 ? 8 : M == 2 ? 6 : 3;  // as many running sums as fit into 16 registers
    int64_t n = 0;
    for (; n + N <= rows; n += N) dot_tile<M, N, kFetch>(x, weight + n * depth, depth, out + n, out_stride);
    for (; n < rows; ++n) dot_tile<M, 1, kFetch>(x, weight + n * depth, depth, out + n, out_stride);
}

// out [rows, count] = x weight^T for `count` rows of weight.
inline void dot_block(const float* x, const float* weight, int64_t rows, int64_t count, int64_t depth, float* out,
                      int64_t out_stride) {
    // The odd rows first: when few are decoded these are all there are, and the weight is on its way from memory.
    int64_t m = rows % 4;
    if (m == 3) dot_rows<3, true>(x, weight, count, depth, out, out_stride);
    if (m == 2) dot_rows<2, true>(x, weight, count, depth, out, out_stride);
    if (m == 1) dot_rows<1, true>(x, weight, count, depth, out, out_stride);
    if (m == 0 && rows > 0) dot_rows<4, true>(x, weight, count, depth, out, out_stride), m = 4;
    for (; m < rows; m += 4) dot_rows<4, false>(x + m * depth, weight, count, depth, out + m * out_stride, out_stride);
}

// ---- Products of many rows: bound by arithmetic, not by reading the weight, which is packed.

constexpr int64_t kManyRows = 48, kPanelDepth = 512;
// A packed panel of 32 KiB stays in the first or second cache while all rows pass.

// out [rows, kPanel] of the panel of features that begins at `weight`; packed: room for [kPanelDepth, kPanel].
void panel_rows(const float* x, const float* weight, int64_t rows, int64_t depth, float* packed, float* out, int64_t out_stride) {
    for (int64_t first = 0; first < depth; first += kPanelDepth) {
        const int64_t count = std::min(kPanelDepth, depth - first);
        for (int64_t k = 0; k < count; k += kLanes)
            for (int64_t i = 0; i < kPanel; i += kLanes)
                transpose([&](int64_t row) { return weight + (i + row) * depth + first + k; }, packed + k * kPanel + i);
        by_row_tiles(rows, [&](auto rows_of_tile, int64_t m) {
            panel_tile<rows_of_tile>(x + m * depth + first, depth, packed, count, first == 0, out + m * out_stride, out_stride);
        });
    }
}

}  // namespace

extern "C" {

// What this was built from: see build.py.
const char* stallscope_source() { return STALLSCOPE_SOURCE; }

// Whether this processor has the instructions that the library was built with.
int32_t stallscope_runs_here() {
#if defined(__AVX2__) && defined(__FMA__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

// out [rows, features] = x [rows, depth] weight^T, weight [features, depth]; depth is a multiple of 8.
void stallscope_linear(const float* x, const float* weight, const float* bias, float* out, int64_t rows, int64_t features,
                       int64_t depth, int32_t threads) {
    const bool many = rows >= kManyRows;
    // Of few rows: so many rows of weight stay in a core's cache while all rows of x pass.
    const int64_t block = many ? kPanel : std::max<int64_t>(24, (192 << 10) / (4 * depth) / 24 * 24);
    const int64_t blocks = (features + block - 1) / block;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> packed(many ? kPanel * kPanelDepth : 0);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t first = b * block, count = std::min(block, features - first);
            const float* part = weight + first * depth;
            if (many && count == kPanel)
                panel_rows(x, part, rows, depth, packed.data(), out + first, features);
            else
                dot_block(x, part, rows, count, depth, out + first, features);
            if (bias != nullptr)
                for (int64_t row = 0; row < rows; ++row)
                    for (int64_t n = first; n < first + count; ++n) out[row * features + n] += bias[n];
        }
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
