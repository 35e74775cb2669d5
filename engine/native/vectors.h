// What the float32 kernels are made of: vectors of eight floats, and products with a packed panel.
//
// Every output element is computed by the same operations in the same order whatever the other rows of the batch are, so
// that a sequence's numbers do not depend on who is batched with it.
//
// Plain C++17 with the vector extension of GCC and Clang: eight floats are one AVX2 register, or two NEON ones.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

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

// ---- Panels: the other factor of a product, packed 16 columns side by side, so that each of its vectors meets one number of
// each row and no sum ends across a register.

constexpr int64_t kPanel = 2 * kLanes;
constexpr int kTileRows = 6;  // 12 running sums, two vectors of the panel and a number: 15 of 16 registers

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

// out[m][0..16 P) += x[m] . panels [depth, 16] for M rows and P panels, which lie panel_stride apart; `begins` sets it instead.
template <int M, int P = 1>
inline void panel_tile(const float* x, int64_t x_stride, const float* panels, int64_t panel_stride, int64_t depth, bool begins,
                       float* out, int64_t out_stride) {
    Vec total[M][2 * P];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < 2 * P; ++n) total[m][n] = begins ? Vec{} : load(out + m * out_stride + n * kLanes);
    for (int64_t k = 0; k < depth; ++k) {
        Vec w[2 * P];
        for (int n = 0; n < 2 * P; ++n) w[n] = load(panels + n / 2 * panel_stride + k * kPanel + n % 2 * kLanes);
        for (int m = 0; m < M; ++m) {
            const float number = x[m * x_stride + k];
            for (int n = 0; n < 2 * P; ++n) total[m][n] += number * w[n];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < 2 * P; ++n) store(out + m * out_stride + n * kLanes, total[m][n]);
}

// work(std::integral_constant<int, M>, first) for M rows at a time, `count` in all.
template <class Work>
inline void by_row_tiles(int64_t count, Work work) {
    int64_t first = 0;
    for (; count - first == kTileRows || count - first >= 2 * kTileRows; first += kTileRows)
        work(std::integral_constant<int, kTileRows>{}, first);
    // Up to 11 rows are left: in two tiles alike if one does not hold them, as a tile of a row or two leaves the units idle.
    for (int64_t left = count - first; left > 0; left = count - first) {
        const int64_t rows = left < kTileRows ? left : (left + 1) / 2;
        switch (rows) {
            case 6: work(std::integral_constant<int, 6>{}, first); break;
            case 5: work(std::integral_constant<int, 5>{}, first); break;
            case 4: work(std::integral_constant<int, 4>{}, first); break;
            case 3: work(std::integral_constant<int, 3>{}, first); break;
            case 2: work(std::integral_constant<int, 2>{}, first); break;
            case 1: work(std::integral_constant<int, 1>{}, first); break;
        }
        first += rows;
    }
}

}  // namespace
