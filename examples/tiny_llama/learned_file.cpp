#include "learned_file.hpp"

#include "error.hpp"
#include "json_text.hpp"
#include "output_file.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tiny_llama {
namespace {

constexpr char const *format = "1", *features = "key, key squared, log(1 + position), 1";

constexpr std::pair<char const*, kvmeld::rope_pairing> pairings[] = {
    {"none", kvmeld::rope_pairing::none},
    {"half_split", kvmeld::rope_pairing::half_split},
    {"interleaved", kvmeld::rope_pairing::interleaved}};

kvmeld::rope_pairing pairing_of(std::string const& path, std::string const& name) {
  for (auto const& known : pairings) {
    if (name == known.first) return known.second;
  }
  throw model_error(path, "rope is " + in_quotes(name) + "; it must be none, half_split or interleaved");
}

std::string name_of(kvmeld::rope_pairing pairing) {
  for (auto const& known : pairings) {
    if (pairing == known.second) return known.first;
  }
  return {};
}

std::vector<float> numbers_of(std::string const& path, std::string const& text) {
  json const list = parse_json(path, "frequencies", text);
  std::vector<float> out;
  for (json const& number : list) {
    double const x = number.is_number() ? number.get<double>() : NAN;
    if (!list.is_array() || !kvmeld::is_finite(static_cast<float>(x)))
      throw model_error(path, "frequencies hold " + shown(number) + "; they must be finite numbers");
    out.push_back(static_cast<float>(x));
  }
  return out;
}

}  // namespace

kvmeld::rope_params learned_scores::rope() const {
  kvmeld::rope_params out;
  out.pairing = pairing;
  if (pairing == kvmeld::rope_pairing::none) return out;
  out.rotary_dim = static_cast<std::uint32_t>(2 * frequencies.size());
  out.frequencies = frequencies.data();
  return out;
}

void learned_scores::put_pairs_side_by_side() {
  if (pairing != kvmeld::rope_pairing::half_split) return;
  pairing = kvmeld::rope_pairing::interleaved;
  std::size_t const pairs = frequencies.size();
  std::vector<float> before(2 * pairs);
  for (std::size_t track = 0; track < std::size_t{layers} * kv_heads; ++track) {
    float* const of_track = floats.data() + track * kvmeld::learned_weights::floats(key_dim);
    for (float* const of_feature : {of_track, of_track + key_dim}) {
      std::copy_n(of_feature, 2 * pairs, before.begin());
      for (std::size_t i = 0; i < pairs; ++i) {
        of_feature[2 * i] = before[i];
        of_feature[2 * i + 1] = before[pairs + i];
      }
    }
  }
}

void expect_of(learned_scores const& scores, std::string const& path, learned_model const& model) {
  auto const expect = [&](char const* what, std::uint32_t is, std::uint32_t in_model) {
    if (is == in_model) return;
    throw model_error(path, std::string(what) + " is " + std::to_string(is) + "; it must be " +
                                std::to_string(in_model) + ", as in " + model.name);
  };
  expect("layers", scores.layers, model.layers);
  expect("kv_heads", scores.kv_heads, model.kv_heads);
  expect("key_dim", scores.key_dim, model.key_dim);
  kvmeld::rope_params const learned = scores.rope();
  std::uint32_t const pairs = model.rope.pairs(model.key_dim);
  bool same = learned.pairing == model.rope.pairing && learned.pairs(model.key_dim) == pairs;
  for (std::uint32_t i = 0; same && i < pairs; ++i) {
    double const turns = kvmeld::rope_turns(model.rope, i, model.key_dim);
    same = std::abs(kvmeld::rope_turns(learned, i, model.key_dim) - turns) <= 1e-4 * turns;
  }
  if (!same) throw model_error(path, "its keys rotate in another way than those of " + model.name);
}

learned_scores load_learned(std::string const& path) {
  safetensors_file const file(path);
  auto const said = [&](char const* name) {
    auto const found = file.metadata().find(name);
    if (found == file.metadata().end())
      throw model_error(path, std::string("its header has no ") + in_quotes(name) +
                                  "; it must be a file of kvmeld_learn or python -m kvmeld.learn");
    return found->second;
  };
  auto const expect = [&](char const* name, std::string const& wanted) {
    std::string const is = said(name);
    if (is == wanted) return;
    throw model_error(path, std::string(name) + " is " + in_quotes(is) + "; it must be " + in_quotes(wanted));
  };
  expect("kvmeld.learned", format);
  expect("features", features);
  learned_scores out;
  out.pairing = pairing_of(path, said("rope"));
  out.frequencies = numbers_of(path, said("frequencies"));
  auto const found = file.entries().find("weights");
  if (found == file.entries().end()) throw model_error(path, "it has no tensor weights");
  std::vector<std::uint64_t> const& shape = found->second.shape;
  constexpr std::uint64_t most = 1u << 20;
  bool fits = shape.size() == 3 && shape[2] >= 4 && shape[2] % 2 == 0;
  for (std::uint64_t const n : shape) fits = fits && n >= 1 && n <= most;
  if (!fits) throw model_error(path, "weights have another shape than [layers, kv_heads, 2 * key_dim + 2]");
  out.layers = static_cast<std::uint32_t>(shape[0]);
  out.kv_heads = static_cast<std::uint32_t>(shape[1]);
  out.key_dim = static_cast<std::uint32_t>(shape[2] / 2 - 1);
  std::size_t const turned = 2 * out.frequencies.size();
  if ((out.pairing == kvmeld::rope_pairing::none) != (turned == 0) || turned > out.key_dim) {
    throw model_error(path,
                      "it rotates " + std::to_string(turned) + " channels of " + std::to_string(out.key_dim));
  }
  out.floats = file.read("weights", shape);
  return out;
}

void save_learned(learned_scores const& scores, std::vector<float> const& keys,
                  std::map<std::string, std::string> const& about, std::string const& path) {
  nlohmann::ordered_json header;
  nlohmann::ordered_json& said = header["__metadata__"];
  for (auto const& [name, text] : about) said[name] = text;
  said["kvmeld.learned"] = format;
  said["features"] = features;
  said["rope"] = name_of(scores.pairing);
  said["frequencies"] = json(scores.frequencies).dump();
  std::string body;
  auto const add = [&](char const* name, std::vector<float> const& floats, std::size_t of_track) {
    std::size_t const begin = body.size(), bytes = floats.size() * sizeof(float);
    header[name] = {{"dtype", "F32"},
                    {"shape", {scores.layers, scores.kv_heads, of_track}},
                    {"data_offsets", {begin, begin + bytes}}};
    body.resize(begin + bytes);
    std::memcpy(&body[begin], floats.data(), bytes);
  };
  add("weights", scores.floats, kvmeld::learned_weights::floats(scores.key_dim));
  if (!keys.empty()) add("keys", keys, scores.key_dim);
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  write_file(path, length + text + body);
}

}  // namespace tiny_llama
