// What a model's GGUF file says of its cache: heads, their sizes, rotation, windows, and what kvmeld_slot
// cannot shrink.
#pragma once

#include <kvmeld/queries/rope.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <istream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama_cpp {

/// Throws std::runtime_error: "NAME: WHAT is VALUE; it must be CONDITION".
[[noreturn]] inline void refuse_model(std::string const& name, std::string const& what,
                                      std::string const& value, std::string const& condition) {
  throw std::runtime_error(name + ": " + what + " is " + value + "; it must be " + condition);
}

/// A model as llama.cpp holds its cache.
struct gguf_model {
  std::string name;  ///< of the file
  std::string architecture;
  /// Layers that cache keys and values, their KV heads and the sizes of these.
  std::uint32_t layers = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  /// Tokens that some layers see, which have a cache of their own; 0: all layers see all tokens. llama.cpp
  /// knows which layers these are; files do not say it.
  std::uint32_t window = 0;
  bool recurrent = false;  ///< other layers have a recurrent state
  /// Whether `rope` says how the model rotates the keys of layers without a window. Not for architectures
  /// that this program does not know, and not where factors depend on the server's context (YaRN, LongRoPE).
  bool rope_known = false;
  kvmeld::rope_params rope;
  std::vector<float> frequencies;  ///< of rope, where the file has factors; empty: base and factor tell all

  /// `rope` with its table. The model outlives it.
  kvmeld::rope_params rotation() const {
    kvmeld::rope_params out = rope;
    out.frequencies = frequencies.empty() ? nullptr : frequencies.data();
    return out;
  }
};

namespace gguf_detail {

/// Reads little-endian numbers and texts, never more than the stream holds.
class reader {
public:
  reader(std::istream& in, std::string name) : in_(&in), name_(std::move(name)) {
    in_->seekg(0, std::ios::end);
    left_ = in_->good() ? static_cast<std::uint64_t>(in_->tellg()) : 0;
    size_ = left_;
    in_->seekg(0);
  }
  std::string const& name() const { return name_; }
  std::uint64_t at() const { return size_ - left_; }
  [[noreturn]] void refuse() const { throw std::runtime_error(name_ + ": not a whole GGUF file"); }
  void take(void* to, std::uint64_t bytes) {
    expect(bytes);
    if (!in_->read(static_cast<char*>(to), static_cast<std::streamsize>(bytes))) refuse();
  }
  void skip(std::uint64_t bytes) {
    expect(bytes);
    auto const n = static_cast<std::streamoff>(bytes);
    constexpr std::uint64_t small = 1 << 16;  // a vocabulary has many: a seek reads a block again
    if (!(bytes < small ? in_->ignore(n) : in_->seekg(n, std::ios::cur))) refuse();
  }
  /// `count` things of `each` bytes.
  void skip(std::uint64_t count, std::uint64_t each) {
    if (count > left_ / each) refuse();
    skip(count * each);
  }
  template <class T> T number() {
    T out;
    take(&out, sizeof out);
    return out;
  }
  std::string text() {
    auto const bytes = number<std::uint64_t>();
    if (bytes > left_) refuse();
    std::string out(static_cast<std::size_t>(bytes), '\0');
    take(out.data(), bytes);
    return out;
  }

private:
  void expect(std::uint64_t bytes) {
    if (bytes > left_) refuse();
    left_ -= bytes;
  }

  std::istream* in_;
  std::string name_;
  std::uint64_t left_ = 0, size_ = 0;
};

/// A value of the file's head. Long lists and lists of texts are left out.
struct value {
  std::vector<double> numbers;
  std::string text;
};
constexpr std::uint32_t text_type = 8, list_type = 9, longest_list = 4096;

inline double read_number(reader& in, std::uint32_t type) {
  switch (type) {
  case 0: return in.number<std::uint8_t>();
  case 1: return in.number<std::int8_t>();
  case 2: return in.number<std::uint16_t>();
  case 3: return in.number<std::int16_t>();
  case 4: return in.number<std::uint32_t>();
  case 5: return in.number<std::int32_t>();
  case 6: return static_cast<double>(in.number<float>());
  case 7: return in.number<std::uint8_t>();
  case 10: return static_cast<double>(in.number<std::uint64_t>());
  case 11: return static_cast<double>(in.number<std::int64_t>());
  case 12: return in.number<double>();
  default: in.refuse();
  }
}
inline std::uint64_t bytes_of(reader const& in, std::uint32_t type) {
  constexpr std::uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type >= sizeof sizes || sizes[type] == 0) in.refuse();
  return sizes[type];
}

inline value read_value(reader& in) {
  value out;
  auto const type = in.number<std::uint32_t>();
  if (type == text_type) {
    out.text = in.text();
  } else if (type != list_type) {
    out.numbers.push_back(read_number(in, type));
  } else {
    auto const of = in.number<std::uint32_t>();
    auto const count = in.number<std::uint64_t>();
    if (of == text_type) {
      for (std::uint64_t i = 0; i < count; ++i) in.skip(in.number<std::uint64_t>());
    } else if (count > longest_list) {
      in.skip(count, bytes_of(in, of));
    } else {
      for (std::uint64_t i = 0; i < count; ++i) out.numbers.push_back(read_number(in, of));
    }
  }
  return out;
}

/// Which channels these architectures of llama.cpp rotate together, in all layers without a window.
inline bool find_pairing(std::string_view architecture, kvmeld::rope_pairing& out) {
  using list = std::initializer_list<std::string_view>;
  auto const in = [&](list const& names) {
    return std::find(names.begin(), names.end(), architecture) != names.end();
  };
  if (in({"llama",     "deci",       "baichuan", "starcoder", "internlm2",    "minicpm", "xverse",
          "command-r", "olmo",       "arctic",   "deepseek",  "chatglm",      "granite", "granitemoe",
          "chameleon", "bailingmoe", "arcee",    "ernie4_5",  "ernie4_5-moe", "mistral3"})) {
    out = kvmeld::rope_pairing::interleaved;
  } else if (in({"falcon",   "grok",     "dbrx",   "stablelm",   "qwen",      "qwen2",    "qwen2moe",
                 "qwen3",    "qwen3moe", "olmo2",  "olmoe",      "phi2",      "phi3",     "phimoe",
                 "gemma",    "gemma2",   "gemma3", "starcoder2", "openelm",   "gptneox",  "codeshell",
                 "nemotron", "exaone",   "lfm2",   "lfm2moe",    "falcon-h1", "qwen3next"})) {
    out = kvmeld::rope_pairing::half_split;
  } else if (in({"gpt2", "gptj", "mpt", "refact", "bloom", "jais", "jamba"})) {
    out = kvmeld::rope_pairing::none;
  } else {
    return false;
  }
  return true;
}

/// The head of a file: its values by name, and the factors of llama.cpp's tensor rope_freqs.weight.
class head {
public:
  explicit head(reader& in) : name_(in.name()) {
    char magic[4];
    in.take(magic, sizeof magic);
    auto const version = in.number<std::uint32_t>();
    if (std::memcmp(magic, "GGUF", 4) != 0 || version < 2 || version > 3) {
      throw std::runtime_error(name_ + ": not a GGUF file of version 2 or 3");
    }
    auto const tensors = in.number<std::uint64_t>(), values = in.number<std::uint64_t>();
    for (std::uint64_t i = 0; i < values; ++i) {
      std::string key = in.text();
      values_.emplace(std::move(key), read_value(in));
    }
    std::uint64_t factors_at = 0, factors = 0;
    for (std::uint64_t i = 0; i < tensors; ++i) {
      std::string const key = in.text();
      auto const dimensions = in.number<std::uint32_t>();
      if (dimensions > 4) in.refuse();
      std::array<std::uint64_t, 4> sizes{};
      for (std::uint32_t d = 0; d < dimensions; ++d) sizes[d] = in.number<std::uint64_t>();
      auto const type = in.number<std::uint32_t>();
      auto const at = in.number<std::uint64_t>();
      odd_factors_ = odd_factors_ || key == "rope_factors_long.weight";
      if (key != "rope_freqs.weight") continue;
      odd_factors_ = odd_factors_ || type != 0 || dimensions != 1 || sizes[0] > longest_list;
      factors_at = at;
      factors = sizes[0];
    }
    if (factors == 0 || odd_factors_) return;
    auto const alignment = static_cast<std::uint64_t>(number("general.alignment", 32));
    if (alignment == 0) in.refuse();
    in.skip((alignment - in.at() % alignment) % alignment);
    in.skip(factors_at);
    for (std::uint64_t i = 0; i < factors; ++i) factors_.push_back(in.number<float>());
  }

  bool has(std::string const& key) const { return values_.count(key) != 0; }
  bool has_any_of(std::string const& prefix) const {
    auto const from = values_.lower_bound(prefix);
    return from != values_.end() && from->first.compare(0, prefix.size(), prefix) == 0;
  }
  std::string text(std::string const& key) const { return has(key) ? values_.at(key).text : std::string(); }
  std::vector<double> numbers(std::string const& key) const {
    return has(key) ? values_.at(key).numbers : std::vector<double>();
  }
  double number(std::string const& key, double otherwise) const {
    std::vector<double> const all = numbers(key);
    return all.size() == 1 ? all[0] : otherwise;
  }
  /// A count above 0.
  std::uint32_t count(std::string const& key, double otherwise = 0) const {
    double const n = number(key, otherwise);
    if (!(n >= 1 && n <= 1e6) || n != std::floor(n)) {
      refuse_model(name_, key, has(key) ? kvmeld::message(n) : "missing", "a whole number from 1 to 1000000");
    }
    return static_cast<std::uint32_t>(n);
  }
  std::vector<float> const& factors() const { return factors_; }
  bool odd_factors() const { return odd_factors_; }

private:
  std::string name_;
  std::map<std::string, value> values_;
  std::vector<float> factors_;
  bool odd_factors_ = false;
};

inline void read_rope(head const& h, gguf_model& m) {
  std::string const of = m.architecture + ".rope.";
  m.rope_known = find_pairing(m.architecture, m.rope.pairing);
  m.rope.rotary_dim = h.count(of + "dimension_count", m.key_dim);
  m.rope.base = h.number(of + "freq_base", m.rope.base);
  std::string const scaling = h.text(of + "scaling.type");
  m.rope.factor = h.number(of + "scaling.factor", h.number(of + "scale_linear", 1));
  if (m.rope.factor == 0 || scaling == "none") m.rope.factor = 1;
  if (h.odd_factors() || (!scaling.empty() && scaling != "none" && scaling != "linear")) m.rope_known = false;
  if (h.factors().empty() || !m.rope_known) return;
  std::uint32_t const pairs = m.rope.rotary_dim / 2;
  m.rope_known = h.factors().size() == pairs;
  for (std::uint32_t i = 0; m.rope_known && i < pairs; ++i) {
    double const plain = std::pow(m.rope.base, -static_cast<double>(i) / pairs) / m.rope.factor;
    m.frequencies.push_back(static_cast<float>(plain / static_cast<double>(h.factors()[i])));
  }
}

}  // namespace gguf_detail

/// Reads the head of a GGUF file, and its rotation factors. Throws std::runtime_error for what is no such
/// file, and for a model whose slots kvmeld_slot cannot shrink: one without attention, and one whose layers
/// have unlike numbers of KV heads.
inline gguf_model read_gguf(std::istream& stream, std::string const& name) {
  gguf_detail::reader in(stream, name);
  gguf_detail::head const h(in);
  gguf_model m;
  m.name = name;
  m.architecture = h.text("general.architecture");
  std::string const a = m.architecture + ".";
  std::string const attention = a + "attention.";
  // llama.cpp ignores the windows of phi3 and keeps one cache.
  if (h.number(attention + "sliding_window", 0) > 0 && a != "phi3.")
    m.window = h.count(attention + "sliding_window");
  std::vector<double> heads = h.numbers(attention + "head_count_kv");
  std::size_t const listed = heads.size();
  heads.erase(std::remove(heads.begin(), heads.end(), 0.0), heads.end());
  m.recurrent = heads.size() != listed || h.has_any_of(a + "ssm.") || h.has_any_of(a + "wkv.") ||
                h.has_any_of(a + "shortconv.");
  if (listed != 0 && heads.empty()) {
    refuse_model(name, "the model (" + m.architecture + ")", "one without attention",
                 "one that caches keys and values");
  }
  std::uint32_t const query_heads = heads.empty() ? h.count(attention + "head_count") : 0;
  m.kv_heads = heads.empty() ? query_heads : static_cast<std::uint32_t>(std::clamp(heads[0], 0.0, 1e6));
  if (std::any_of(heads.begin(), heads.end(), [&](double each) { return each != m.kv_heads; })) {
    refuse_model(name, attention + "head_count_kv", "another number in another layer",
                 "the same in all layers, because the cells of a slot are shrunk alike");
  }
  m.layers = h.count(a + "block_count");
  double const predicting = h.number(a + "nextn_predict_layers", 0);  // which have no cells
  if (predicting > 0 && predicting < m.layers) m.layers -= static_cast<std::uint32_t>(predicting);
  if (m.recurrent && listed > 1) m.layers = static_cast<std::uint32_t>(heads.size());
  auto const dim = [&](char const* key) {
    if (h.has(attention + key)) return h.count(attention + key);
    return h.count(a + "embedding_length") / h.count(attention + "head_count");
  };
  m.key_dim = dim("key_length");
  m.value_dim = dim("value_length");
  gguf_detail::read_rope(h, m);
  return m;
}

inline gguf_model read_gguf(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": no such file, or it cannot be read");
  return read_gguf(in, path);
}

}  // namespace llama_cpp
