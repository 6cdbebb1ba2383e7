// Heads of GGUF files, written here as the format's description has them.
#include <gguf_model.hpp>

#include <kvmeld/queries/rope.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

class gguf_writer {
public:
  explicit gguf_writer(std::string architecture = "llama") : name_(std::move(architecture)) {
    text("general.architecture", name_);
    list("tokenizer.ggml.tokens", {"a", "bc", "def"});
  }
  gguf_writer& text(std::string const& key, std::string const& value) { return add(key, 8, packed(value)); }
  gguf_writer& list(std::string const& key, std::vector<std::string> const& values) {
    std::string of = raw(std::uint32_t{8}) + raw(std::uint64_t{values.size()});
    for (std::string const& value : values) of += packed(value);
    return add(key, 9, of);
  }
  gguf_writer& numbers(std::string const& key, std::vector<std::uint32_t> const& values) {
    std::string of = raw(std::uint32_t{4}) + raw(std::uint64_t{values.size()});
    for (std::uint32_t value : values) of += raw(value);
    return add(key, 9, of);
  }
  /// Of the architecture.
  gguf_writer& number(std::string const& key, std::uint32_t value) {
    return add(name_ + "." + key, 4, raw(value));
  }
  gguf_writer& number(std::string const& key, float value) { return add(name_ + "." + key, 6, raw(value)); }
  gguf_writer& tensor(std::string const& key, std::vector<float> const& values) {
    infos_ += packed(key) + raw(std::uint32_t{1}) + raw(std::uint64_t{values.size()}) +
              raw(std::uint32_t{0}) + raw(std::uint64_t{data_.size()});
    for (float value : values) data_ += raw(value);
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensors_;
    return *this;
  }
  std::string bytes(std::uint32_t version = 3) const {
    std::string out =
        "GGUF" + raw(version) + raw(std::uint64_t{tensors_}) + raw(std::uint64_t{values_}) + head_ + infos_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

private:
  template <class T> static std::string raw(T value) {
    return {reinterpret_cast<char const*>(&value), sizeof value};
  }
  static std::string packed(std::string const& text) { return raw(std::uint64_t{text.size()}) + text; }
  gguf_writer& add(std::string const& key, std::uint32_t type, std::string const& value) {
    head_ += packed(key) + raw(type) + value;
    ++values_;
    return *this;
  }
  std::string name_, head_, infos_, data_;
  std::size_t values_ = 0, tensors_ = 0;
};

gguf_writer small(std::string const& architecture = "llama") {
  gguf_writer w(architecture);
  w.number("block_count", 30u).number("embedding_length", 576u).number("attention.head_count", 9u);
  w.number("attention.head_count_kv", 3u).number("rope.freq_base", 100000.0f);
  return w;
}

llama_cpp::gguf_model read(gguf_writer const& w) {
  std::istringstream in(w.bytes());
  return llama_cpp::read_gguf(in, "m.gguf");
}
std::string refusal(std::string const& bytes) {
  std::istringstream in(bytes);
  try {
    llama_cpp::read_gguf(in, "m.gguf");
  } catch (std::runtime_error const& problem) {
    return problem.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a GGUF file tells layers, KV heads and their sizes") {
  llama_cpp::gguf_model const m = read(small());
  CHECK(m.layers == 30);
  CHECK(m.kv_heads == 3);
  CHECK(m.key_dim == 64);
  CHECK(m.value_dim == 64);
  llama_cpp::gguf_model const other =
      read(small("qwen3").number("attention.key_length", 128u).number("attention.value_length", 96u));
  CHECK(other.key_dim == 128);
  CHECK(other.value_dim == 96);
  CHECK(read(small("glm4moe").number("nextn_predict_layers", 1u)).layers == 29);
  gguf_writer without("gpt2");  // as many KV heads as query heads
  without.number("block_count", 2u).number("embedding_length", 768u).number("attention.head_count", 12u);
  CHECK(read(without).kv_heads == 12);
  gguf_writer by_layer("llama");
  by_layer.number("block_count", 2u).number("embedding_length", 64u).number("attention.head_count", 4u);
  by_layer.numbers("llama.attention.head_count_kv", {2, 2});
  CHECK(read(by_layer).kv_heads == 2);
}

TEST_CASE("a GGUF file tells how the model rotates keys") {
  llama_cpp::gguf_model const m = read(small());
  CHECK(m.rope_known);
  CHECK(m.rotation().pairing == kvmeld::rope_pairing::interleaved);
  CHECK(m.rotation().base == 100000.0);
  CHECK(m.rotation().factor == 1.0);
  CHECK(m.rotation().rotary_dim == 64);
  CHECK(m.rotation().frequencies == nullptr);
  CHECK(read(small("qwen2")).rotation().pairing == kvmeld::rope_pairing::half_split);
  CHECK(read(small("phi2").number("rope.dimension_count", 32u)).rotation().rotary_dim == 32);
  CHECK(read(small("gpt2")).rotation().pairing == kvmeld::rope_pairing::none);
  CHECK(read(small().text("llama.rope.scaling.type", "linear").number("rope.scaling.factor", 4.0f))
            .rotation()
            .factor == 4);
  CHECK(read(small().number("rope.scale_linear", 2.0f)).rotation().factor == 2);
  // Factors, as of Llama 3.1.
  std::vector<float> factors(32, 1.0f);
  factors[20] = 8.0f;
  llama_cpp::gguf_model const scaled = read(
      small().tensor("token_embd.weight", {1, 2, 3}).tensor("rope_freqs.weight", factors).tensor("x", {4}));
  REQUIRE(scaled.rope_known);
  REQUIRE(scaled.frequencies.size() == 32);
  kvmeld::rope_params plain = m.rotation();
  for (std::uint32_t i = 0; i < 32; ++i) {
    double const turns = kvmeld::rope_turns(plain, i, 64) / static_cast<double>(factors[i]);
    CHECK(kvmeld::rope_turns(scaled.rotation(), i, 64) == doctest::Approx(turns).epsilon(1e-6));
  }
  // What cannot be known.
  CHECK_FALSE(read(small("an_architecture")).rope_known);
  CHECK_FALSE(read(small().text("llama.rope.scaling.type", "yarn")).rope_known);
  CHECK_FALSE(read(small("phi3").tensor("rope_factors_long.weight", factors)).rope_known);
  CHECK_FALSE(read(small().tensor("rope_freqs.weight", {1, 2, 3})).rope_known);
}

TEST_CASE("a GGUF file tells which models have windows, and which a recurrent state") {
  llama_cpp::gguf_model const gemma = read(small("gemma3").number("attention.sliding_window", 512u));
  CHECK(gemma.window == 512);
  CHECK_FALSE(gemma.recurrent);
  CHECK(gemma.rope_known);
  CHECK(gemma.rotation().pairing == kvmeld::rope_pairing::half_split);
  CHECK(read(small("phi3").number("attention.sliding_window", 2047u)).window == 0);  // llama.cpp ignores it
  CHECK(read(small("qwen2").number("attention.sliding_window", 0u)).window == 0);
  CHECK_FALSE(read(small()).recurrent);
  for (char const* key : {"ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache"})
    CHECK(read(small("mix").number(key, 4u)).recurrent);
  gguf_writer layers("mix");
  layers.number("block_count", 3u).number("embedding_length", 64u).number("attention.head_count", 4u);
  llama_cpp::gguf_model const mix = read(layers.numbers("mix.attention.head_count_kv", {2, 0, 2}));
  CHECK(mix.recurrent);
  CHECK(mix.layers == 2);
  CHECK(mix.kv_heads == 2);
}

TEST_CASE("models whose slots cannot be shrunk are refused by what they have") {
  gguf_writer layers("mix");
  layers.number("block_count", 3u).number("embedding_length", 64u).number("attention.head_count", 4u);
  gguf_writer several = layers;
  CHECK(refusal(layers.numbers("mix.attention.head_count_kv", {0, 0, 0}).bytes()) ==
        "m.gguf: the model (mix) is one without attention; it must be one that caches keys and values");
  CHECK(refusal(several.numbers("mix.attention.head_count_kv", {2, 1, 2}).bytes()) ==
        "m.gguf: mix.attention.head_count_kv is another number in another layer; it must be the same in all "
        "layers, "
        "because the cells of a slot are shrunk alike");
}

TEST_CASE("what is no GGUF file is refused") {
  CHECK(refusal("") == "m.gguf: not a whole GGUF file");
  CHECK(refusal("qsgg and some more bytes") == "m.gguf: not a GGUF file of version 2 or 3");
  CHECK(refusal(small().bytes(4)) == "m.gguf: not a GGUF file of version 2 or 3");
  CHECK(refusal(small().bytes(2)) == "");
  CHECK(refusal(gguf_writer().bytes()) ==
        "m.gguf: llama.attention.head_count is missing; it must be a whole number from 1 to 1000000");
  CHECK(refusal(small().number("attention.key_length", 0u).bytes()) ==
        "m.gguf: llama.attention.key_length is 0; it must be a whole number from 1 to 1000000");
  std::string const whole = small().tensor("rope_freqs.weight", std::vector<float>(32, 1.0f)).bytes();
  CHECK(refusal(whole) == "");
  for (std::size_t left = 0; left < whole.size(); ++left) CHECK(refusal(whole.substr(0, left)) != "");
  std::size_t taken =
      0;  // every bit of it turned: read or refused, and no memory that the file does not have
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string spoiled = whole;
    spoiled[bit / 8] = static_cast<char>(spoiled[bit / 8] ^ 1 << bit % 8);
    taken += refusal(spoiled).empty();
  }
  CHECK(taken > 100);
  CHECK(taken < 8 * whole.size() / 2 + 1000);
}
