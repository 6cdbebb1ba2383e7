// Model folders and JSON texts that are spoiled: what the tests of the example engine and the fuzz program
// share.
#pragma once

#include "model_files.hpp"

#include "error.hpp"
#include "model.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace test {

/// A message about a file is one line of moderate length that names the file; else what is wrong with it.
inline std::string poor_message(std::string const& told, std::string const& file) {
  bool const good = has(told, file) && !has(told, "\n") && told.size() <= 700;
  return good ? "" : "poor message: " + told;
}

/// A good folder whose files are replaced by spoiled ones: each loads, or is refused by a model_error that
/// names the file.
class spoiled_model {
public:
  spoiled_model()
      : good_config_(config_json(true).dump()),
        packed_(pack(random_weights(true, 3))),
        good_file_(packed_.file()) {
    restore();
  }

  // What is wrong with the outcome; empty: nothing.
  std::string try_file(std::string const& bytes) {
    folder_.write("model.safetensors", bytes);
    return attempt();
  }
  std::string try_config(std::string const& text) {
    folder_.write("config.json", text);
    return attempt();
  }
  void restore() {
    folder_.write("config.json", good_config_);
    folder_.write("model.safetensors", good_file_);
  }

  std::string const& good_config() const { return good_config_; }
  std::string const& good_file() const { return good_file_; }
  packed_weights const& packed() const { return packed_; }
  int tried() const { return loaded + refused; }
  int loaded = 0, refused = 0;

private:
  std::string attempt() {
    try {
      auto model = tiny_llama::model::load(folder_.path());
      // Whatever loads must also run without touching foreign memory.
      std::vector<float> logits;
      int const tokens[] = {0, model.shape().vocab - 1};
      auto const width = static_cast<std::size_t>(model.shape().heads * model.shape().head_dim);
      model.forward(
          tokens, std::min(2, model.shape().max_positions), 0,
          [width](int, int n, float const* q, float const*, float const*, float* out) {
            std::copy_n(q, width * static_cast<std::size_t>(n), out);
          },
          logits);
      ++loaded;
      return {};
    } catch (tiny_llama::model_error const& error) {
      ++refused;
      return poor_message(error.what(), folder_.path());
    }
  }

  temporary_folder folder_;
  std::string good_config_;
  packed_weights packed_;
  std::string good_file_;
};

inline std::string flip(std::string text, std::size_t bit) {
  text[bit / 8] = static_cast<char>(static_cast<unsigned char>(text[bit / 8]) ^ (1u << (bit % 8)));
  return text;
}

template <class Random> nlohmann::json odd_value(Random& random) {
  using json = nlohmann::json;
  static std::vector<json> const odd{nullptr,
                                     true,
                                     -1,
                                     0,
                                     1,
                                     3,
                                     0.5,
                                     1e300,
                                     18446744073709551615u,
                                     9223372036854775808u,
                                     4294967296u,
                                     "",
                                     "F16",
                                     "F64",
                                     "silu",
                                     json::array(),
                                     json::object(),
                                     json::array({-1, 2}),
                                     json::array({0, 0}),
                                     json::array({4294967296u, 4294967296u}),
                                     json::array({0, 18446744073709551615u}),
                                     json::array({json::array({json::array({1})})}),
                                     json{{"dtype", "F32"}}};
  return odd[static_cast<std::size_t>(random.below(static_cast<std::uint32_t>(odd.size())))];
}

/// Walks to a random place of the tree and spoils it.
template <class Random> void spoil(nlohmann::json& value, Random& random) {
  if (!value.is_structured() || value.empty() || random.below(6) == 0) {
    value = odd_value(random);
    return;
  }
  auto at = value.begin();
  std::advance(at, static_cast<long>(random.below(static_cast<std::uint32_t>(value.size()))));
  auto const what = random.below(8);
  if (what == 0) {
    value.erase(at);
  } else if (what == 1 && value.is_array()) {
    value.push_back(odd_value(random));
  } else if (what == 1) {
    value["extra"] = odd_value(random);
  } else {
    spoil(*at, random);
  }
}

}  // namespace test
