// Every refusal of the example engine's loaders, by its words.
#include "model_files.hpp"

#include "error.hpp"
#include "files.hpp"
#include "safetensors.hpp"
#include "tokens.hpp"

#include <doctest/doctest.h>

#include <cmath>

using nlohmann::json;
using tiny_llama::model_error;
using tiny_llama::safetensors_file;

namespace {

json tensor(std::string const& type, json const& shape, json const& offsets) {
  return {{"dtype", type}, {"shape", shape}, {"data_offsets", offsets}};
}

std::string opening(std::string const& bytes) {
  test::temporary_folder const folder;
  auto const path = folder.write("x.safetensors", bytes);
  auto const told = test::refusal<model_error>([&] { safetensors_file const file(path); });
  CHECK((told.empty() || test::has(told, path)));
  return told;
}

std::string opening(json const& header, std::size_t data_bytes) {
  return opening(test::with_header(header.dump(), std::string(data_bytes, '\0')));
}

std::string opening_tensor(json const& description, std::size_t data_bytes = 16) {
  return opening(json{{"w", description}}, data_bytes);
}

std::string configuring(std::string const& field, json const& value) {
  auto fields = test::config_json(true);
  fields[field] = value;
  return test::refusal<model_error>([&] { tiny_llama::parse_config("c.json", fields.dump()); });
}

std::string without(std::string const& field) {
  auto fields = test::config_json(true);
  fields.erase(field);
  return test::refusal<model_error>([&] { tiny_llama::parse_config("c.json", fields.dump()); });
}

}  // namespace

TEST_CASE("safetensors: refusals of the file") {
  test::temporary_folder const folder;
  CHECK(test::has(test::refusal<model_error>([&] { safetensors_file const f(folder / "none"); }),
                  "no such file"));
  CHECK(test::has(test::refusal<model_error>([&] { safetensors_file const f(folder.path()); }),
                  "is not a regular file"));
  CHECK(test::has(opening("1234567"), "is 7 bytes long; a safetensors file has at least 8"));
  CHECK(test::has(opening(std::string(8, '\x7f')), "at most 100000000 is allowed"));
  CHECK(test::has(opening(std::string("\x64\0\0\0\0\0\0\0{}", 10)),
                  "its header length is 100 and 2 bytes follow"));
  CHECK(test::has(opening(test::with_header("", "")), "does not begin with '{'"));
  CHECK(test::has(opening(test::with_header("[]", "")), "does not begin with '{'"));
  CHECK(test::has(opening(test::with_header("{\"w\":", "")), "its header is not valid JSON"));
  CHECK(test::has(opening(test::with_header("{\"w\":" + std::string(40, '['), "")), "at most 32 levels"));
  CHECK(test::has(opening(test::with_header("{\"w\":1,\"w\":2}", "")), "names 'w' twice"));
  CHECK(test::has(opening(json{{"__metadata__", 3}}, 0), "__metadata__ is 3; an object is needed"));
  CHECK(test::has(opening(json::object(), 5), "5 bytes follow the last tensor; none are allowed"));
  CHECK(opening(json::object(), 0).empty());
  CHECK(opening(test::with_header("{}      ", "")).empty());  // writers pad with spaces
}

TEST_CASE("safetensors: refusals of a tensor") {
  auto const good = tensor("F32", {2, 2}, {0, 16});
  CHECK(opening_tensor(good).empty());
  CHECK(test::has(opening_tensor(7), "tensor 'w': its description is 7; an object is needed"));
  CHECK(test::has(opening_tensor({{"dtype", "F32"}}),
                  "it has no shape; dtype, shape and data_offsets are needed"));
  CHECK(test::has(opening_tensor({{"dtype", 1}}), "dtype is 1; a string is needed"));
  CHECK(test::has(opening_tensor(tensor("I64", {2}, {0, 16})),
                  "dtype is 'I64'; F32, F16 and BF16 are allowed"));
  CHECK(test::has(opening_tensor(tensor("F32", 4, {0, 16})), "shape is 4; an array is needed"));
  CHECK(test::has(opening_tensor(tensor("F32", {2, -2}, {0, 16})), "shape holds -2; whole numbers from 0"));
  CHECK(test::has(opening_tensor(tensor("F32", {2, 2.5}, {0, 16})), "shape holds 2.5"));
  CHECK(test::has(opening_tensor(tensor("F32", std::vector<int>(9, 1), {0, 4})),
                  "shape has 9 dimensions; at most 8"));
  CHECK(test::has(opening_tensor(tensor("F32", {4}, {0})), "data_offsets has 1 items; two"));
  CHECK(test::has(opening_tensor(tensor("F32", {4}, {0, -16})), "data_offsets holds -16"));
  CHECK(test::has(opening_tensor(tensor("F32", {4}, {16, 0})),
                  "begin at 16 and end at 0; the end must not come before"));
  CHECK(test::has(opening_tensor(tensor("F32", {5}, {0, 20})), "end at 20; the file holds 16 bytes of data"));
  CHECK(test::has(opening_tensor(tensor("F32", {4294967296u, 4294967296u}, {0, 16})),
                  "counts more than 2^64 bytes"));
  CHECK(test::has(opening_tensor(tensor("F32", {3}, {0, 16})),
                  "shape [3] needs 12 bytes and data_offsets give 16"));
  CHECK(test::has(opening_tensor(tensor("F16", {2, 2}, {0, 16})), "shape [2, 2] needs 8 bytes"));
  CHECK(test::has(opening(json{{"a", good}, {"b", good}}, 16), "overlaps and holes are not allowed"));
  CHECK(test::has(opening(json{{"a", good}, {"b", tensor("F32", {1}, {20, 24})}}, 24),
                  "data_offsets begin at 20"));
}

TEST_CASE("safetensors: refusals on reading, and the three types") {
  test::temporary_folder const folder;
  auto const nan = test::bytes_of({1.0f, 2.0f}) + std::string("\0\0\xc0\x7f", 4) + test::bytes_of({0.0f});
  safetensors_file const file(
      folder.write("x", test::with_header(json{{"w", tensor("F32", {2, 2}, {0, 16})}}.dump(), nan)));
  CHECK(test::has(test::refusal<model_error>([&] { file.read("v", {4}); }), "tensor 'v': it is missing"));
  CHECK(test::has(test::refusal<model_error>([&] { file.read("w", {4}); }),
                  "shape is [2, 2]; config.json asks for [4]"));
  CHECK(test::has(test::refusal<model_error>([&] {
                    file.read("w", {2, 2});
                  }),
                  "element 2 is NaN or infinite"));

  std::string const data =
      test::bytes_of({-1.5f}) + std::string("\x00\x3c\x00\xc1", 4) + std::string("\x80\x3f\x20\xc0", 4);
  json const header{{"a", tensor("F32", {1}, {0, 4})},
                    {"b", tensor("F16", {2}, {4, 8})},
                    {"c", tensor("BF16", {2}, {8, 12})}};
  safetensors_file const three(folder.write("y", test::with_header(header.dump(), data)));
  CHECK(three.read("a", {1}) == std::vector<float>{-1.5f});
  CHECK(three.read("b", {2}) == std::vector<float>{1.0f, -2.5f});
  CHECK(three.read("c", {2}) == std::vector<float>{1.0f, -2.5f});
}

TEST_CASE("every finite half is widened exactly") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    int const exponent = static_cast<int>((bits >> 10) & 31u), fraction = static_cast<int>(bits & 1023u);
    if (exponent == 31) {
      continue;
    }
    double const size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    wrong += static_cast<double>(tiny_llama::half_to_float(static_cast<std::uint16_t>(bits))) !=
             ((bits & 0x8000u) ? -size : size);
  }
  CHECK(wrong == 0);
}

TEST_CASE("config.json: refusals") {
  CHECK(configuring("model_type", "llama").empty());
  CHECK(test::has(configuring("model_type", "mistral"),
                  "c.json: model_type is 'mistral'; only 'llama' is supported"));
  CHECK(test::has(without("model_type"), "model_type is missing"));
  CHECK(test::has(configuring("hidden_act", "gelu"), "hidden_act is 'gelu'; only 'silu' is supported"));
  CHECK(test::has(configuring("rope_scaling", {{"factor", 2}}),
                  "rope_scaling is a JSON object of 1; it is not supported"));
  CHECK(test::has(configuring("rope_parameters", 1), "rope_parameters is 1; an object is needed"));
  CHECK(test::has(configuring("rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 100}}),
                  "rope_type is 'linear'; only 'default' is supported"));
  CHECK(test::has(configuring("rope_parameters", {{"partial_rotary_factor", 0.5}}),
                  "partial_rotary_factor is 0.5; it is not supported"));
  CHECK(
      test::has(configuring("rope_parameters", {{"rope_theta", 0}}), "rope_theta is 0; a number from 1 to"));
  CHECK(test::has(configuring("quantization_config", 1), "quantization_config is 1"));
  CHECK(test::has(configuring("attention_bias", true), "attention_bias is true; only false is supported"));
  CHECK(test::has(configuring("mlp_bias", true), "mlp_bias is true"));
  CHECK(test::has(configuring("attention_bias", 0), "attention_bias is 0; true or false is needed"));
  for (char const* name :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    CHECK(test::has(without(name), std::string(name) + " is missing; a whole number from 1"));
    for (json const& bad : {json(0), json(-3), json(1.5), json("8"), json(1099511627776)}) {
      CHECK(test::has(configuring(name, bad), std::string(name) + " is "));
    }
  }
  CHECK(test::has(configuring("num_key_value_heads", 3),
                  "num_attention_heads is 4; a multiple of num_key_value_heads (3)"));
  CHECK(test::has(configuring("head_dim", 5), "head_dim is 5; an even number is needed"));
  CHECK(test::has(configuring("rms_norm_eps", 0), "rms_norm_eps is 0; a number from 1e-12 to 0.1"));
  CHECK(test::has(configuring("rope_theta", -1), "rope_theta is -1; a number from 1 to"));
  CHECK(test::has(configuring("rope_theta", "x"), "rope_theta is 'x'"));
  CHECK(test::has(configuring("max_position_embeddings", 0), "max_position_embeddings is 0"));
  CHECK(test::has(test::refusal<model_error>([] { tiny_llama::parse_config("c.json", "[1]"); }),
                  "an object is needed"));
  CHECK(test::has(test::refusal<model_error>([] { tiny_llama::parse_config("c.json", "7"); }),
                  "an object or array is needed"));
  CHECK(test::has(test::refusal<model_error>([] { tiny_llama::parse_config("c.json", "{"); }),
                  "is not valid JSON"));

  auto fields = test::config_json(true);
  fields.erase("head_dim");
  fields.erase("num_key_value_heads");
  auto const shape = tiny_llama::parse_config("c.json", fields.dump());
  CHECK(shape.head_dim == 2);
  CHECK(shape.kv_heads == 4);
  CHECK(shape.rope_base == 100.0);
  fields["rope_parameters"] = {{"rope_type", "default"},
                               {"rope_theta", 500.0}};  // as transformers 5 writes it
  CHECK(tiny_llama::parse_config("c.json", fields.dump()).rope_base == 500.0);
  fields.erase("rope_theta");
  CHECK(tiny_llama::parse_config("c.json", fields.dump()).rope_base == 500.0);
  fields["hidden_size"] = 9;
  CHECK(test::has(test::refusal<model_error>([&] { tiny_llama::parse_config("c.json", fields.dump()); }),
                  "hidden_size is 9; without head_dim"));
  fields["head_dim"] = 4096;
  fields["num_attention_heads"] = 4096;
  CHECK(test::has(test::refusal<model_error>([&] { tiny_llama::parse_config("c.json", fields.dump()); }),
                  "num_attention_heads x head_dim is 16777216"));
}

TEST_CASE("model folders: refusals") {
  test::temporary_folder const folder;
  auto const load = [&] {
    return test::refusal<model_error>([&] { tiny_llama::model::load(folder.path()); });
  };
  CHECK(test::has(test::refusal<model_error>([&] { tiny_llama::model::load(folder / "none"); }),
                  "is not a folder"));
  CHECK(test::has(load(), "config.json: no such file"));
  folder.write("config.json", test::config_json(false).dump());
  CHECK(test::has(load(), "model.safetensors: no such file"));
  folder.write("model.safetensors.index.json", "{}");
  CHECK(test::has(load(), "split over several files"));
  folder.write("model.safetensors", test::pack(test::random_weights(true, 1)).file());
  CHECK(test::has(load(), "tensor 'lm_head.weight': it is missing"));
  folder.write("model.safetensors", test::pack(test::random_weights(false, 1)).file());
  CHECK(load().empty());
  CHECK(tiny_llama::model::load(folder.path() + "/").name() == tiny_llama::model::load(folder.path()).name());
  folder.write("config.json", std::string((1 << 20) + 1, ' '));
  CHECK(test::has(load(), "at most 1048576 are allowed"));

  auto const shape = tiny_llama::parse_config("c", test::config_json(true).dump());
  auto weights = test::random_weights(true, 1);
  weights.norm.pop_back();
  CHECK(test::has(test::refusal<model_error>([&] { tiny_llama::model m(shape, weights); }),
                  "tensor 'model.norm.weight': it has 7 values"));
  weights.layers.pop_back();
  CHECK(test::has(test::refusal<model_error>([&] { tiny_llama::model m(shape, weights); }),
                  "holds 1 layers; num_hidden_layers asks for 2"));
}

TEST_CASE("token files") {
  test::temporary_folder const folder;
  auto const reading = [&](std::string const& name, std::string const& text, int vocab) {
    auto const path = folder.write(name, text);
    return test::refusal<model_error>([&] { tiny_llama::read_tokens(path, vocab); });
  };
  CHECK(tiny_llama::read_tokens(folder.write("t.txt", "a\xff"), 256) == std::vector<int>{97, 255});
  CHECK(tiny_llama::read_tokens(folder.write("t.ids", " 1\n22\t299 "), 300) == std::vector<int>{1, 22, 299});
  CHECK(tiny_llama::read_tokens(folder.write("t.json", "[1, 22,299]"), 300) == std::vector<int>{1, 22, 299});
  CHECK(
      test::has(reading("t.ids", "1 300", 300), "token 1 is '300'; whole numbers from 0 to 299 are allowed"));
  CHECK(test::has(reading("t.ids", "1 -1", 300), "token 1 is '-1'"));
  CHECK(test::has(reading("t.ids", "99999999999999999999999999", 300), "token 0 is '999"));
  CHECK(test::has(reading("t.json", "[1, 300]", 300), "token 1 is 300"));
  CHECK(test::has(reading("t.json", "[1, [2]]", 300), "token 1 is a JSON array"));
  CHECK(test::has(reading("t.json", "{}", 300), "an array of token ids is needed"));
  CHECK(test::has(reading("t.ids", " \n", 300), "holds no tokens"));
  CHECK(test::has(reading("t.txt", "", 256), "is empty"));
}
