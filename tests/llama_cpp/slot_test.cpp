// Files of llama_state_seq_save_file, written here as llama.cpp writes them, shrunk by
// examples/engines/llama_cpp.
#include <shrink_slot.hpp>

#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "support/random_cache.hpp"

namespace slot_cases {

namespace {

constexpr std::uint32_t layers = 2, heads = 2, d = 32, cells = 48, width = heads * d, tokens = 50;

struct element_kind {
  std::uint32_t ggml_type;
  std::uint32_t block, block_bytes;
  double error;  ///< of a number up to 1 that is stored
};
constexpr element_kind f32{0, 1, 4, 0}, f16{1, 1, 2, 5e-4}, q4_0{2, 32, 18, 0.13}, q4_1{3, 32, 20, 0.07},
    q5_0{6, 32, 22, 0.065}, q5_1{7, 32, 24, 0.035}, q8_0{8, 32, 34, 5e-3}, bf16{30, 1, 2, 4e-3};

/// The number of a token; cell i has token (i + 11) % cells, as in a cache that has gone round.
float number(std::uint32_t layer, std::uint32_t token, std::uint32_t c, bool key) {
  // Tokens that follow each other have similar keys, so that some merge.
  std::uint64_t const of = ((layer * 2 + key) * 1000u + (key ? token / 3 : token)) * 1000u + c;
  support::dice coarse(of), fine(of * 1000 + token + 7);
  return static_cast<float>((coarse.uniform() * 2 - 1) * 0.9 + (fine.uniform() * 2 - 1) * 0.1);
}
std::uint32_t token_of(std::uint32_t cell) { return (cell + 11) % cells; }

class writer {
public:
  template <class T> void put(T value) {
    auto const* const raw = reinterpret_cast<std::uint8_t const*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof value);
  }
  /// A row of one cell, through kvmeld's own types, which tests/layout compares with ggml's.
  void put_row(element_kind kind, std::vector<float> const& row) {
    std::vector<std::uint8_t> raw(row.size() / kind.block * kind.block_bytes);
    kvmeld::shape const s{1, 1, 1, 1, 0, 0, 1};
    kvmeld::serial_team const team(nullptr, 0);
    llama_cpp::with_layout(raw.data(), kind.ggml_type, raw.size(), false, s, [&](auto const& layout) {
      layout.encode_row(team, {}, 0, [&](std::uint32_t c) { return row[c]; });
    });
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  }
  std::vector<std::uint8_t> bytes;
};

/// A cache of these tokens, at positions from 100 on.
void put_cache(writer& w, element_kind keys, element_kind values, bool transposed, std::uint32_t version,
               std::vector<std::uint32_t> const& held) {
  w.put(std::uint32_t{1});
  w.put(static_cast<std::uint32_t>(held.size()));
  for (std::uint32_t token : held) {
    w.put(static_cast<std::int32_t>(100 + token));
    w.put(std::uint32_t{1});
    w.put(std::uint32_t{0});
  }
  w.put(std::uint32_t{transposed});
  w.put(layers);
  if (version == 4) {  // rotations
    w.put(std::uint32_t{0});
    w.put(std::uint32_t{64});
  }
  auto const rows = [&](element_kind kind, std::uint32_t layer, bool key) {
    w.put(std::uint64_t{width / kind.block * kind.block_bytes});
    for (std::uint32_t token : held) {
      std::vector<float> row;
      for (std::uint32_t c = 0; c < width; ++c) row.push_back(number(layer, token, c, key));
      w.put_row(kind, row);
    }
  };
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    w.put(keys.ggml_type);
    rows(keys, layer, true);
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    w.put(values.ggml_type);
    if (transposed) {
      w.put(values.block_bytes);
      w.put(width);
      for (std::uint32_t c = 0; c < width; ++c)
        for (std::uint32_t token : held) w.put_row(values, {number(layer, token, c, false)});
    } else {
      rows(values, layer, false);
    }
  }
}

std::vector<std::uint8_t> saved(element_kind keys, element_kind values, bool transposed,
                                std::uint32_t version = 3) {
  writer w;
  w.put(std::uint32_t{0x67677371});
  w.put(version);
  w.put(tokens);
  for (std::uint32_t i = 0; i < tokens; ++i) w.put(i * 3);
  std::vector<std::uint32_t> held;
  for (std::uint32_t i = 0; i < cells; ++i) held.push_back(token_of(i));
  put_cache(w, keys, values, transposed, version, held);
  return w.bytes;
}

std::vector<std::uint8_t> joined(std::initializer_list<std::vector<std::uint8_t>> parts) {
  std::vector<std::uint8_t> out;
  for (auto const& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

/// A cache of the layers with a window: the tokens from `first` on.
std::vector<std::uint8_t> window_cache(bool transposed, std::uint32_t version, std::uint32_t first) {
  writer w;
  std::vector<std::uint32_t> held;
  for (std::uint32_t token = first; token < cells; ++token) held.push_back(token);
  put_cache(w, q8_0, f16, transposed, version, held);
  return w.bytes;
}

/// Checkpoints that end at these positions, as a llama-server writes them.
std::vector<std::uint8_t> checkpoints(std::vector<std::int32_t> const& last) {
  writer w;
  for (char c : {'S', 'C', 'K', 'P'}) w.put(c);
  w.put(std::uint32_t{1});
  w.put(static_cast<std::uint32_t>(last.size()));
  for (std::int32_t position : last) {
    w.put(std::int64_t{position + 1});
    w.put(std::int32_t{0});
    w.put(position);
    for (std::uint64_t bytes : {33u, 0u, 5u}) {
      w.put(bytes);
      for (std::uint64_t i = 0; i < bytes; ++i)
        w.put(static_cast<std::uint8_t>(position + static_cast<std::int32_t>(7 * i)));
    }
  }
  return w.bytes;
}

llama_cpp::shrinking by(std::string const& policy, std::uint32_t left, std::uint32_t tail = 0) {
  llama_cpp::shrinking how;
  kvmeld::compose::read_policy(policy, how.policy);
  how.kv_heads = heads;
  how.cells = left;
  how.tail = tail;
  how.threads = 1;
  return how;
}

/// Bytes of one head of a cell.
std::vector<std::uint8_t> head_bytes(llama_cpp::sequence_state::tensor t, bool along, std::uint32_t cell,
                                     std::uint32_t head, std::size_t in_file) {
  std::vector<std::uint8_t> out;
  std::size_t const size = t.row / heads;
  if (!along) return {t.data + cell * t.row + head * size, t.data + cell * t.row + (head + 1) * size};
  std::size_t const element = t.row / width;
  for (std::size_t c = 0; c < d; ++c) {
    std::uint8_t const* const at = t.data + ((head * d + c) * in_file + cell) * element;
    out.insert(out.end(), at, at + element);
  }
  return out;
}

/// Numbers of one head of a cell.
std::vector<float> head_numbers(llama_cpp::sequence_state::tensor t, bool along, std::uint32_t cell,
                                std::uint32_t head, std::uint32_t in_file) {
  std::vector<std::uint8_t> aligned(t.data, t.data + t.bytes);
  std::vector<float> out(d);
  kvmeld::shape const s{1, 1, heads, 1, 0, 0, in_file};
  llama_cpp::with_layout(aligned.data(), t.type, t.row, along, s, [&](auto const& layout) {
    layout.load_tile(kvmeld::serial_team(nullptr, 0), kvmeld::make_track(s, 0, 0, head), cell, 1, 0, d,
                     out.data(), d);
  });
  return out;
}

/// What kvmeld's template makes of the same numbers.
template <class Policy> struct expected_rows {
  std::vector<float> keys, values;  ///< [layer][cell][head][channel], `cells` apart
  std::size_t merged = 0;

  expected_rows(Policy const& policy, std::uint32_t left) {
    kvmeld::shape const s{layers, 1, heads, 1, d, d, cells};
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (std::uint32_t token = 0; token < cells; ++token) {
        for (std::uint32_t c = 0; c < width; ++c) {
          keys.push_back(number(layer, token, c, true));
          values.push_back(number(layer, token, c, false));
        }
      }
    }
    kvmeld::strided<float> const k(keys.data(), "LSTHC", s, d), v(values.data(), "LSTHC", s, d);
    kvmeld::cache_options sizes{s};
    sizes.bias = kvmeld::bias_support::none;
    sizes.ignore_degree = true;
    sizes.scope = kvmeld::plan_scope::all_layers;
    kvmeld::merged_cache cache(kvmeld::host_executor(1), policy, kvmeld::kv{k, v}, sizes);
    cache.open(0, cells);
    cache.compress({0}, kvmeld::budget::entries(left));
    for (std::uint32_t slot = 0; slot < left; ++slot)
      merged += cache.ref().degree(cache.ref().where(0, 0, 0), slot) > 1;
  }
};

}  // namespace

TEST_CASE("a saved sequence with rows evicted keeps the bytes of the others, whatever their type") {
  struct {
    element_kind keys, values;
    bool transposed;
  } const files[] = {{f32, f32, false},   {f16, f16, true},    {f16, f16, false},
                     {bf16, bf16, true},  {q8_0, q8_0, false}, {q4_0, q4_1, false},
                     {q5_0, q5_1, false}, {q4_1, f32, true},   {q5_1, f16, false}};
  for (auto const& each : files) {
    element_kind const keys = each.keys, values = each.values;
    bool const transposed = each.transposed;
    CAPTURE(keys.ggml_type);
    CAPTURE(values.ggml_type);
    std::uint32_t const version = 2 + (keys.ggml_type + values.ggml_type) % 3;
    std::vector<std::uint8_t> const bytes = saved(keys, values, transposed, version);
    std::size_t const words = version == 4 ? 4 : 2;  // behind the cells
    llama_cpp::sequence_state file = llama_cpp::read_slot(bytes), before = llama_cpp::read_slot(bytes);
    std::vector<std::uint8_t> const out = llama_cpp::shrink_slot(file, by("streaming_llm sinks=4", 12, 3));
    CHECK(std::vector<std::uint8_t>(out.begin(), out.begin() + 16 + 4 * tokens) ==
          std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + 16 + 4 * tokens));
    llama_cpp::sequence_state after = llama_cpp::read_slot(out);
    REQUIRE(after.cells() == 12);
    std::ptrdiff_t const was_at = 20 + 4 * tokens + 12 * cells, is_at = 20 + 4 * tokens + 12 * 12;
    CHECK(std::equal(bytes.begin() + was_at, bytes.begin() + was_at + static_cast<std::ptrdiff_t>(4 * words),
                     out.begin() + is_at));
    CHECK(after.transposed() == transposed);
    for (std::uint32_t cell = 0; cell < 12; ++cell) {
      std::uint32_t const token = cell < 4 ? cell : cells - 12 + cell, was = (token + cells - 11) % cells;
      CHECK(after.position(cell) == static_cast<std::int32_t>(100 + std::max(token, cells - 4)));
      for (std::uint32_t layer = 0; layer < layers; ++layer) {
        for (std::uint32_t head = 0; head < heads; ++head) {
          CHECK(head_bytes(after.keys(layer), false, cell, head, 12) ==
                head_bytes(before.keys(layer), false, was, head, cells));
          CHECK(head_bytes(after.values(layer), transposed, cell, head, 12) ==
                head_bytes(before.values(layer), transposed, was, head, cells));
        }
      }
    }
  }
}

TEST_CASE("a saved sequence with rows merged has the rows that the template makes of the same numbers") {
  auto const policy = kvmeld::preset::merging(kvmeld::preset::keydiff::for_budget());
  for (auto const& each : {std::pair{f32, false}, {f32, true}, {f16, true}, {bf16, false}, {q8_0, false}}) {
    element_kind const kind = each.first;
    bool const transposed = each.second;
    CAPTURE(kind.ggml_type);
    llama_cpp::sequence_state file = llama_cpp::read_slot(saved(kind, kind, transposed));
    llama_cpp::sequence_state after =
        llama_cpp::read_slot(llama_cpp::shrink_slot(file, by("keydiff_merging", 20)));
    REQUIRE(after.cells() == 20);
    CHECK(after.position(19) == 100 + static_cast<std::int32_t>(cells) - 1);
    std::size_t apart = 0;
    expected_rows const wanted(policy, 20);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (std::uint32_t head = 0; head < heads; ++head) {
        for (std::uint32_t cell = 0; cell < 20; ++cell) {
          auto const k = head_numbers(after.keys(layer), false, cell, head, 20),
                     v = head_numbers(after.values(layer), transposed, cell, head, 20);
          for (std::uint32_t c = 0; c < d; ++c) {
            std::size_t const at = (std::size_t{layer * cells + cell} * heads + head) * d + c;
            apart +=
                std::abs(static_cast<double>(k[c]) - static_cast<double>(wanted.keys[at])) > 2 * kind.error;
            apart +=
                std::abs(static_cast<double>(v[c]) - static_cast<double>(wanted.values[at])) > 2 * kind.error;
          }
        }
      }
    }
    CHECK(wanted.merged > 0);
    CHECK(apart == 0);
  }
}

// llama.cpp drops cells by position: what is left must hold nothing of what it dropped.
TEST_CASE("no cell of a short slot depends on a token behind its position") {
  auto const another = [](std::uint32_t from) {  // the same text up to a token, then another one
    llama_cpp::sequence_state state = llama_cpp::read_slot(saved(f16, f16, false));
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (auto t : {state.keys(layer), state.values(layer)}) {
        for (std::uint32_t cell = 0; cell < cells; ++cell)
          if (token_of(cell) >= from)
            for (std::size_t i = 0; i < t.row; ++i)
              t.data[cell * t.row + i] ^= static_cast<std::uint8_t>(i % 2 ? 0x04 : 0x5a);
      }
    }
    return state;
  };
  for (char const* policy : {"keydiff_merging", "keydiff", "leverage_merging", "chelsea", "streaming_llm"}) {
    for (std::uint32_t const tail : {0u, 1u, 6u, 13u}) {
      CAPTURE(policy);
      CAPTURE(tail);
      std::size_t kept_alike = 0, bad = 0;
      llama_cpp::sequence_state file = llama_cpp::read_slot(saved(f16, f16, false));
      llama_cpp::sequence_state const short_file =
          llama_cpp::read_slot(llama_cpp::shrink_slot(file, by(policy, 20, tail)));
      for (std::uint32_t from = 1; from < cells; ++from) {
        llama_cpp::sequence_state other = another(from);
        llama_cpp::sequence_state one = short_file, two = llama_cpp::read_slot(
                                                        llama_cpp::shrink_slot(other, by(policy, 20, tail)));
        for (std::uint32_t cell = 0; cell < 20; ++cell) {
          bad += one.position(cell) != two.position(cell);
          if (one.position(cell) >= static_cast<std::int32_t>(100 + from)) continue;  // llama.cpp drops it
          ++kept_alike;
          for (std::uint32_t layer = 0; layer < layers; ++layer) {
            auto const same = [&](llama_cpp::sequence_state::tensor a, llama_cpp::sequence_state::tensor b) {
              return std::equal(a.data + cell * a.row, a.data + (cell + 1) * a.row, b.data + cell * b.row);
            };
            bad += !same(one.keys(layer), two.keys(layer)) || !same(one.values(layer), two.values(layer));
          }
        }
      }
      CHECK(bad == 0);
      // A difference in the tail leaves all cells before the tail, and those of the tail before the
      // difference.
      CHECK(kept_alike == std::size_t{tail} * (20 - tail) + tail * (tail - 1) / 2);
    }
  }
}

TEST_CASE("positions of a short slot follow one another to the last one, as llama.cpp requires") {
  std::vector<std::uint8_t> bytes = saved(f32, f32, false);
  for (std::uint32_t const left : {40u, 30u, 12u, 5u, 1u}) {  // each from the one before
    for (std::uint32_t const tail : {0u, left / 3, left - 1}) {
      CAPTURE(left);
      CAPTURE(tail);
      llama_cpp::sequence_state file = llama_cpp::read_slot(bytes);
      std::vector<std::uint8_t> const out = llama_cpp::shrink_slot(file, by("keydiff_merging", left, tail));
      llama_cpp::sequence_state const after = llama_cpp::read_slot(out);
      REQUIRE(after.cells() == left);
      CHECK(after.position(left - 1) == 100 + static_cast<std::int32_t>(cells) - 1);
      for (std::uint32_t cell = 1; cell < left; ++cell) {
        std::int32_t const step = after.position(cell) - after.position(cell - 1);
        CHECK((step == 0 || step == 1));
        if (cell < left - tail) CHECK(step == 0);
      }
      if (tail == left / 3) bytes = out;
    }
  }
  // A file with gaps, which another program may write: no tail reaches over a gap.
  std::vector<std::uint8_t> gaps = saved(f32, f32, false);
  for (std::uint32_t cell = 0; cell < cells; ++cell) {
    std::int32_t const position =
        static_cast<std::int32_t>(token_of(cell) < 40 ? token_of(cell) : 60 + token_of(cell));
    std::memcpy(&gaps[12 + 4 * tokens + 8 + 12 * cell], &position, sizeof position);
  }
  llama_cpp::sequence_state file = llama_cpp::read_slot(gaps);
  llama_cpp::sequence_state const after =
      llama_cpp::read_slot(llama_cpp::shrink_slot(file, by("keydiff", 20, 15)));
  for (std::uint32_t cell = 0; cell < 20; ++cell)
    CHECK(after.position(cell) == static_cast<std::int32_t>(cell < 12 ? 99 : 88 + cell));
}

TEST_CASE("layers with a window keep what the tail sees, and checkpoints that end before the tail go") {
  for (bool const transposed : {false, true}) {
    for (std::uint32_t const version : {3u, 4u}) {
      CAPTURE(transposed);
      CAPTURE(version);
      std::vector<std::uint8_t> const plain = saved(q8_0, f16, transposed, version);
      llama_cpp::sequence_state alone = llama_cpp::read_slot(plain);
      for (std::uint32_t const tail : {0u, 1u, 6u, 19u}) {
        CAPTURE(tail);
        llama_cpp::shrinking how = by("keydiff", tail == 1 ? 5 : 20, tail);  // fewer cells than a window
        std::vector<std::uint8_t> const shrunk = llama_cpp::shrink_slot(alone, how);
        alone = llama_cpp::read_slot(plain);
        how.window = 8;
        std::uint32_t const seen = cells - tail;  // tokens before the tail
        std::int32_t const begins = static_cast<std::int32_t>(100 + seen);
        auto const file = joined(
            {plain, window_cache(transposed, version, 20), checkpoints({110, begins - 1, begins, 147, 148})});
        llama_cpp::sequence_state state = llama_cpp::read_slot(file);
        CHECK(state.cells() == cells);
        CHECK(state.layers() == layers);
        CHECK(state.window_layers() == layers);
        CHECK(state.window_cells() == cells - 20);
        CHECK(state.checkpoints() == 5);
        std::vector<std::int32_t> stay;
        for (std::int32_t last : {begins, 147, 148})
          if (last >= begins) stay.push_back(last);
        std::vector<std::uint8_t> const got = llama_cpp::shrink_slot(state, how);
        CHECK(llama_cpp::read_slot(got).window_cells() == std::min(28u, tail + 8));
        CHECK(got == joined({shrunk, window_cache(transposed, version, std::max(20u, seen - 8)),
                             checkpoints(stay)}));
      }
    }
  }
}

TEST_CASE("the state of recurrent layers goes through") {
  std::vector<std::uint8_t> const plain = saved(f16, f16, false),
                                  other{1, 2, 3, 'S', 'C', 'K', 'P', 1, 0, 0, 0, 9};
  for (bool const marked : {false, true}) {
    auto const file = marked ? joined({plain, other, checkpoints({120, 145})}) : joined({plain, other});
    llama_cpp::sequence_state state = llama_cpp::read_slot(file, true), alone = llama_cpp::read_slot(plain);
    CHECK(state.window_layers() == 0);
    CHECK(state.checkpoints() == (marked ? 2u : 0u));
    llama_cpp::shrinking const how = by("keydiff", 20, 5);
    auto const shrunk = llama_cpp::shrink_slot(alone, how);
    CHECK(llama_cpp::shrink_slot(state, how) ==
          (marked ? joined({shrunk, other, checkpoints({145})}) : joined({shrunk, other})));
    CHECK_THROWS(llama_cpp::read_slot(file));
  }
}

TEST_CASE("what kvmeld_slot does not know of slots with windows it refuses") {
  std::vector<std::uint8_t> const plain = saved(f16, f16, false), window = window_cache(false, 3, 20);
  auto const known = joined({plain, window, checkpoints({147})});
  CHECK_NOTHROW(llama_cpp::read_slot(known));
  for (std::ptrdiff_t cut : {1, 8, 60})
    CHECK_THROWS(llama_cpp::read_slot({known.begin(), known.end() - cut}));
  CHECK_THROWS_WITH(llama_cpp::read_slot(joined({plain, window, {1, 2, 3}})),
                    "3 bytes behind the state are not known (those of a llama-server of build 11549 are)");
  llama_cpp::shrinking how = by("keydiff", 20, 6);
  how.window = 142;
  llama_cpp::sequence_state state = llama_cpp::read_slot(known);
  CHECK_THROWS_WITH(
      llama_cpp::shrink_slot(state, how),
      "number of tokens before the tail is 142; it must be above 142, the model's window: what is "
      "shorter, layers with a window hold whole");
  how.window = 141;
  CHECK_NOTHROW(llama_cpp::shrink_slot(state, how));

  kvmeld::shape const extent{layers, 1, heads, 1, d, d, cells};
  auto const policy = kvmeld::preset::keydiff::for_budget();
  llama_cpp::sequence_shortener<kvmeld::float16, std::decay_t<decltype(policy)>> shortener(extent, policy);
  std::vector<std::uint8_t> const words(8, 0), cache(plain.begin() + 12 + 4 * tokens, plain.end());
  CHECK_THROWS_WITH(shortener.shorten(joined({words, cache, window}), 0.5),
                    "number of caches in the state is 2, as of a model with a sliding window; it must be 1");
  CHECK_NOTHROW(shortener.shorten(joined({words, cache}), 0.5));
}

TEST_CASE("a slot that keeps all of its cells stays as it was") {
  llama_cpp::sequence_state file = llama_cpp::read_slot(saved(q8_0, f16, true)), before = file;
  llama_cpp::sequence_state after =
      llama_cpp::read_slot(llama_cpp::shrink_slot(file, by("keydiff", cells, 9)));
  std::vector<std::int32_t> const order = before.order();
  for (std::uint32_t cell = 0; cell < cells; ++cell) {
    auto const was = static_cast<std::uint32_t>(order[cell]);
    CHECK(after.position(cell) == before.position(was));
    CHECK(head_bytes(after.keys(1), false, cell, 1, cells) ==
          head_bytes(before.keys(1), false, was, 1, cells));
    CHECK(head_bytes(after.values(0), true, cell, 0, cells) ==
          head_bytes(before.values(0), true, was, 0, cells));
  }
}

TEST_CASE("policies that kvmeld_slot names need no attention") {
  for (char const* name : {"keydiff_merging", "keydiff", "knorm", "lagkv lag=8", "streaming_llm", "leverage",
                           "leverage_merging", "chelsea"}) {
    CAPTURE(name);
    llama_cpp::sequence_state file = llama_cpp::read_slot(saved(f16, f16, true));
    llama_cpp::sequence_state after = llama_cpp::read_slot(llama_cpp::shrink_slot(file, by(name, 24)));
    CHECK(after.cells() == 24);
  }
}

TEST_CASE(
    "learned scores choose the same cells as in a cache of such keys, and positions are those of the file") {
  std::vector<float> weights;
  support::dice dice(7);
  for (std::size_t i = 0; i < layers * heads * kvmeld::learned_weights::floats(d); ++i)
    weights.push_back(static_cast<float>(dice.uniform() * 2 - 1));
  kvmeld::rope_params rope;
  rope.pairing = kvmeld::rope_pairing::interleaved;
  rope.base = 100;
  kvmeld::learned_weights const of{weights.data(), layers, heads, d};
  auto how = by("learned sinks=1 recents=4 rope=interleaved rope_base=100", 20);
  REQUIRE(kvmeld::compose::set_learned(how.policy, of));
  llama_cpp::sequence_state file = llama_cpp::read_slot(saved(f32, f32, false)), before = file;
  llama_cpp::sequence_state after = llama_cpp::read_slot(llama_cpp::shrink_slot(file, how));

  // Naive, in double: keys of positions 100 to 147, turned back; the mean over all heads of all layers.
  std::vector<std::pair<double, std::uint32_t>> order;
  for (std::uint32_t token = 1; token + 4 < cells; ++token) {
    double sum = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (std::uint32_t head = 0; head < heads; ++head) {
        float const* const w = &weights[(layer * heads + head) * kvmeld::learned_weights::floats(d)];
        double const position = 100.0 + token;
        for (std::uint32_t i = 0; i < d / 2; ++i) {
          double const angle = position * std::pow(100.0, -2.0 * i / d);
          double const x = number(layer, token, head * d + 2 * i, true),
                       y = number(layer, token, head * d + 2 * i + 1, true);
          double const turned[] = {x * std::cos(angle) + y * std::sin(angle),
                                   y * std::cos(angle) - x * std::sin(angle)};
          for (std::uint32_t side : {0u, 1u})
            sum += turned[side] * (w[2 * i + side] + w[d + 2 * i + side] * turned[side]);
        }
        sum += w[2 * d] * std::log(1 + position) + w[2 * d + 1];
      }
    }
    order.emplace_back(-sum, token);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::uint32_t> expected{0};  // a sink, the best 15, the last 4
  for (std::size_t i = 0; i < 15; ++i) expected.push_back(order[i].second);
  for (std::uint32_t token = cells - 4; token < cells; ++token) expected.push_back(token);
  std::sort(expected.begin(), expected.end());
  std::vector<std::int32_t> const cell_of = before.order();
  for (std::uint32_t cell = 0; cell < 20; ++cell) {
    CAPTURE(cell);
    CHECK(head_numbers(after.keys(1), false, cell, 1, 20) ==
          head_numbers(before.keys(1), false, static_cast<std::uint32_t>(cell_of[expected[cell]]), 1, cells));
  }
  // Keys of a short slot are rotated for positions that it does not say.
  CHECK_THROWS_WITH(
      llama_cpp::shrink_slot(after, by("learned sinks=1 recents=4 rope=interleaved rope_base=100", 10)),
      "policy is one that turns keys back; it must be another one, because positions of cells "
      "repeat or are missing in the file, as in one that was shrunk: it does not say for which "
      "positions keys are rotated");
}

TEST_CASE("a slot of another model is refused, and a wrong number of KV heads") {
  for (auto const& each : {std::pair{f16, false}, {f16, true}, {q8_0, false}}) {
    llama_cpp::sequence_state file = llama_cpp::read_slot(saved(each.first, f16, each.second));
    llama_cpp::gguf_model model;
    model.name = "m.gguf";
    model.layers = layers;
    model.kv_heads = heads;
    model.key_dim = model.value_dim = d;
    llama_cpp::expect_model(file, model, 0);
    llama_cpp::expect_model(file, model, heads);
    for (std::uint32_t wrong : {1u, 4u, 8u, 64u, 3u}) {
      CHECK_THROWS_WITH(llama_cpp::expect_model(file, model, wrong),
                        ("--kv-heads is " + std::to_string(wrong) + "; it must be 2, as in m.gguf").c_str());
    }
    llama_cpp::gguf_model other = model;
    other.layers = 3;
    CHECK_THROWS_WITH(llama_cpp::expect_model(file, other, 0),
                      "number of layers in the slot is 2; it must be 3, as in m.gguf");
    other = model;
    other.kv_heads = 3;
    CHECK_THROWS_WITH(llama_cpp::expect_model(file, other, 0),
                      "number of channels of a key in the slot is 64; it must be 96, as in m.gguf");
    other = model;
    other.value_dim = 16;
    CHECK_THROWS_WITH(llama_cpp::expect_model(file, other, 0),
                      "number of channels of a value in the slot is 64; it must be 32, as in m.gguf");
  }
}

TEST_CASE("kvmeld_slot says what is wrong with a file or a request") {
  std::vector<std::uint8_t> const good = saved(q8_0, f16, true);
  auto const with_word = [&](std::size_t at, std::uint32_t value) {
    std::vector<std::uint8_t> bytes = good;
    std::memcpy(&bytes[at], &value, sizeof value);
    return bytes;
  };
  CHECK_THROWS_WITH(llama_cpp::read_slot({}), "not a file of llama_state_seq_save_file");
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(0, 1)), "not a file of llama_state_seq_save_file");
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(4, 5)),
                    "the version of the file is 5; it must be 2, 3 or 4");
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(8, 0xffffffffu)),
                    "sequence_state: number of streams is 0; it must be 1");
  std::size_t const begin = 12 + 4 * tokens;
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(begin, 2)),
                    "sequence_state: number of streams is 2; it must be 1");
  char const* const cut_off =
      "the state is cut off, or not one of attention (llama.cpp 0.5.0 and build 11549 "
      "were tried); the state of a model with recurrent layers cannot be read without "
      "its GGUF";
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(begin + 4, 0)), "the state has no cells");
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(begin + 4, 47)), cut_off);
  CHECK_THROWS_WITH(llama_cpp::read_slot(with_word(begin + 8 + 12 * cells + 12, 0)),
                    cut_off);  // rows of nothing
  for (std::uint32_t many : {49u, 0x7fffffffu, 0xffffffffu})
    CHECK_THROWS(llama_cpp::read_slot(with_word(begin + 4, many)));
  for (std::size_t left = 0; left < good.size(); left += 97)
    CHECK_THROWS(llama_cpp::read_slot({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(left)}));

  std::size_t const keys = begin + 8 + 12 * cells + 8, second = keys + 12 + cells * (width / 32 * 34);
  auto const refusal = [](std::vector<std::uint8_t> bytes, llama_cpp::shrinking const& how) -> std::string {
    try {
      llama_cpp::sequence_state file = llama_cpp::read_slot(std::move(bytes));
      llama_cpp::shrink_slot(file, how);
    } catch (std::exception const& problem) {
      return problem.what();
    }
    return "";
  };
  CHECK(refusal(with_word(second, 1), by("keydiff", 20)) ==
        "the state's layers differ in type or size of their rows");
  auto mixed = with_word(keys, 20);
  std::uint32_t const iq4_nl = 20;
  std::memcpy(&mixed[second], &iq4_nl, sizeof iq4_nl);
  CHECK(refusal(mixed, by("keydiff", 20)) ==
        "type of the cache is iq4_nl; it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
  CHECK(refusal(with_word(second, 31), by("keydiff", 20)) ==
        "the state's layers differ in type or size of their rows");
  std::uint32_t const q6_k = 14;
  std::memcpy(&mixed[keys], &q6_k, sizeof q6_k);
  std::memcpy(&mixed[second], &q6_k, sizeof q6_k);
  CHECK(refusal(mixed, by("keydiff", 20)) ==
        "type of the cache is ggml's number 14; it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
  CHECK(refusal(good, by("keydiff", 49)) ==
        "number of cells is 49; it must be at most 48, which the file has");
  CHECK(refusal(good, by("keydiff", 20, 20)) ==
        "tail is 20 cells; it must be fewer than 20, the cells that stay");
  CHECK(
      refusal(good, by("snapkv", 20)) ==
      "policy is one that needs queries; it must be one that reads keys and values alone, because a file has "
      "no queries");
  std::size_t const values = second + 12 + cells * (width / 32 * 34);
  auto const transposed_as = [&](std::uint32_t type) {
    auto bytes = with_word(values, type);
    std::memcpy(&bytes[values + 12 + cells * width * 2], &type, sizeof type);
    return refusal(bytes, by("keydiff", 20));
  };
  CHECK(transposed_as(0) == "transposed values are f32 of 2 bytes; they must be f32, f16 or bf16");
  CHECK(transposed_as(8) == "transposed values are q8_0 of 2 bytes; they must be f32, f16 or bf16");
  CHECK(transposed_as(30).empty());
  auto three = by("keydiff", 20);
  three.kv_heads = 3;
  CHECK(refusal(good, three) == "a row of 64 channels (q8_0) does not divide into 3 KV heads");
  CHECK(refusal(saved(f16, f16, false), three) ==
        "a row of 64 channels (f16) does not divide into 3 KV heads");
}

}  // namespace slot_cases
