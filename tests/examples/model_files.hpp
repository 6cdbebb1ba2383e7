// Small model folders for the tests of the example engine: written, spoiled and thrown away.
#pragma once

#include "model.hpp"
#include "random.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace test {

/// A fresh folder that goes when the test ends, however it ends.
class temporary_folder {
public:
  temporary_folder() {
    std::random_device any;
    do {
      path_ = std::filesystem::temp_directory_path() / ("tiny_llama_test_" + std::to_string(any()));
    } while (!std::filesystem::create_directory(path_));
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path() const { return path_.string(); }
  std::string operator/(std::string const& name) const { return (path_ / name).string(); }

  std::string write(std::string const& name, std::string const& bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return *this / name;
  }

private:
  std::filesystem::path path_;
};

/// Header and data as the format lays them out; the length is that of the header, right or wrong as it may
/// be.
inline std::string with_header(std::string const& header, std::string const& data) {
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) {
    out +=
        static_cast<char>(static_cast<unsigned char>(static_cast<std::uint64_t>(header.size()) >> (8 * i)));
  }
  return out + header + data;
}

inline std::string bytes_of(std::vector<float> const& values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

inline nlohmann::json config_json(bool tied) {
  return {{"model_type", "llama"},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"vocab_size", 16},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 100.0},
          {"max_position_embeddings", 128},
          {"tie_word_embeddings", tied},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"rope_scaling", nullptr}};
}

/// Weights of the shapes that config_json asks for, uniform in +-0.6. `vocab`: the vocab_size, if that is
/// another.
inline tiny_llama::model_weights random_weights(bool tied, std::uint64_t seed, std::size_t vocab = 16) {
  tiny_llama::splitmix64 random(seed);
  auto const draw = [&](std::size_t count) {
    std::vector<float> out(count);
    for (auto& x : out) {
      x = static_cast<float>(random.unit() * 1.2 - 0.6);
    }
    return out;
  };
  tiny_llama::model_weights w;
  w.embedding = draw(vocab * 8);
  for (int i = 0; i < 2; ++i) {
    w.layers.push_back({draw(8), draw(16 * 8), draw(8 * 8), draw(8 * 8), draw(8 * 16), draw(8), draw(12 * 8),
                        draw(12 * 8), draw(8 * 12)});
  }
  w.norm = draw(8);
  if (!tied) {
    w.head = draw(vocab * 8);
  }
  return w;
}

/// The same weights as a safetensors header and its data, both in the order of the names.
struct packed_weights {
  nlohmann::json header;
  std::string data;
  std::string file() const { return with_header(header.dump(), data); }
};

inline packed_weights pack(tiny_llama::model_weights const& w) {
  packed_weights out;
  auto const add = [&out](std::string const& name, std::vector<float> const& values,
                          std::vector<int> const& shape) {
    auto const begin = out.data.size();
    out.data += bytes_of(values);
    out.header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, out.data.size()}}};
  };
  out.header["__metadata__"] = {{"format", "pt"}};
  int const vocab = static_cast<int>(w.embedding.size() / 8);
  add("model.embed_tokens.weight", w.embedding, {vocab, 8});
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    auto const at = "model.layers." + std::to_string(i) + ".";
    auto const& l = w.layers[i];
    add(at + "input_layernorm.weight", l.attention_norm, {8});
    add(at + "self_attn.q_proj.weight", l.query, {16, 8});
    add(at + "self_attn.k_proj.weight", l.key, {8, 8});
    add(at + "self_attn.v_proj.weight", l.value, {8, 8});
    add(at + "self_attn.o_proj.weight", l.output, {8, 16});
    add(at + "post_attention_layernorm.weight", l.mlp_norm, {8});
    add(at + "mlp.gate_proj.weight", l.gate, {12, 8});
    add(at + "mlp.up_proj.weight", l.up, {12, 8});
    add(at + "mlp.down_proj.weight", l.down, {8, 12});
  }
  add("model.norm.weight", w.norm, {8});
  if (!w.head.empty()) {
    add("lm_head.weight", w.head, {vocab, 8});
  }
  return out;
}

/// What a call says when it refuses; empty if it does not.
template <class Error, class F> std::string refusal(F call) {
  try {
    call();
  } catch (Error const& error) {
    return error.what();
  }
  return {};
}

inline bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace test
