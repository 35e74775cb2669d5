// The decoder's float32 kernels.
//
// Every output element is computed by the same operations in the same order whatever the other rows of the batch are, so
// that a sequence's numbers do not depend on who is batched with it. A product has two such orders: of few rows, and of many.
//
// Plain C++17 with the vector extension of GCC and Clang: eight floats are one AVX2 register, or two NEON ones.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

constexpr int64_t kLanes = 8;
typedef float Vec __attribute__((vector_size(32)));
typedef float Unaligned __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(32)));

inline Vec load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Unaligned*>(to) = value; }
inline Vec all(float value) { return value - Vec{}; }

// Pairwise; the order is fixed.
inline float sum(Vec v) {
    typedef float Half __attribute__((vector_size(16)));
    Half low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    const Half four = low + high;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// exp(x) for x <= 0, relative error below 2e-7; 0 below -87. x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its series.
inline Vec exp_of(Vec x) {
    IntVec keep = x > all(-87.0f);
    Vec scaled = x * 1.44269504f;
    IntVec n = __builtin_convertvector(scaled - 0.5f, IntVec);  // truncation towards 0 rounds, as scaled <= 0
    Vec whole = __builtin_convertvector(n, Vec);
    Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Vec series = all(1.0f / 5040);
    for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) series = series * r + coefficient;
    IntVec bits = (n + 127) << 23;
    Vec power;
    std::memcpy(&power, &bits, sizeof power);
    Vec result = series * power;
    IntVec masked;
    std::memcpy(&masked, &result, sizeof masked);
    masked &= keep;
    std::memcpy(&result, &masked, sizeof result);
    return result;
}

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

// ---- Products of many rows: bound by arithmetic, not by reading the weight. It is packed, 16 features side by side, so that
// each of its vectors meets one number of each row and no sum ends across a register.

constexpr int64_t kManyRows = 48, kPanel = 2 * kLanes, kPanelDepth = 512;
// A packed panel of 32 KiB stays in the first or second cache while all rows pass.

// to[k * kPanel + i] = from[i * stride + k] for 8 by 8.
inline void transpose(const float* from, int64_t stride, float* to) {
    Vec row[kLanes], pair[kLanes], four[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = load(from + i * stride);
    for (int i = 0; i < kLanes; i += 2) {
        pair[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pair[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < kLanes; i += 4) {
        for (int j = 0; j < 2; ++j) {
            four[i + 2 * j] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            four[i + 2 * j + 1] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    for (int i = 0; i < kLanes / 2; ++i) {
        store(to + i * kPanel, __builtin_shufflevector(four[i], four[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        store(to + (i + 4) * kPanel, __builtin_shufflevector(four[i], four[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
}

// out[m][0..16) += x[m] . panel [depth, 16] for M rows; `begins` sets it instead.
template <int M>
inline void panel_tile(const float* x, int64_t x_stride, const float* panel, int64_t depth, bool begins, float* out,
                       int64_t out_stride) {
    Vec left[M], right[M];
    for (int m = 0; m < M; ++m) {
        left[m] = begins ? Vec{} : load(out + m * out_stride);
        right[m] = begins ? Vec{} : load(out + m * out_stride + kLanes);
    }
    for (int64_t k = 0; k < depth; ++k) {
        const Vec w_left = load(panel + k * kPanel), w_right = load(panel + k * kPanel + kLanes);
        for (int m = 0; m < M; ++m) {
            const float number = x[m * x_stride + k];
            left[m] += number * w_left;
            right[m] += number * w_right;
        }
    }
    for (int m = 0; m < M; ++m) {
        store(out + m * out_stride, left[m]);
        store(out + m * out_stride + kLanes, right[m]);
    }
}

// out [rows, kPanel] of the panel of features that begins at `weight`; packed: room for [kPanelDepth, kPanel].
void panel_rows(const float* x, const float* weight, int64_t rows, int64_t depth, float* packed, float* out, int64_t out_stride) {
    for (int64_t first = 0; first < depth; first += kPanelDepth) {
        const int64_t count = std::min(kPanelDepth, depth - first);
        for (int64_t k = 0; k < count; k += kLanes) {
            transpose(weight + first + k, depth, packed + k * kPanel);
            transpose(weight + kLanes * depth + first + k, depth, packed + k * kPanel + kLanes);
        }
        const auto tile = [&](auto rows_of_tile, int64_t m) {
            panel_tile<rows_of_tile>(x + m * depth + first, depth, packed, count, first == 0, out + m * out_stride, out_stride);
        };
        constexpr int64_t kRows = 6;  // 12 running sums, two vectors of the panel and a number: 15 of 16 registers
        int64_t m = 0;
        for (; m + kRows <= rows; m += kRows) tile(std::integral_constant<int, kRows>{}, m);
        switch (rows - m) {
            case 5: tile(std::integral_constant<int, 5>{}, m); break;
            case 4: tile(std::integral_constant<int, 4>{}, m); break;
            case 3: tile(std::integral_constant<int, 3>{}, m); break;
            case 2: tile(std::integral_constant<int, 2>{}, m); break;
            case 1: tile(std::integral_constant<int, 1>{}, m); break;
        }
    }
}

// ---- Attention of decodes

// scores [length] become exp(score - most), in place; the buffer has room up to the next multiple of 8. Returns their sum.
inline float exponentiate(float* scores, int64_t length) {
    float most = scores[0];
    for (int64_t i = 1; i < length; ++i) most = std::max(most, scores[i]);
    const int64_t padded = (length + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = length; i < padded; ++i) scores[i] = -INFINITY;
    Vec total = {};
    for (int64_t i = 0; i < padded; i += kLanes) {
        const Vec weight = exp_of(load(scores + i) - most);
        store(scores + i, weight);
        total += weight;
    }
    return sum(total);
}

// The query heads [group, kDim] that share one KV head of one sequence: scores, softmax, weighted sum of values. Block by
// block, so that a block read for the first head is in the cache for the others. scores: [group, score_stride].
template <int kDim>
void attend_group(const float* query, const float* keys, const float* values, const int64_t* blocks, int64_t length,
                  int64_t group, int64_t block_size, int64_t position_stride, float scale, float* scores,
                  int64_t score_stride, float* out) {
    constexpr int kParts = kDim / kLanes;
    for (int64_t start = 0; start < length; start += block_size) {
        const float* block = keys + blocks[start / block_size] * block_size * position_stride;
        const int64_t count = std::min(block_size, length - start);
        for (int64_t head = 0; head < group; ++head) {
            Vec q[kParts];
            for (int d = 0; d < kParts; ++d) q[d] = load(query + head * kDim + d * kLanes) * scale;
            for (int64_t i = 0; i < count; ++i) {
                const float* key = block + i * position_stride;
                Vec even = {}, odd = {};
                for (int d = 0; d < kParts; d += 2) {
                    even += q[d] * load(key + d * kLanes);
                    odd += q[d + 1] * load(key + (d + 1) * kLanes);
                }
                scores[head * score_stride + start + i] = sum(even + odd);
            }
        }
    }
    for (int64_t head = 0; head < group; ++head) {
        float* weights = scores + head * score_stride;
        const float normaliser = 1.0f / exponentiate(weights, length);
        for (int64_t i = 0; i < length; i += kLanes) store(weights + i, load(weights + i) * normaliser);
    }
    std::fill(out, out + group * kDim, 0.0f);
    for (int64_t start = 0; start < length; start += block_size) {
        const float* block = values + blocks[start / block_size] * block_size * position_stride;
        const int64_t count = std::min(block_size, length - start);
        for (int64_t head = 0; head < group; ++head) {
            const float* weights = scores + head * score_stride + start;
            Vec attended[kParts];
            for (int d = 0; d < kParts; ++d) attended[d] = load(out + head * kDim + d * kLanes);
            for (int64_t i = 0; i < count; ++i)
                for (int d = 0; d < kParts; ++d) attended[d] += weights[i] * load(block + i * position_stride + d * kLanes);
            for (int d = 0; d < kParts; ++d) store(out + head * kDim + d * kLanes, attended[d]);
        }
    }
}

using AttendGroup = decltype(&attend_group<64>);

inline AttendGroup attend_group_of(int64_t dim) {
    switch (dim) {
        case 16: return attend_group<16>;
        case 32: return attend_group<32>;
        case 64: return attend_group<64>;
        case 96: return attend_group<96>;
        case 128: return attend_group<128>;
        default: return nullptr;
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

// One query token per sequence. query: rows query_stride apart, [heads, dim] each; out [sequences, heads, dim]; keys, values
// [blocks, block_size, kv_heads, dim]; tables [sequences, table_width]. Returns 0, or 1 when it is not built for
// this dim: ask with sequences = 0.
int32_t stallscope_decode_attention(const float* query, const float* keys, const float* values, const int64_t* tables,
                                    const int64_t* lengths, float* out, int64_t sequences, int64_t heads, int64_t kv_heads,
                                    int64_t dim, int64_t block_size, int64_t table_width, int64_t query_stride,
                                    float scale, int32_t threads) {
    const AttendGroup attend = attend_group_of(dim);
    if (attend == nullptr) return 1;
    const int64_t group = heads / kv_heads, score_stride = table_width * block_size + kLanes;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> scores(group * score_stride);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t sequence = 0; sequence < sequences; ++sequence)
            for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head)
                attend(query + sequence * query_stride + kv_head * group * dim, keys + kv_head * dim,
                       values + kv_head * dim, tables + sequence * table_width, lengths[sequence], group, block_size,
                       kv_heads * dim, scale, scores.data(), score_stride,
                       out + (sequence * heads + kv_head * group) * dim);
    }
    return 0;
}

}  // extern "C"
