// Paged attention in float32: of decodes, bound by reading keys and values, and of chunks of prompts, bound by arithmetic.

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

inline int64_t round_up(int64_t length, int64_t multiple) { return (length + multiple - 1) / multiple * multiple; }

// ---- The softmax of both

// As many scores as the softmax goes by. Those that fill up to it are -inf: they weigh nothing.
inline int64_t padded(int64_t length) { return round_up(length, kWideLanes); }

// Of scores [length], padded.
inline float largest(const float* scores, int64_t length) {
    Wide most = load<Wide>(scores);
    for (int64_t i = kWideLanes; i < length; i += kWideLanes) {
        const Wide next = load<Wide>(scores + i);
        most = next > most ? next : most;
    }
    float result = most[0];
    for (int i = 1; i < kWideLanes; ++i) result = std::max(result, most[i]);
    return result;
}

// scores [length], padded, become exp(score - most), in place. Returns their sum.
inline float exponentiate(float* scores, int64_t length, float most) {
    Wide total = {};
    for (int64_t i = 0; i < length; i += kWideLanes) {
        const Wide weight = exp_of(load<Wide>(scores + i) - most);
        store(scores + i, weight);
        total += weight;
    }
    return sum(total);
}

// ---- Attention of decodes

// Asks for a head's row of keys or values.
template <int kDim>
inline void fetch(const float* row) {
    for (int64_t d = 0; d < kDim; d += kLine) __builtin_prefetch(row + d);
}

// The query heads [group, kDim] that share one KV head of one sequence: scores, softmax, weighted sum of values. Block by
// block, so that a block read for the first head is in the cache for the others, and the next one, which lies anywhere, is
// fetched meanwhile. scores: [group, score_stride].
template <int kDim>
void attend_group(const float* query, const float* keys, const float* values, const int64_t* blocks, int64_t length,
                  int64_t group, int64_t block_size, int64_t position_stride, float scale, float* scores,
                  int64_t score_stride, float* out) {
    using Part = std::conditional_t<kDim % (2 * kWideLanes) == 0, Wide, Vec>;  // of a head, an even number of them
    constexpr int64_t kPart = kLanesOf<Part>, kParts = kDim / kPart;
    const auto block_at = [&](const float* pool, int64_t position) {
        return pool + blocks[position / block_size] * block_size * position_stride;
    };
    for (int64_t start = 0; start < length; start += block_size) {
        const float *block = block_at(keys, start), *next = block_at(keys, std::min(start + block_size, length - 1));
        const int64_t count = std::min(block_size, length - start);
        for (int64_t head = 0; head < group; ++head) {
            Part q[kParts];
            for (int64_t d = 0; d < kParts; ++d) q[d] = load<Part>(query + head * kDim + d * kPart) * scale;
            for (int64_t i = 0; i < count; ++i) {
                const float* key = block + i * position_stride;
                if (head == 0) fetch<kDim>(next + i * position_stride);
                Part even = {}, odd = {};
                for (int64_t d = 0; d < kParts; d += 2) {
                    even += q[d] * load<Part>(key + d * kPart);
                    odd += q[d + 1] * load<Part>(key + (d + 1) * kPart);
                }
                scores[head * score_stride + start + i] = sum(even + odd);
            }
        }
    }
    for (int64_t head = 0; head < group; ++head) {
        float* weights = scores + head * score_stride;
        std::fill(weights + length, weights + padded(length), -INFINITY);
        const float normaliser = 1.0f / exponentiate(weights, padded(length), largest(weights, padded(length)));
        for (int64_t i = 0; i < length; i += kWideLanes) store(weights + i, load<Wide>(weights + i) * normaliser);
    }
    std::fill(out, out + group * kDim, 0.0f);
    for (int64_t start = 0; start < length; start += block_size) {
        const float *block = block_at(values, start), *next = block_at(values, std::min(start + block_size, length - 1));
        const int64_t count = std::min(block_size, length - start);
        for (int64_t head = 0; head < group; ++head) {
            const float* weights = scores + head * score_stride + start;
            Part attended[kParts];
            for (int64_t d = 0; d < kParts; ++d) attended[d] = load<Part>(out + head * kDim + d * kPart);
            for (int64_t i = 0; i < count; ++i) {
                if (head == 0) fetch<kDim>(next + i * position_stride);
                for (int64_t d = 0; d < kParts; ++d) attended[d] += weights[i] * load<Part>(block + i * position_stride + d * kPart);
            }
            for (int64_t d = 0; d < kParts; ++d) store(out + head * kDim + d * kPart, attended[d]);
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

// ---- Attention of chunks of prompts: tiles of query rows against spans of the context, whose keys and values are packed like
// a weight. Spans begin at multiples of kSpan, and what a row does not see adds exactly 0, so that neither the cut of a prompt
// into chunks nor that of a chunk into tiles changes a number.

constexpr int64_t kSpan = 256, kQueryRows = 144;
constexpr int64_t kScoreStride = kSpan + kLine;  // of rows: at a power of two they would push each other out of the first cache
// A span's packed values are 1 KiB for each component of a panel, the scores of a tile 153 KiB: they stay in the first and
// second cache.

// As std::vector aligns nothing to a line.
struct alignas(64) Line {
    float numbers[kLine];
};
class Floats {
  public:
    explicit Floats(int64_t count) : lines_(round_up(count, kLine) / kLine) {}
    float* data() { return lines_.front().numbers; }

  private:
    std::vector<Line> lines_;
};

// One KV head of one sequence: position p lies at blocks[p / block_size] * block_size + p % block_size, in strides.
struct Context {
    const float *keys, *values;
    const int64_t* blocks;
    int64_t block_size, stride;
};

// offsets [count], in floats, of the positions from `first` on.
inline void locate(const Context& context, int64_t first, int64_t count, int64_t* offsets) {
    int64_t block = first / context.block_size, within = first % context.block_size;
    for (int64_t i = 0; i < count; ++i) {
        offsets[i] = (context.blocks[block] * context.block_size + within) * context.stride;
        if (++within == context.block_size) within = 0, ++block;
    }
}

// What a thread needs for a tile of up to `rows` query rows.
struct Scratch {
    Scratch(int64_t rows, int64_t dim)
        : query(rows * dim), scores(rows * kScoreStride), attended(rows * round_up(dim, kPanel)), most(rows), total(rows),
          packed(kPanel * std::max(kSpan, dim)) {}
    Floats query, scores, attended;  // the last by whole panels, see attended_stride
    std::vector<float> most, total;  // of a row so far: its largest score, and the sum of its weights relative to that
    Floats packed;
    int64_t offsets[kSpan + kPanel];
};

// The rows of a tile: positions start.. of one sequence, and for each of them the `group` query heads that share a KV head.
struct QueryTile {
    int64_t start, rows, group, dim;
    // Row r sees this many of the positions from `first` on.
    int64_t visible(int64_t row, int64_t first) const { return start + row / group + 1 - first; }
    // The first row that sees position `first`.
    int64_t first_row(int64_t first) const { return std::max<int64_t>(0, first - start) * group; }
    int64_t attended_stride() const { return round_up(dim, kPanel); }
};

// scores [rows, kScoreStride] of `count` positions from `first` on, a panel of keys after the other.
void score_span(const QueryTile& tile, const Context& context, int64_t first, int64_t count, Scratch& scratch) {
    std::fill(scratch.offsets + count, scratch.offsets + count + kPanel - 1, scratch.offsets[count - 1]);  // not seen
    float* packed = scratch.packed.data();
    for (int64_t panel = 0; panel < count; panel += kPanel) {
        const int64_t* offsets = scratch.offsets + panel;
        for (int64_t d = 0; d < tile.dim; d += kLanes)
            for (int64_t i = 0; i < kPanel; i += kLanes)
                transpose([&](int64_t row) { return context.keys + offsets[i + row] + d; }, packed + d * kPanel + i);
        const int64_t from = tile.first_row(first + panel);
        const float* query = scratch.query.data() + from * tile.dim;
        float* scores = scratch.scores.data() + from * kScoreStride + panel;
        by_row_tiles(tile.rows - from, [&](auto rows, int64_t m) {
            panel_tile<rows>(query + m * tile.dim, tile.dim, packed, 0, tile.dim, true, scores + m * kScoreStride, kScoreStride);
        });
    }
}

// Scores of the span become weights; sums of the spans before, with a smaller largest score, are scaled to the new one.
void weigh_span(const QueryTile& tile, int64_t first, int64_t count, Scratch& scratch) {
    for (int64_t row = tile.first_row(first); row < tile.rows; ++row) {
        float* scores = scratch.scores.data() + row * kScoreStride;
        const int64_t seen = std::min(count, tile.visible(row, first));
        // The last row of those that are multiplied together may see so many positions more.
        const int64_t length = padded(std::min(count, seen + kTileRows - 1));
        std::fill(scores + seen, scores + length, -INFINITY);
        const float before = scratch.most[row], most = std::max(before, largest(scores, length));
        const float kept = exp_of(all(before - most))[0];
        scratch.total[row] = scratch.total[row] * kept + exponentiate(scores, length, most);
        scratch.most[row] = most;
        float* attended = scratch.attended.data() + row * tile.attended_stride();
        for (int64_t d = 0; d < tile.dim; d += kLanes) store(attended + d, load(attended + d) * kept);
    }
}

// attended [rows, dim] += weights of the span times its values, a panel of components after the other.
void add_span(const QueryTile& tile, const Context& context, int64_t first, int64_t count, Scratch& scratch) {
    const int64_t from = tile.first_row(first), stride = tile.attended_stride();
    float* packed = scratch.packed.data();
    for (int64_t d = 0; d < tile.dim; d += kPanel) {
        const int64_t width = std::min(kPanel, tile.dim - d);  // the rest of the last panel goes where nobody reads
        for (int64_t i = 0; i < count; ++i) {
            const float* value = context.values + scratch.offsets[i] + d;
            for (int64_t n = 0; n < width; n += kLanes) store(packed + i * kPanel + n, load(value + n));
        }
        const float* weights = scratch.scores.data() + from * kScoreStride;
        float* attended = scratch.attended.data() + from * stride + d;
        by_row_tiles(tile.rows - from, [&](auto rows, int64_t m) {
            const int64_t seen = std::min(count, tile.visible(from + m + rows - 1, first));
            panel_tile<rows>(weights + m * kScoreStride, kScoreStride, packed, 0, seen, false, attended + m * stride, stride);
        });
    }
}

// query and out: the tile's first position and first head of the group; positions are strides apart, heads dim.
void attend_tile(const QueryTile& tile, const Context& context, const float* query, int64_t query_stride, float scale,
                 Scratch& scratch, float* out, int64_t out_stride) {
    const auto [start, rows, group, dim] = tile;
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = query + row / group * query_stride + row % group * dim;
        for (int64_t d = 0; d < dim; d += kLanes) store(scratch.query.data() + row * dim + d, load(from + d) * scale);
    }
    std::fill_n(scratch.attended.data(), rows * tile.attended_stride(), 0.0f);
    std::fill_n(scratch.most.begin(), rows, -INFINITY);
    std::fill_n(scratch.total.begin(), rows, 0.0f);
    const int64_t end = tile.visible(rows - 1, 0);
    for (int64_t first = 0; first < end; first += kSpan) {
        const int64_t count = std::min(kSpan, end - first);
        locate(context, first, count, scratch.offsets);
        score_span(tile, context, first, count, scratch);
        weigh_span(tile, first, count, scratch);
        add_span(tile, context, first, count, scratch);
    }
    for (int64_t row = 0; row < rows; ++row) {
        const float* attended = scratch.attended.data() + row * tile.attended_stride();
        const float normaliser = 1.0f / scratch.total[row];
        float* to = out + row / group * out_stride + row % group * dim;
        for (int64_t d = 0; d < dim; d += kLanes) store(to + d, load(attended + d) * normaliser);
    }
}

}  // namespace

extern "C" {

// One query token per sequence. query: rows query_stride apart, [heads, dim] each; out [sequences, heads, dim]; keys, values
// [blocks, block_size, kv_heads, dim]; tables [sequences, table_width]. Returns 0, or 1 when it is not built for
// this dim: ask with sequences = 0.
int32_t stallscope_decode_attention(const float* query, const float* keys, const float* values, const int64_t* tables,
                                    const int64_t* lengths, float* out, int64_t sequences, int64_t heads, int64_t kv_heads,
                                    int64_t dim, int64_t block_size, int64_t table_width, int64_t query_stride,
                                    float scale, int32_t threads) {
    const AttendGroup attend = attend_group_of(dim);
    if (attend == nullptr) return 1;
    const int64_t group = heads / kv_heads, score_stride = padded(table_width * block_size);
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

// The last positions of each of `chunks` sequences: rows row_starts[c]..row_starts[c + 1] of query and out [rows, heads, dim],
// the last of them at position lengths[c] - 1, each attending to positions 0 up to its own. The rest is as above.
void stallscope_chunk_attention(const float* query, const float* keys, const float* values, const int64_t* tables,
                                const int64_t* lengths, const int64_t* row_starts, float* out, int64_t chunks, int64_t heads,
                                int64_t kv_heads, int64_t dim, int64_t block_size, int64_t table_width,
                                int64_t query_stride, float scale, int32_t threads) {
    struct Part {
        int64_t chunk, row, count;
    };
    const int64_t group = heads / kv_heads, step = std::max<int64_t>(1, kQueryRows / group);
    std::vector<Part> parts;
    for (int64_t c = 0; c < chunks; ++c)
        for (int64_t row = row_starts[c]; row < row_starts[c + 1]; row += step)
            parts.push_back({c, row, std::min(step, row_starts[c + 1] - row)});
    int64_t most_rows = 0;
    for (const Part& part : parts) most_rows = std::max(most_rows, part.count * group);
    const int64_t count = parts.size();
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Scratch scratch(most_rows, dim);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t p = count - 1; p >= 0; --p)  // from the end: the longest of a chunk first
            for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
                const auto [chunk, row, positions] = parts[p];
                const Context context{keys + kv_head * dim, values + kv_head * dim, tables + chunk * table_width, block_size,
                                      kv_heads * dim};
                const QueryTile tile{lengths[chunk] - row_starts[chunk + 1] + row, positions * group, group, dim};
                attend_tile(tile, context, query + row * query_stride + kv_head * group * dim, query_stride, scale, scratch,
                            out + (row * heads + kv_head * group) * dim, heads * dim);
            }
    }
}

}  // extern "C"
