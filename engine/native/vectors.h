// What the float32 kernels are made of: vectors, and products with a packed panel.
//
// Every output element is computed by the same operations in the same order whatever the other rows of the batch are, so
// that a sequence's numbers do not depend on who is batched with it.
//
// Plain C++17 with the vector extension of GCC and Clang. Eight floats are one AVX2 register, or two NEON ones. What arithmetic
// binds, which is products and softmax, goes by sixteen where they are one register; the rest is bound by memory.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

typedef float Vec __attribute__((vector_size(32)));
#ifdef __AVX512F__
typedef float Wide __attribute__((vector_size(64)));
constexpr int kTileRows = 12;  // see panel_tile: 24 running sums, two vectors of the panel and a number: 27 of 32 registers
#else
typedef Vec Wide;
constexpr int kTileRows = 6;  // 12, two and one: 15 of 16 registers
#endif

template <class V>
constexpr int64_t kLanesOf = sizeof(V) / sizeof(float);
constexpr int64_t kLanes = kLanesOf<Vec>, kWideLanes = kLanesOf<Wide>;

template <class V = Vec>
inline V load(const float* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
template <class V>
inline void store(float* to, V value) {
    std::memcpy(to, &value, sizeof value);
}
template <class V = Vec>
inline V all(float value) {
    return value - V{};
}

// Pairwise; the order is fixed.
inline float sum(Vec v) {
    typedef float Half __attribute__((vector_size(16)));
    Half low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    const Half four = low + high;
    return (four[0] + four[2]) + (four[1] + four[3]);
}
#ifdef __AVX512F__
inline float sum(Wide v) {
    Vec low, high;
    std::memcpy(&low, &v, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    return sum(low + high);
}
#endif

// exp(x) for x <= 0, relative error below 2e-7; 0 below -87. x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its series.
template <class V>
inline V exp_of(V x) {
    typedef decltype(x > x) Ints;
    Ints keep = x > all<V>(-87.0f);
    V scaled = x * 1.44269504f;
    Ints n = __builtin_convertvector(scaled - 0.5f, Ints);  // truncation towards 0 rounds, as scaled <= 0
    V whole = __builtin_convertvector(n, V);
    V r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    V series = all<V>(1.0f / 5040);
    for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) series = series * r + coefficient;
    Ints bits = (n + 127) << 23;
    V power;
    std::memcpy(&power, &bits, sizeof power);
    V result = series * power;
    Ints masked;
    std::memcpy(&masked, &result, sizeof masked);
    masked &= keep;
    std::memcpy(&result, &masked, sizeof result);
    return result;
}

// ---- Panels: the other factor of a product, packed two vectors of columns side by side, so that each vector meets one number
// of each row and no sum ends across a register.

constexpr int64_t kPanel = 2 * kWideLanes;
constexpr int64_t kLine = 16;  // of the cache, in floats

// to[k * kPanel + i] = row_of(i)[k] for 8 by 8.
template <class RowOf>
inline void transpose(RowOf row_of, float* to) {
    Vec row[kLanes], pair[kLanes], four[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = load(row_of(i));
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

// out[m][0..kPanel P) += x[m] . panels [depth, kPanel] for M rows and P panels, which lie panel_stride apart; `begins` sets it
// instead. With every step in depth it asks for kAhead lines of what will be needed after this. Never inlined: among other
// things that are in registers, GCC keeps half of the sums in memory.
template <int M, int P = 1, int kAhead = 0>
__attribute__((noinline)) void panel_tile(const float* x, int64_t x_stride, const float* panels, int64_t panel_stride,
                                          int64_t depth, bool begins, float* out, int64_t out_stride,
                                          const float* ahead = nullptr) {
    Wide total[M][2 * P];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < 2 * P; ++n) total[m][n] = begins ? Wide{} : load<Wide>(out + m * out_stride + n * kWideLanes);
    for (int64_t k = 0; k < depth; ++k) {
        for (int i = 0; i < kAhead; ++i) __builtin_prefetch(ahead + (k * kAhead + i) * kLine, 0, 2);
        Wide w[2 * P];
        for (int n = 0; n < 2 * P; ++n) w[n] = load<Wide>(panels + n / 2 * panel_stride + k * kPanel + n % 2 * kWideLanes);
        for (int m = 0; m < M; ++m) {
            const float number = x[m * x_stride + k];
            for (int n = 0; n < 2 * P; ++n) total[m][n] += number * w[n];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < 2 * P; ++n) store(out + m * out_stride + n * kWideLanes, total[m][n]);
}

// work(std::integral_constant<int, rows>, first) for a number of rows that is known only now: 1 up to M.
template <int M, class Work>
inline void with_rows(int64_t rows, int64_t first, Work work) {
    if constexpr (M > 1) {
        if (rows < M) return with_rows<M - 1>(rows, first, work);
    }
    work(std::integral_constant<int, M>{}, first);
}

// work(std::integral_constant<int, M>, first) for M rows at a time, `count` in all.
template <class Work>
inline void by_row_tiles(int64_t count, Work work) {
    int64_t first = 0;
    for (; count - first == kTileRows || count - first >= 2 * kTileRows; first += kTileRows)
        work(std::integral_constant<int, kTileRows>{}, first);
    // Fewer than two tiles are left: two alike if one does not hold them, as a tile of a row or two leaves the units idle.
    for (int64_t left = count - first; left > 0; left = count - first) {
        const int64_t rows = left < kTileRows ? left : (left + 1) / 2;
        with_rows<kTileRows>(rows, first, work);
        first += rows;
    }
}

}  // namespace
