// A file that llama_state_seq_save_file or a llama-server's slot action "save" wrote, with fewer cells.
// Keys and values become floats layer by layer, libkvmeld shrinks them, and they go back to their own type.
#pragma once

#include "sequence_state.hpp"

#include <kvmeld/kvmeld.h>
#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llama_cpp {

/// The state in a file: "qsgg", a version, a number of words, these words (the tokens, or what a llama-server
/// makes of them), and a sequence_state. The words stay as they are.
inline sequence_state read_slot(std::vector<std::uint8_t> bytes) {
  std::uint32_t head[3] = {};
  if (bytes.size() >= sizeof head) std::memcpy(head, bytes.data(), sizeof head);
  auto const [magic, version, words] = head;
  if (magic != 0x67677371u) throw std::runtime_error("not a file of llama_state_seq_save_file");
  if (version < 2 || version > 4) {
    throw std::runtime_error("the version of the file is " + std::to_string(version) +
                             "; it must be 2, 3 or 4");
  }
  return sequence_state(std::move(bytes), sizeof head + std::size_t{4} * words);
}

/// A type of a cache's rows: ggml's number of it, channels and bytes of a block.
struct cell_type {
  std::uint32_t number;
  char const* name;
  std::uint32_t channels, bytes;
};
inline constexpr cell_type cell_types[] = {{0, "f32", 1, 4},    {1, "f16", 1, 2},    {2, "q4_0", 32, 18},
                                           {3, "q4_1", 32, 20}, {6, "q5_0", 32, 22}, {7, "q5_1", 32, 24},
                                           {8, "q8_0", 32, 34}, {30, "bf16", 1, 2}};

inline cell_type const& cell_type_of(std::uint32_t number) {
  for (cell_type const& type : cell_types)
    if (type.number == number) return type;
  throw std::runtime_error("the cache has ggml's type " + std::to_string(number) +
                           "; it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
}

struct shrinking {
  std::string policy;             ///< as in kvmeld_options: a preset or parts
  std::uint32_t kv_heads, cells;  ///< of the model; that stay
  std::uint32_t threads = 0;      ///< 0: all
  std::function<void(std::uint32_t)> progress = [](std::uint32_t) {};  ///< is told each layer that is done
};

namespace slot_detail {

inline void expect_ok(kvmeld_status status) {
  if (status != KVMELD_OK) throw std::runtime_error(kvmeld_problem());
}

/// Calls use(layout) with the layout of a tensor of one layer that lies at `data`.
template <class F>
void with_layout(std::uint8_t* data, std::uint32_t number, std::size_t row, bool along_cells, kvmeld::shape s,
                 F const& use) {
  cell_type const& type = cell_type_of(number);
  if (row % (std::size_t{type.bytes} * s.kv_heads) != 0) {
    throw std::runtime_error("a row of " + std::to_string(row / type.bytes * type.channels) + " channels (" +
                             type.name + ") does not divide into " + std::to_string(s.kv_heads) +
                             " KV heads");
  }
  auto const of_head = static_cast<std::uint32_t>(row / s.kv_heads);  // bytes
  auto const elements = [&](auto* base) {
    std::uint32_t const channels = of_head / type.bytes;
    use(kvmeld::strided(base, along_cells ? "LSHCT" : "LSTHC", s, channels));
  };
  kvmeld::strided<std::uint8_t> const blocks(data, "LSTHC", s, of_head);
  switch (number) {
  case 0: return elements(reinterpret_cast<float*>(data));
  case 1: return elements(reinterpret_cast<kvmeld::float16*>(data));
  case 2: return use(kvmeld::q4_0_rows(blocks));
  case 3: return use(kvmeld::q4_1_rows(blocks));
  case 6: return use(kvmeld::q5_0_rows(blocks));
  case 7: return use(kvmeld::q5_1_rows(blocks));
  case 8: return use(kvmeld::q8_0_rows(blocks));
  default: return elements(reinterpret_cast<kvmeld::bfloat16*>(data));
  }
}

/// Keys or values of one layer as floats, [entry][head][channel]; entry i is cell order[i].
class layer_rows {
public:
  layer_rows(sequence_state::tensor t, bool along_cells, kvmeld::shape const& s,
             std::vector<std::int32_t> const& order)
      : tensor_(t), along_cells_(along_cells), shape_(s), order_(&order), before_(t.data, t.data + t.bytes) {
    cell_type const& type = cell_type_of(t.type);
    if (along_cells && (type.channels != 1 || type.bytes != t.unit)) {
      throw std::runtime_error("transposed values are " + std::string(type.name) + " of " +
                               std::to_string(t.unit) + " bytes; they must be f32, f16 or bf16");
    }
    each_row(before_, [&](auto const& layout, kvmeld::track where) {
      channels_ = layout.channels();
      floats_.resize(order.size() * s.kv_heads * channels_);
      for (std::size_t i = 0; i < order.size(); ++i)
        layout.load_tile(team_, where, static_cast<std::uint32_t>(order[i]), 1, 0, channels_,
                         row(floats_, where, i), channels_);
    });
    at_first_ = floats_;
  }

  std::uint32_t channels() const { return channels_; }
  kvmeld_tensor described() {
    auto const c = static_cast<std::int64_t>(channels_);
    return {floats_.data(), 0, 0, c, c * static_cast<std::int64_t>(shape_.kv_heads), 1};
  }
  /// Entry i of a head goes to cell i; it was entry positions[head][i]. Rows that nothing has merged into
  /// keep their bytes, also where a type rounds.
  void write(std::vector<std::vector<std::int32_t>> const& positions) {
    std::vector<std::uint8_t> now = before_;
    each_row(now, [&](auto const& layout, kvmeld::track where) {
      std::size_t const head_bytes = tensor_.row / shape_.kv_heads;
      for (std::size_t i = 0; i < positions[where.kv_head].size(); ++i) {
        auto const from = static_cast<std::size_t>(positions[where.kv_head][i]);
        float const* const x = row(floats_, where, i);
        bool const same = std::memcmp(x, row(at_first_, where, from), channels_ * sizeof *x) == 0;
        if (same && !along_cells_) {
          std::size_t const cell = static_cast<std::size_t>((*order_)[from]);
          std::memcpy(&now[i * tensor_.row + where.kv_head * head_bytes],
                      &before_[cell * tensor_.row + where.kv_head * head_bytes], head_bytes);
        } else {
          layout.encode_row(team_, where, static_cast<std::uint32_t>(i),
                            [&](std::uint32_t c) { return x[c]; });
        }
      }
    });
    std::copy(now.begin(), now.end(), tensor_.data);
  }

private:
  template <class F> void each_row(std::vector<std::uint8_t>& bytes, F const& use) {
    with_layout(bytes.data(), tensor_.type, tensor_.row, along_cells_, shape_, [&](auto const& layout) {
      for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
        use(layout, kvmeld::make_track(shape_, 0, 0, head));
    });
  }
  float* row(std::vector<float>& of, kvmeld::track where, std::size_t entry) const {
    return &of[(entry * shape_.kv_heads + where.kv_head) * channels_];
  }

  kvmeld::serial_team team_{nullptr, 0};
  sequence_state::tensor tensor_;
  bool along_cells_;
  kvmeld::shape shape_;
  std::vector<std::int32_t> const* order_;
  std::vector<std::uint8_t> before_;
  std::vector<float> floats_, at_first_;
  std::uint32_t channels_ = 0;
};

/// Shrinks one layer; returns the kept entries by head.
inline std::vector<std::vector<std::int32_t>> shrink_layer(shrinking const& how, std::uint32_t layer,
                                                           std::uint32_t entries, layer_rows& keys,
                                                           layer_rows& values) {
  kvmeld_options options;
  expect_ok(kvmeld_options_init(&options, sizeof options));
  options.policy = how.policy.c_str();
  options.layers = options.sequences = options.queries_per_kv_head = 1;
  options.kv_heads = how.kv_heads;
  options.key_dim = keys.channels();
  options.value_dim = values.channels();
  options.capacity = entries;
  options.bias = KVMELD_BIAS_NONE;
  options.ignore_degree = 1;
  options.first_layer = layer;
  options.threads = how.threads;
  kvmeld_tensor const k = keys.described(), v = values.described();
  kvmeld_cache made{};
  expect_ok(kvmeld_create(&options, &k, &v, 1, &made));
  struct owner {
    kvmeld_cache cache;
    ~owner() { kvmeld_destroy(cache); }
  } const owned{made};
  kvmeld_observation when = KVMELD_OBSERVE_NOTHING;
  expect_ok(kvmeld_needs(made, &when, nullptr, nullptr));
  if (when != KVMELD_OBSERVE_NOTHING) {
    throw std::runtime_error(
        "policy is \"" + how.policy +
        "\"; it must be one that reads keys and values alone, because a file has no queries");
  }
  std::uint32_t const sequence = 0;
  expect_ok(kvmeld_open(made, sequence, entries, 0));
  kvmeld_budget budget{};
  budget.entries = how.cells;
  expect_ok(kvmeld_compress(made, &sequence, 1, budget));
  std::vector<std::uint32_t> lengths(how.kv_heads);
  expect_ok(kvmeld_lengths(made, sequence, lengths.data()));
  std::vector<std::vector<std::int32_t>> kept;
  for (std::uint32_t head = 0; head < how.kv_heads; ++head) {
    if (lengths[head] != how.cells) {
      throw std::runtime_error("policy \"" + how.policy + "\" leaves " + std::to_string(lengths[head]) +
                               " entries in layer " + std::to_string(layer) + ", KV head " +
                               std::to_string(head) + "; they must be " + std::to_string(how.cells) +
                               ", since a cell serves all heads");
    }
    kept.emplace_back(lengths[head]);
    expect_ok(kvmeld_positions(made, 0, sequence, head, kept.back().data(), lengths[head]));
  }
  return kept;
}

}  // namespace slot_detail

/// The file with `how.cells` cells. They have the positions that the first layer's first head kept, but the
/// last cell has the last position, which llama.cpp requires; positions serve the causal mask alone.
inline std::vector<std::uint8_t> shrink_slot(sequence_state& state, shrinking const& how) {
  std::vector<std::int32_t> const order = state.order();
  std::uint32_t const entries = state.cells();
  if (how.cells > entries) {
    throw std::runtime_error("number of cells is " + std::to_string(how.cells) + "; it must be at most " +
                             std::to_string(entries) + ", which the file has");
  }
  kvmeld::shape const s{1, 1, how.kv_heads, 1, 0, 0, entries};
  std::vector<std::int32_t> kept(how.cells), positions;
  std::iota(kept.begin(), kept.end(), 0);
  auto const position = [&](std::int32_t entry) {
    return state.position(static_cast<std::uint32_t>(order[static_cast<std::size_t>(entry)]));
  };
  for (std::uint32_t layer = 0; layer < state.layers(); ++layer) {
    slot_detail::layer_rows keys(state.keys(layer), false, s, order);
    slot_detail::layer_rows values(state.values(layer), state.transposed(), s, order);
    auto const stays = slot_detail::shrink_layer(how, layer, entries, keys, values);
    keys.write(stays);
    values.write(stays);
    if (layer == 0) std::transform(stays[0].begin(), stays[0].end(), std::back_inserter(positions), position);
    how.progress(layer);
  }
  positions.back() = position(static_cast<std::int32_t>(entries - 1));
  return state.shortened(kept, positions);
}

}  // namespace llama_cpp
