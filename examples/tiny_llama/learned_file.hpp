// What a score has learned of a model, as kvmeld_learn and python -m kvmeld.learn write it: safetensors,
// whose header says how keys rotate.
#pragma once

#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/learned.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tiny_llama {

struct learned_scores {
  std::vector<float> floats;  ///< [layers][kv_heads][2 * key_dim + 2]
  std::uint32_t layers = 0, kv_heads = 0, key_dim = 0;
  kvmeld::rope_pairing pairing = kvmeld::rope_pairing::none;
  std::vector<float> frequencies;  ///< radians a position, of each pair of channels that rotates

  bool empty() const { return floats.empty(); }
  /// What score::learned takes. The numbers stay here.
  kvmeld::learned_weights weights() const { return {floats.data(), layers, kv_heads, key_dim}; }
  kvmeld::rope_params rope() const;

  /// Halves of a key that rotate together (half_split) become neighbours (interleaved), with their weights:
  /// as llama.cpp stores what it rotates in Llama's way. Keys that rotate otherwise stay as they are.
  void put_pairs_side_by_side();
};

/// A model whose scores were learned.
struct learned_model {
  std::string name;
  std::uint32_t layers, kv_heads, key_dim;
  kvmeld::rope_params rope;
};
/// Throws model_error unless the scores of the file at `path` are of a model of these sizes and this
/// rotation.
void expect_of(learned_scores const& scores, std::string const& path, learned_model const& model);

/// Reads a file. Throws model_error for what is none.
learned_scores load_learned(std::string const& path);

/// The token whose keys tell models apart, where it stands alone.
constexpr int token_of_keys = 100;

/// Writes a file. keys: [layers][kv_heads][key_dim] that the model makes of token_of_keys at position 0;
/// empty if it has no such token. about: what the header says beside. Throws std::runtime_error.
void save_learned(learned_scores const& scores, std::vector<float> const& keys,
                  std::map<std::string, std::string> const& about, std::string const& path);

}  // namespace tiny_llama
