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
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llama_cpp {

/// The file: "qsgg", a version, the number of tokens, the tokens, and a sequence_state.
struct slot_file {
  std::uint32_t tokens;
  sequence_state state;
};

inline slot_file read_slot(std::vector<std::uint8_t> bytes) {
  std::uint32_t words[3] = {};
  std::memcpy(words, bytes.data(), std::min(bytes.size(), sizeof words));
  auto const [magic, version, tokens] = words;
  if (magic != 0x67677371u) throw std::runtime_error("not a file of llama_state_seq_save_file");
  if (version < 2 || version > 4) {
    throw std::runtime_error("the version of the file is " + std::to_string(version) +
                             "; it must be 2, 3 or 4");
  }
  slot_file file{tokens, sequence_state(std::move(bytes), sizeof words + std::size_t{4} * tokens)};
  if (file.state.cells() == 0 || file.state.layers() == 0) throw std::runtime_error("the file has no cells");
  return file;
}

inline char const* type_name(std::uint32_t ggml_type) {
  switch (ggml_type) {
  case 0: return "f32";
  case 1: return "f16";
  case 2: return "q4_0";
  case 3: return "q4_1";
  case 6: return "q5_0";
  case 7: return "q5_1";
  case 8: return "q8_0";
  case 30: return "bf16";
  default: return nullptr;
  }
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

/// Calls use(layout) with the layout of a tensor of one layer that lies at `data`, and its channels per head.
template <class F>
void with_layout(std::uint8_t* data, std::uint32_t type, std::size_t row, bool along_cells, kvmeld::shape s,
                 F const& use) {
  auto const elements = [&](auto* base) {
    auto const channels = static_cast<std::uint32_t>(row / sizeof *base / s.kv_heads);
    if (std::size_t{channels} * s.kv_heads * sizeof *base != row) {
      throw std::runtime_error("a row of " + std::to_string(row) + " bytes does not divide into " +
                               std::to_string(s.kv_heads) + " KV heads");
    }
    return use(kvmeld::strided(base, along_cells ? "LSHCT" : "LSTHC", s, channels));
  };
  auto const blocks = [&](auto rows_of, std::size_t bytes) {
    if (row % (bytes * s.kv_heads) != 0) {
      throw std::runtime_error("a row of " + std::to_string(row / bytes) +
                               " blocks of 32 channels does not divide into " + std::to_string(s.kv_heads) +
                               " KV heads");
    }
    use(rows_of(
        kvmeld::strided<std::uint8_t>(data, "LSTHC", s, static_cast<std::uint32_t>(row / s.kv_heads))));
  };
  switch (type) {
  case 0: return elements(reinterpret_cast<float*>(data));
  case 1: return elements(reinterpret_cast<kvmeld::float16*>(data));
  case 2: return blocks([](auto rows) { return kvmeld::q4_0_rows(rows); }, 18);
  case 3: return blocks([](auto rows) { return kvmeld::q4_1_rows(rows); }, 20);
  case 6: return blocks([](auto rows) { return kvmeld::q5_0_rows(rows); }, 22);
  case 7: return blocks([](auto rows) { return kvmeld::q5_1_rows(rows); }, 24);
  case 8: return blocks([](auto rows) { return kvmeld::q8_0_rows(rows); }, 34);
  case 30: return elements(reinterpret_cast<kvmeld::bfloat16*>(data));
  default:
    throw std::runtime_error("the cache has ggml's type " + std::to_string(type) +
                             "; it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
  }
}

/// Keys or values of one layer as floats, [entry][head][channel]; entry i is cell order[i].
class layer_rows {
public:
  layer_rows(sequence_state::tensor t, bool along_cells, kvmeld::shape const& s,
             std::vector<std::int32_t> const& order)
      : tensor_(t), along_cells_(along_cells), shape_(s), order_(&order), before_(t.data, t.data + t.bytes) {
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
inline std::vector<std::uint8_t> shrink_slot(slot_file& file, shrinking const& how) {
  sequence_state& state = file.state;
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
