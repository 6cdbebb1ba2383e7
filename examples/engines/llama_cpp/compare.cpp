// llama.cpp with a merged cache against a plain forward pass over the same cells; see
// docs/engines/llama_cpp.md. Usage: compare tiny-kjv.gguf examples/data/tiny-kjv
#include "kq_bias.hpp"
#include "sequence_state.hpp"

#include <tiny_llama/model.hpp>
#include <tiny_llama/program.hpp>

#include <llama.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int context_tokens = 1024, following_tokens = 256, capacity = 2048;

struct free_model {
  void operator()(llama_model* m) const { llama_model_free(m); }
};
struct free_context {
  void operator()(llama_context* c) const { llama_free(c); }
};

/// One sequence, number 0, in a context of its own.
class session {
public:
  session(llama_model* model, bool flash, ggml_type type, llama_cpp::kq_bias* bias = nullptr)
      : vocab_(static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)))) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = capacity;
    p.n_batch = p.n_ubatch = capacity;
    p.n_threads = p.n_threads_batch = 2;
    p.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.type_k = p.type_v = type;
    if (bias != nullptr) {
      p.cb_eval = llama_cpp::kq_bias::callback;
      p.cb_eval_user_data = bias;
    }
    context_.reset(llama_init_from_model(model, p));
    if (!context_) throw std::runtime_error("no context");
  }

  /// Logits of every token, row by row.
  std::vector<float> read(std::vector<int> const& tokens) {
    llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
    for (int token : tokens) {
      int const i = batch.n_tokens++;
      batch.token[i] = token;
      batch.pos[i] = position_++;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    int const failed = llama_decode(context_.get(), batch);
    llama_batch_free(batch);
    if (failed != 0) throw std::runtime_error("llama_decode failed");
    std::vector<float> out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      float const* const row = llama_get_logits_ith(context_.get(), static_cast<int>(i));
      out.insert(out.end(), row, row + vocab_);
    }
    return out;
  }
  std::vector<std::uint8_t> state() const {
    std::vector<std::uint8_t> bytes(llama_state_seq_get_size(context_.get(), 0));
    if (llama_state_seq_get_data(context_.get(), bytes.data(), bytes.size(), 0) != bytes.size())
      throw std::runtime_error("llama_state_seq_get_data failed");
    return bytes;
  }
  void set_state(std::vector<std::uint8_t> const& bytes) {
    if (llama_state_seq_set_data(context_.get(), bytes.data(), bytes.size(), 0) != bytes.size())
      throw std::runtime_error("llama_state_seq_set_data failed");
  }
  /// The same, the cells lying from 0 on afterwards.
  void set_state_alone(std::vector<std::uint8_t> const& bytes) {
    llama_memory_clear(llama_get_memory(context_.get()), false);
    set_state(bytes);
  }
  int position() const { return position_; }

private:
  std::size_t vocab_;
  std::unique_ptr<llama_context, free_context> context_;
  int position_ = 0;
};

/// Logits of one more token over the cells of a state, by plain loops. `log_degrees` [layer][KV head][entry],
/// or none.
template <class T>
std::vector<float> reference(tiny_llama::model& model, kvmeld::shape const& extent,
                             std::vector<std::uint8_t> const& bytes, std::vector<float> const& log_degrees,
                             int position, int token) {
  llama_cpp::sequence_state state(bytes);
  std::vector<std::int32_t> const order = state.order();
  auto const tensors = state.layouts<T>(extent, order.data());
  auto const d = static_cast<std::size_t>(extent.key_dim);
  std::uint32_t const cells = state.cells();
  using traits = kvmeld::element_traits<T>;
  auto const rounded = [](float x) { return double{traits::to_float(traits::from_float(x))}; };
  auto const attend = [&](int layer, int, float const* q, float const* k, float const* v, float* out) {
    for (std::uint32_t head = 0; head < extent.query_heads(); ++head) {
      auto const where =
          kvmeld::make_track(extent, static_cast<std::uint32_t>(layer), 0, head / extent.queries_per_kv_head);
      std::size_t const own = where.kv_head * d;
      std::vector<double> weights;
      double sum = 0;
      for (std::uint32_t cell = 0; cell <= cells; ++cell) {
        double dot = 0;
        for (std::size_t c = 0; c < d; ++c) {
          // llama.cpp has the pairs (c, c + d/2) of a head side by side
          std::size_t const at = c < d / 2 ? 2 * c : 2 * (c - d / 2) + 1;
          double const key = cell == cells
                                 ? rounded(k[own + c])
                                 : double{traits::to_float(tensors.keys.locate(where, cell).base[at])};
          dot += double{q[head * d + c]} * key;
        }
        double weight = std::exp(dot / std::sqrt(static_cast<double>(d)));
        if (cell < cells && !log_degrees.empty())
          weight *= std::exp(double{log_degrees[std::size_t{where.index} * cells + cell]});
        weights.push_back(weight);
        sum += weight;
      }
      for (std::size_t c = 0; c < d; ++c) {
        double total = weights[cells] * rounded(v[own + c]);
        for (std::uint32_t cell = 0; cell < cells; ++cell) {
          auto const row = tensors.values.locate(where, cell);
          total += weights[cell] *
                   double{traits::to_float(row.base[static_cast<std::int64_t>(c) * row.channel_stride])};
        }
        out[head * d + c] = static_cast<float>(total / sum);
      }
    }
  };
  std::vector<float> logits;
  model.forward(&token, 1, position, attend, logits);
  return logits;
}

double bits_per_byte(std::vector<float> const& rows, std::vector<int> const& tokens) {
  std::size_t const vocab = rows.size() / tokens.size();
  double bits = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < vocab; ++j) sum += std::exp(double{rows[i * vocab + j]});
    bits += std::log2(sum) - double{rows[i * vocab + static_cast<std::size_t>(tokens[i])]} / std::log(2.0);
  }
  return bits / static_cast<double>(tokens.size());
}

double distance(std::vector<float> const& a, std::vector<float> const& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::fmax(most, std::fabs(double{a[i]} - double{b[i]}));
  return most;
}

/// Chelsea with fewer pins where 16 and 64 would fill a small budget.
auto small_chelsea() {
  using kvmeld::quantity;
  return kvmeld::preset::chelsea::with_schedule({}, quantity::at_most(16, 0.25),
                                                quantity::at_most(64, 1.0 / 3));
}

/// A model in llama.cpp and in the little engine, and a text for both.
struct trial {
  std::unique_ptr<llama_model, free_model> llama;
  tiny_llama::model model;
  kvmeld::shape extent;
  std::vector<int> text;

  /// Reads, shortens, goes on; prints a line and returns how far the next logits are from the reference's.
  template <class T, class Policy>
  double line(char const* name, bool flash, Policy policy, double share, llama_cpp::reading how) {
    llama_cpp::kq_bias bias(extent.kv_heads, 1.0f / std::sqrt(static_cast<float>(extent.key_dim)));
    session s(llama.get(), flash, std::is_same_v<T, float> ? GGML_TYPE_F32 : GGML_TYPE_F16,
              how.degrees ? &bias : nullptr);
    auto const middle = text.begin() + context_tokens;
    std::vector<float> rows = s.read({text.begin(), middle});
    rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(rows.size() / context_tokens));
    std::vector<std::uint8_t> now = s.state();
    std::vector<float> log_degrees;
    if (share < 1) {
      llama_cpp::sequence_shortener<T, Policy> shortener(extent, policy, how);
      now = shortener.shorten(now, share);
      if (how.degrees) {
        log_degrees = shortener.log_degrees();
        bias.set(log_degrees, shortener.entries());
      }
    }
    s.set_state_alone(now);
    if (s.state() != now) throw std::runtime_error("the state has changed on its way in and out");
    auto const expected = reference<T>(model, extent, now, log_degrees, s.position(), *middle);
    std::vector<float> const first = s.read({*middle}), rest = s.read({middle + 1, text.end() - 1});
    rows.insert(rows.end(), first.begin(), first.end());
    rows.insert(rows.end(), rest.begin(), rest.end());
    double const apart = distance(first, expected);
    std::printf("%-36s %6u %15.4f %16.1e\n", name, llama_cpp::sequence_state(now).cells(),
                bits_per_byte(rows, {middle, text.end()}), apart);
    return apart;
  }

  /// All lines of one kind of cache; whether the shortened ones are as near as the full one.
  template <class T> bool table(char const* title, bool flash) {
    auto const chelsea = small_chelsea();
    std::printf("\n%-36s %6s %15s %16s\n", title, "cells", "bits per byte", "from reference");
    double const full = line<T>("full", flash, chelsea, 1, {});
    double worst = 0;
    for (double share : {0.5, 0.2}) {
      bool const half = share == 0.5;
      auto const run = [&](char const* name, auto policy, llama_cpp::reading how) {
        worst = std::fmax(worst, line<T>(name, flash, policy, share, how));
      };
      run(half ? "chelsea 50%, one plan" : "chelsea 20%, one plan", chelsea, {false, true});
      run(half ? "chelsea 50%, by head" : "chelsea 20%, by head", chelsea, {false, false});
      if (!flash) {
        run(half ? "chelsea 50%, one plan, degrees" : "chelsea 20%, one plan, degrees", chelsea,
            {true, true});
        run(half ? "chelsea 50%, by head, degrees" : "chelsea 20%, by head, degrees", chelsea, {true, false});
      }
      run(half ? "streaming_llm 50%" : "streaming_llm 20%", kvmeld::preset::streaming_llm::with_sinks(), {});
    }
    return worst <= 4 * full;
  }

  /// Out and in without merging.
  bool same_bits() {
    auto const middle = text.begin() + context_tokens;
    session one(llama.get(), false, GGML_TYPE_F16), two(llama.get(), false, GGML_TYPE_F16);
    one.read({text.begin(), middle});
    two.read({text.begin(), middle});
    two.set_state(two.state());
    return one.read({middle, text.end()}) == two.read({middle, text.end()});
  }

  /// A cache that is shortened whenever 256 tokens have come, wherever llama.cpp puts its cells. How far from
  /// the reference.
  double often(double share) {
    auto const chelsea = small_chelsea();
    session s(llama.get(), false, GGML_TYPE_F16);
    llama_cpp::sequence_shortener<kvmeld::float16, decltype(chelsea)> shortener(extent, chelsea);
    double apart = 0;
    for (auto at = text.begin(); text.end() - at > 256; at += 255) {
      s.read({at, at + 255});
      s.set_state(shortener.shorten(s.state(), share));
      auto const expected = reference<kvmeld::float16>(model, extent, s.state(), {}, s.position(), at[255]);
      apart = std::fmax(apart, distance(s.read({at[255]}), expected));
      ++at;
    }
    std::printf("\nshortened after every 256 tokens: %u cells of %d at last, %.1e from the reference\n",
                shortener.entries(), s.position(), apart);
    return apart;
  }
};

trial load(char const* gguf, std::string const& folder) {
  llama_log_set(
      [](ggml_log_level level, char const* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  std::unique_ptr<llama_model, free_model> llama(
      llama_model_load_from_file(gguf, llama_model_default_params()));
  if (!llama) throw std::runtime_error("llama.cpp cannot load this model");
  tiny_llama::model model = tiny_llama::model::load(folder);
  auto const u = [](int x) { return static_cast<std::uint32_t>(x); };
  auto const& c = model.shape();
  kvmeld::shape const extent{u(c.layers),   1,       u(c.kv_heads), u(c.heads / c.kv_heads), u(c.head_dim),
                             u(c.head_dim), capacity};
  std::ifstream file(folder + "/heldout.txt", std::ios::binary);
  std::string const held_out{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<int> text;
  for (std::size_t i = 0; i < context_tokens + following_tokens; ++i)
    text.push_back(static_cast<unsigned char>(held_out.at(i)));
  return {std::move(llama), std::move(model), extent, std::move(text)};
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_llama_cpp_compare", [&] {
    if (argc != 3)
      throw tiny_llama::option_error("two paths must be given: model.gguf folder-of-the-same-model");
    trial t = load(argv[1], argv[2]);
    bool const same = t.same_bits();
    std::printf("out and in without merging, the same bits: %s\n", same ? "yes" : "NO");
    bool good = t.table<float>("float cache, no flash attention", false);
    good = t.table<kvmeld::float16>("half cache, no flash attention", false) && good;
    good = t.table<kvmeld::float16>("half cache, flash attention", true) && good;
    good = t.often(0.3) < 5e-3 && good;
    return good && same ? 0 : 1;
  });
}
