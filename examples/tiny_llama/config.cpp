#include "config.hpp"

#include "files.hpp"
#include "json_text.hpp"

#include <cstdio>
#include <limits>

namespace tiny_llama {
namespace {

// Wide enough for any Llama published, narrow enough that no product of two extents leaves 64 bits.
constexpr int max_width = 1 << 20, max_count = 1 << 12, max_vocab = 1 << 24, max_positions = 1 << 28;

std::string plain(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

class reader {
public:
  reader(std::string const& file, json const& fields) : file_(file), fields_(fields) {}

  // A field that is null counts as absent, as writers of config.json mean it.
  json const* find(char const* name) const {
    auto const at = fields_.find(name);
    return at == fields_.end() || at->is_null() ? nullptr : &*at;
  }

  [[noreturn]] void refuse(std::string const& name, std::string const& value,
                           std::string const& allowed) const {
    throw model_error(file_, name + " is " + value + "; " + allowed);
  }

  int count(char const* name, int most) const {
    if (!find(name)) {
      throw model_error(file_, std::string(name) + " is missing; a whole number from 1 to " +
                                   std::to_string(most) + " is needed");
    }
    return count_or(name, most, 0);
  }

  int count_or(char const* name, int most, int otherwise) const {
    auto const* value = find(name);
    if (!value) {
      return otherwise;
    }
    auto const allowed = "a whole number from 1 to " + std::to_string(most) + " is needed";
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      refuse(name, shown(*value), allowed);
    }
    return value->get<int>();
  }

  double number_or(char const* name, double least, double most, double otherwise) const {
    auto const* value = find(name);
    if (!value) {
      return otherwise;
    }
    if (!value->is_number() || !(value->get<double>() >= least) || !(value->get<double>() <= most)) {
      refuse(name, shown(*value), "a number from " + plain(least) + " to " + plain(most) + " is needed");
    }
    return value->get<double>();
  }

  bool flag_or(char const* name, bool otherwise) const {
    auto const* value = find(name);
    if (value && !value->is_boolean()) {
      refuse(name, shown(*value), "true or false is needed");
    }
    return value ? value->get<bool>() : otherwise;
  }

  void require_text(char const* name, char const* wanted, bool needed) const {
    auto const* value = find(name);
    if (!value && needed) {
      throw model_error(file_, std::string(name) + " is missing; " + in_quotes(wanted) + " is needed");
    }
    if (value && (!value->is_string() || value->get_ref<std::string const&>() != wanted)) {
      refuse(name, shown(*value), "only " + in_quotes(wanted) + " is supported");
    }
  }

  void require_absent(char const* name) const {
    if (auto const* value = find(name)) {
      refuse(name, shown(*value), "it is not supported and must be absent or null");
    }
  }

private:
  std::string const& file_;
  json const& fields_;
};

}  // namespace

config parse_config(std::string const& path, std::string const& text) {
  auto const fields = parse_json(path, "text", text);
  if (!fields.is_object()) {
    throw model_error(path, "is a JSON " + std::string(fields.type_name()) + "; an object is needed");
  }
  reader const in(path, fields);
  in.require_text("model_type", "llama", true);
  in.require_text("hidden_act", "silu", false);
  // Each of these changes what the weights mean; ignoring one would give a model that talks nonsense.
  for (char const* name :
       {"rope_scaling", "quantization_config", "partial_rotary_factor", "sliding_window"}) {
    in.require_absent(name);
  }
  for (char const* name : {"attention_bias", "mlp_bias"}) {
    if (in.flag_or(name, false)) {
      in.refuse(name, "true", "only false is supported");
    }
  }

  config out;
  out.hidden = in.count("hidden_size", max_width);
  out.intermediate = in.count("intermediate_size", max_width);
  out.layers = in.count("num_hidden_layers", max_count);
  out.heads = in.count("num_attention_heads", max_count);
  out.kv_heads = in.count_or("num_key_value_heads", max_count, out.heads);
  out.vocab = in.count("vocab_size", max_vocab);
  out.max_positions = in.count_or("max_position_embeddings", max_positions, out.max_positions);
  out.norm_epsilon = in.number_or("rms_norm_eps", 1e-12, 1e-1, out.norm_epsilon);
  out.rope_base = in.number_or("rope_theta", 1.0, 1e12, out.rope_base);
  // From version 5 on, transformers writes what turns queries and keys as one object.
  if (auto const* rope = in.find("rope_parameters")) {
    if (!rope->is_object()) in.refuse("rope_parameters", shown(*rope), "an object is needed");
    reader const turns(path, *rope);
    turns.require_text("rope_type", "default", false);
    turns.require_absent("partial_rotary_factor");
    out.rope_base = turns.number_or("rope_theta", 1.0, 1e12, out.rope_base);
  }
  out.tied_embeddings = in.flag_or("tie_word_embeddings", out.tied_embeddings);
  out.head_dim = in.count_or("head_dim", max_count, 0);
  if (out.head_dim == 0) {
    if (out.hidden % out.heads != 0) {
      in.refuse("hidden_size", std::to_string(out.hidden),
                "without head_dim it must be a multiple of num_attention_heads (" +
                    std::to_string(out.heads) + ")");
    }
    out.head_dim = out.hidden / out.heads;
  }
  if (out.head_dim % 2 != 0) {
    in.refuse("head_dim", std::to_string(out.head_dim),
              "an even number is needed, since rotation pairs its halves");
  }
  if (out.heads % out.kv_heads != 0) {
    in.refuse("num_attention_heads", std::to_string(out.heads),
              "a multiple of num_key_value_heads (" + std::to_string(out.kv_heads) + ") is needed");
  }
  if (out.heads * static_cast<long long>(out.head_dim) > max_width) {
    in.refuse("num_attention_heads x head_dim",
              std::to_string(out.heads * static_cast<long long>(out.head_dim)),
              "at most " + std::to_string(max_width) + " is allowed");
  }
  return out;
}

config load_config(std::string const& path) { return parse_config(path, read_file(path, 1 << 20)); }

}  // namespace tiny_llama
