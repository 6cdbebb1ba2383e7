// A file that llama_state_seq_save_file or a llama-server's slot action "save" wrote, with fewer cells.
// Keys and values become floats, kvmeld shrinks them, and they go back to their own type.
#pragma once

#include "gguf_model.hpp"
#include "sequence_state.hpp"

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace llama_cpp {

/// The state in a file: "qsgg", a version, a number of words, these words (the tokens, or what a llama-server
/// makes of them), and a sequence_state. The words stay as they are. `recurrent`: see sequence_state.
inline sequence_state read_slot(std::vector<std::uint8_t> bytes, bool recurrent = false) {
  std::uint32_t head[3] = {};
  if (bytes.size() >= sizeof head) std::memcpy(head, bytes.data(), sizeof head);
  auto const [magic, version, words] = head;
  if (magic != 0x67677371u) throw std::runtime_error("not a file of llama_state_seq_save_file");
  if (version < 2 || version > 4) {
    throw std::runtime_error("the version of the file is " + std::to_string(version) +
                             "; it must be 2, 3 or 4");
  }
  return sequence_state(std::move(bytes), sizeof head + std::size_t{4} * words, recurrent);
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
  constexpr std::uint32_t iq4_nl = 20;  // the one other type that a llama-server has for a cache
  throw std::runtime_error("type of the cache is " +
                           (number == iq4_nl ? "iq4_nl" : "ggml's number " + std::to_string(number)) +
                           "; it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0");
}

/// Channels of a cell, of all heads.
inline std::uint32_t channels_of(sequence_state::tensor const& t) {
  cell_type const& type = cell_type_of(t.type);
  return static_cast<std::uint32_t>(t.row / type.bytes) * type.channels;
}

/// Throws std::runtime_error unless the state is one of this model, and `kv_heads`, unless 0, its number.
inline void expect_model(sequence_state& state, gguf_model const& m, std::uint32_t kv_heads) {
  auto const expect = [&](char const* what, std::uint64_t is, std::uint64_t in_model) {
    if (is == in_model) return;
    throw std::runtime_error(std::string(what) + " is " + std::to_string(is) + "; it must be " +
                             std::to_string(in_model) + ", as in " + m.name);
  };
  if (kv_heads != 0) expect("--kv-heads", kv_heads, m.kv_heads);
  expect("number of caches in the slot", state.window_layers() != 0 ? 2 : 1, m.window != 0 ? 2 : 1);
  if (m.window == 0) {
    expect("number of layers in the slot", state.layers(), m.layers);
  } else if (std::uint64_t const held = std::uint64_t{state.layers()} + state.window_layers();
             held > m.layers) {  // some may share the cells of others
    expect("number of layers in the slot", held, m.layers);
  }
  expect("number of channels of a key in the slot", channels_of(state.keys(0)),
         std::uint64_t{m.kv_heads} * m.key_dim);
  expect("number of channels of a value in the slot", channels_of(state.values(0)),
         std::uint64_t{m.kv_heads} * m.value_dim);
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

/// What is to become of a file's cells.
struct shrinking {
  kvmeld::compose::composed policy;  ///< one that reads keys and values alone
  std::uint32_t kv_heads;            ///< of the model
  std::uint32_t cells;               ///< that stay
  std::uint32_t tail;                ///< of these, the last ones, each a token as it was; below `cells`
  std::uint32_t threads = 0;         ///< 0: all
  std::uint32_t window = 0;          ///< of the layers that have one, in tokens; 0: none has
};

/// The file with `how.cells` cells. A cell is the same token in all layers and heads: as one position serves
/// them all, and as models recall more so than by a plan per head. The last `how.tail` of them are the last
/// tokens, with their positions; the others are what the policy makes of the tokens before, without a look at
/// the tail, and all have the position before the tail's. So whatever llama.cpp drops by position, the cells
/// that are left hold nothing of a token that it dropped, and their positions follow one another up to the
/// last one, which it requires. Where positions of the file do not (a file that another program shrank), the
/// tail is shorter. Layers with a window keep the cells that a token in the tail, or behind it, can see; all
/// of them if `how.window` is 0. The state of recurrent layers stays as it is. The file is as it was if all
/// of its cells stay. Holds all rows as floats beside the file. Throws std::runtime_error for what cannot be
/// shrunk.
std::vector<std::uint8_t> shrink_slot(sequence_state& state, shrinking const& how);

}  // namespace llama_cpp
