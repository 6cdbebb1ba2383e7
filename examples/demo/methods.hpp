// Which policy a method's name stands for, and the one that --score, --select, --identify and --merge put
// together.
#pragma once

#include <tiny_llama/engine.hpp>
#include <tiny_llama/error.hpp>
#include <tiny_llama/learned_file.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/compose/policy_text.hpp>
#include <kvmeld/kvmeld.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

namespace demo {

namespace preset = kvmeld::preset;
using kvmeld::quantity;
using kvmeld::compose::composed;
using kvmeld::compose::composed_of;

/// KVMerger with a threshold per layer for a share kept, of which a third is recent and a quarter heavy as in
/// its preset.
inline preset::kvmerger::paper_type kvmerger_with(float const* theta, double kept) {
  return preset::kvmerger::with_thresholds(theta, quantity::of_length(kept / 3),
                                           quantity::of_length(kept / 4));
}

/// Looks up a part by the value of an option; refuses unknown names.
template <class Part> Part part_named(char const* option, std::string const& name) {
  Part part;
  if (!kvmeld::compose::find(name, part)) {
    tiny_llama::refuse_option(option, name, "one of " + kvmeld::compose::names_of<Part>());
  }
  return part;
}

/// How a model rotates queries and keys: as Hugging Face's Llama does.
inline kvmeld::rope_params rope_of(tiny_llama::options const& o) {
  return tiny_llama::rope_of(o.loaded != nullptr ? o.loaded->shape() : tiny_llama::config{});
}

/// Tells a score that measures outputs (max_output, critical) the output projections of the model.
inline void tell_projection(composed& policy, tiny_llama::options const& o) {
  if (o.loaded == nullptr) return;
  policy.score.change([&](auto& score) {
    using type = std::decay_t<decltype(score)>;
    if constexpr (std::is_same_v<type, kvmeld::score::max_output<float>> ||
                  std::is_same_v<type, kvmeld::score::critical<kvmeld::score::local>>) {
      score.projection = tiny_llama::projection_of(*o.loaded);
    }
  });
}

/// Tells the score learned its weights, if there are any; without them caches refuse it.
inline void tell_learned(composed& policy, tiny_llama::options const& o) {
  if (o.scores != nullptr) kvmeld::compose::set_learned(policy, o.scores->weights());
}

/// Reads the file of learned scores, if there is one; refuses one of a model of other sizes or another
/// rotation.
inline tiny_llama::learned_scores learned_of(tiny_llama::model const& model, std::string const& path) {
  tiny_llama::learned_scores out;
  if (path.empty()) return out;
  out = tiny_llama::load_learned(path);
  tiny_llama::config const& c = model.shape();
  auto const count = [](int n) { return static_cast<std::uint32_t>(n); };
  expect_of(out, path,
            {model.name(), count(c.layers), count(c.kv_heads), count(c.head_dim), tiny_llama::rope_of(c)});
  return out;
}

/// The policy of the options; refuses names that do not exist, and parts that make no policy together.
inline composed composition(tiny_llama::options const& o) {
  using namespace kvmeld::compose;
  composed out;
  out.score = part_named<any_score>("--score", o.score);
  if (o.score == "expected_attention") out.score = preset::expected_attention::with_rope(rope_of(o)).score;
  if (o.score == "distance_preference") out.score = preset::triattention::with_rope(rope_of(o)).score;
  if (o.score == "learned") out.score = preset::learned::with_weights({}, rope_of(o)).score;
  out.identify = part_named<any_identifier>("--identify", o.identify);
  out.select = part_named<any_selector>("--select", o.select);
  suit(out.select, out.identify.facts_now());
  tell_pinned(out);
  tell_projection(out, o);
  tell_learned(out, o);
  out.merge = part_named<any_merge>("--merge", o.merge);
  std::string const problem = kvmeld::configuration_problem(out);
  if (!problem.empty()) throw tiny_llama::option_error(problem + ".");
  return out;
}

/// The policy of every method but "ems", which shares entries and so has a type of its own.
inline composed policy_of(std::string const& method, tiny_llama::options const& o) {
  if (method == "composed") return composition(o);
  std::string text = method;
  if (method == "full") text = "streaming_llm";  // which never compresses it
  if (method == "chelsea_flat") text = "chelsea";
  if (method == "compactor") text += " recents=32|25%";  // as the other methods: questions end a prompt
  composed out;
  kvmeld::compose::read_policy(text, out, rope_of(o));
  tell_projection(out, o);
  tell_learned(out, o);
  return out;
}

/// Runs `run(policy)` with the policy of a method's name.
template <class Run> void with_policy(std::string const& method, tiny_llama::options const& o, Run run) {
  if (method == "ems") return run(preset::ems::shared());
  run(policy_of(method, o));
}

/// How a method is read: what is more than its policy. Methods that cannot share budgets keep one per head.
inline tiny_llama::reading reading_of(std::string const& method, tiny_llama::options const& o) {
  tiny_llama::reading r;
  r.ignore_degree = method == "chelsea_flat";
  r.weighs = method == "kvzip_plus" || (method == "composed" && o.score == "max_output");
  with_policy(method, o, [&](auto const& policy) {
    if (!kvmeld::stays_by_score(policy)) return;
    r.budgets = o.budget_scope == "layer"        ? kvmeld::budget_scope::layer
                : o.budget_scope == "all_layers" ? kvmeld::budget_scope::all_layers
                                                 : kvmeld::budget_scope::head;
  });
  return r;
}

/// Whether a method wants to be shown a second reading of the prompt.
inline bool wants_replay(std::string const& method, tiny_llama::options const& o) {
  bool wants = false;
  with_policy(method, o, [&](auto const& policy) {
    wants = kvmeld::need_of(policy).when == kvmeld::observation::replay;
  });
  return wants;
}

/// Whether a method needs what was learned of the model.
inline bool wants_learned(std::string const& method, tiny_llama::options const& o) {
  return method != "ems" && kvmeld::compose::needs_learned(policy_of(method, o));
}

inline std::string kind_of(std::string const& method, tiny_llama::options const& o) {
  if (method == "full") return "full";
  if (method == "ems") return "merge";
  composed const p = policy_of(method, o);
  return p.merge.facts_now().drops ? "evict" : "merge";
}

}  // namespace demo
