// Files of learned scores: those that ship, and every refusal of the loader, by its words.
#include "model_files.hpp"

#include "error.hpp"
#include "learned_file.hpp"
#include "safetensors.hpp"

#include <kvmeld/kvmeld.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace learned_file_cases {

using nlohmann::json;

namespace {

json header() {
  return {{"__metadata__",
           {{"kvmeld.learned", "1"},
            {"features", "key, key squared, log(1 + position), 1"},
            {"rope", "half_split"},
            {"frequencies", "[1.0, 0.25]"}}},
          {"weights", {{"dtype", "F32"}, {"shape", {2, 3, 10}}, {"data_offsets", {0, 240}}}}};
}

std::string body() {
  std::string out(240, '\0');
  for (std::size_t i = 0; i < 60; ++i) {
    float const x = static_cast<float>(i) - 7.5f;
    std::memcpy(&out[4 * i], &x, 4);
  }
  return out;
}

/// The file with one field of its header changed.
std::string loading(json::json_pointer const& where, json const& value) {
  json h = header();
  h[where] = value;
  test::temporary_folder const folder;
  std::string const path = folder.write("x.safetensors", test::with_header(h.dump(), body()));
  std::string const told = test::refusal<tiny_llama::model_error>([&] { tiny_llama::load_learned(path); });
  CHECK((told.empty() || test::has(told, path)));
  return told;
}

std::string saying(char const* name, std::string const& value) {
  return loading(json::json_pointer("/__metadata__") / name, value);
}

}  // namespace

TEST_CASE("learned scores: a file says sizes, rotation and weights") {
  test::temporary_folder const folder;
  tiny_llama::learned_scores const read =
      tiny_llama::load_learned(folder.write("x", test::with_header(header().dump(), body())));
  CHECK(read.weights().layers == 2);
  CHECK(read.weights().kv_heads == 3);
  CHECK(read.weights().key_dim == 4);
  CHECK(read.weights().data[59] == 51.5f);
  CHECK(read.rope().pairing == kvmeld::rope_pairing::half_split);
  CHECK(read.rope().rotary_dim == 4);
  CHECK(read.rope().frequencies[1] == 0.25f);
  CHECK(tiny_llama::learned_scores{}.empty());
  CHECK_FALSE(read.empty());
}

TEST_CASE("learned scores: the demo's models have some") {
  struct of {
    std::string model;
    std::uint32_t layers, kv_heads, key_dim;
    double base;
  };
  for (of const& m : {of{"tiny-kjv", 4, 4, 32, 10000}, of{"tiny-tasks", 4, 4, 32, 1e7}}) {
    CAPTURE(m.model);
    tiny_llama::learned_scores const read =
        tiny_llama::load_learned(KVMELD_DATA_DIR "/" + m.model + "/learned.safetensors");
    CHECK(read.layers == m.layers);
    CHECK(read.kv_heads == m.kv_heads);
    CHECK(read.key_dim == m.key_dim);
    REQUIRE(read.frequencies.size() == m.key_dim / 2);
    for (std::size_t i = 0; i < read.frequencies.size(); ++i)
      CHECK(read.frequencies[i] ==
            doctest::Approx(std::pow(m.base, -2.0 * static_cast<double>(i) / m.key_dim)));
  }
}

TEST_CASE("learned scores: where pairs lie side by side, keys score as before") {
  for (std::size_t const pairs : {std::size_t{2}, std::size_t{1}}) {  // the second pair does not rotate
    json h = header();
    if (pairs == 1) h["/__metadata__/frequencies"_json_pointer] = "[0.7]";
    test::temporary_folder const folder;
    tiny_llama::learned_scores const halves =
        tiny_llama::load_learned(folder.write("x", test::with_header(h.dump(), body())));
    tiny_llama::learned_scores neighbours = halves;
    neighbours.put_pairs_side_by_side();
    CHECK(neighbours.rope().pairing == kvmeld::rope_pairing::interleaved);
    for (std::uint32_t head = 0; head < 6; ++head) {
      float const* const a = halves.weights().data + head * 10;
      float const* const b = neighbours.weights().data + head * 10;
      std::vector<float> const key{0.5f, -2.0f, 3.0f, 1.25f};
      std::vector<float> stored = key;
      auto const turn = [&](kvmeld::rope_params const& rope, float by) {
        for (std::uint32_t i = 0; i < pairs; ++i) {
          float const angle = by * halves.frequencies[i];
          kvmeld::rotate_pair(rope, stored.data(), i, rope.pairs(4), std::cos(angle), std::sin(angle));
        }
      };
      turn(halves.rope(), 11);
      if (pairs == 2) std::swap(stored[1], stored[2]);  // as llama.cpp has it
      turn(neighbours.rope(), -11);
      float of_a = a[8] + a[9], of_b = b[8] + b[9];
      for (std::size_t c = 0; c < 4; ++c) {
        of_a += key[c] * (a[c] + a[4 + c] * key[c]);
        of_b += stored[c] * (b[c] + b[4 + c] * stored[c]);
      }
      CHECK(of_b == doctest::Approx(of_a));
    }
    tiny_llama::learned_scores again = neighbours;
    again.put_pairs_side_by_side();
    CHECK(again.floats == neighbours.floats);
  }
}

TEST_CASE("learned scores: another model is refused") {
  test::temporary_folder const folder;
  std::string const path = folder.write("x", test::with_header(header().dump(), body()));
  tiny_llama::learned_scores const read = tiny_llama::load_learned(path);
  float const frequencies[] = {1, 0.25f}, others[] = {1, 0.2501f};
  tiny_llama::learned_model good{"m", 2, 3, 4, {}};
  good.rope.pairing = kvmeld::rope_pairing::half_split;
  good.rope.frequencies = frequencies;
  expect_of(read, path, good);
  auto const told = [&](tiny_llama::learned_model const& model) {
    return test::refusal<tiny_llama::model_error>([&] { expect_of(read, path, model); });
  };
  auto const with = [&](auto const& change) {
    tiny_llama::learned_model other = good;
    change(other);
    return told(other);
  };
  CHECK(told(good).empty());
  CHECK(with([](auto& m) { m.layers = 4; }) == path + ": layers is 2; it must be 4, as in m");
  CHECK(with([](auto& m) { m.kv_heads = 1; }) == path + ": kv_heads is 3; it must be 1, as in m");
  CHECK(with([](auto& m) { m.key_dim = 8; }) == path + ": key_dim is 4; it must be 8, as in m");
  std::string const turns = path + ": its keys rotate in another way than those of m";
  CHECK(with([](auto& m) { m.rope.pairing = kvmeld::rope_pairing::interleaved; }) == turns);
  CHECK(with([](auto& m) { m.rope.pairing = kvmeld::rope_pairing::none; }) == turns);
  CHECK(with([](auto& m) { m.rope.rotary_dim = 2; }) == turns);
  CHECK(with([&](auto& m) { m.rope.frequencies = others; }) == turns);
}

TEST_CASE("learned scores: refusals") {
  using at = json::json_pointer;
  CHECK(test::has(saying("kvmeld.learned", "2"), "kvmeld.learned is '2'; it must be '1'"));
  CHECK(test::has(saying("features", "values"), "features is 'values'; it must be 'key, key squared"));
  CHECK(test::has(saying("rope", "sideways"),
                  "rope is 'sideways'; it must be none, half_split or interleaved"));
  CHECK(test::has(saying("rope", "none"), "it rotates 4 channels of 4"));
  CHECK(test::has(saying("frequencies", "[1, 1, 1]"), "it rotates 6 channels of 4"));
  CHECK(test::has(saying("frequencies", "[]"), "it rotates 0 channels of 4"));
  for (char const* wrong : {"[1, null]", "[1, 1e99]", "{\"a\": 1}"})
    CHECK(test::has(saying("frequencies", wrong), "frequencies hold "));
  CHECK(test::has(saying("frequencies", "[1,"), "frequencies is not valid JSON"));
  CHECK(test::has(
      loading(at("/__metadata__"), json::object()),
      "its header has no 'kvmeld.learned'; it must be a file of kvmeld_learn or python -m kvmeld.learn"));
  CHECK(test::has(loading(at("/__metadata__/rope"), 3), "__metadata__ holds 3; texts are needed"));
  CHECK(
      test::has(loading(at("/weights/shape"), {6, 10}), "weights have another shape than [layers, kv_heads"));
  CHECK(test::has(loading(at("/weights/shape"), {20, 1, 3}), "weights have another shape"));
  json other = header();
  other["w"] = other["weights"];
  other.erase("weights");
  test::temporary_folder const folder;
  std::string const path = folder.write("x", test::with_header(other.dump(), body()));
  CHECK(test::has(test::refusal<tiny_llama::model_error>([&] { tiny_llama::load_learned(path); }),
                  "it has no tensor weights"));
}

TEST_CASE("learned scores: what is written is read again, and by any reader of safetensors") {
  test::temporary_folder const folder;
  tiny_llama::learned_scores scores;
  scores.layers = 2;
  scores.kv_heads = 3;
  scores.key_dim = 4;
  for (int i = 0; i < 60; ++i) scores.floats.push_back(static_cast<float>(i) / 7);
  std::vector<float> const keys(24, 0.5f);
  std::string const path = folder.write("x.safetensors", "");
  for (auto const pairing :
       {kvmeld::rope_pairing::none, kvmeld::rope_pairing::half_split, kvmeld::rope_pairing::interleaved}) {
    scores.pairing = pairing;
    scores.frequencies =
        pairing == kvmeld::rope_pairing::none ? std::vector<float>{} : std::vector<float>{1.0f, 0.1f};
    tiny_llama::save_learned(scores, keys, {{"model", "of \"quotes\""}}, path);
    tiny_llama::learned_scores const read = tiny_llama::load_learned(path);
    CHECK(read.floats == scores.floats);
    CHECK(read.frequencies == scores.frequencies);
    CHECK(read.pairing == pairing);
    tiny_llama::safetensors_file const file(path);
    CHECK(file.read("keys", {2, 3, 4}) == keys);
    CHECK(file.metadata().at("model") == "of \"quotes\"");
  }
  tiny_llama::save_learned(scores, {}, {}, path);
  CHECK(!tiny_llama::safetensors_file(path).contains("keys"));
}

}  // namespace learned_file_cases
