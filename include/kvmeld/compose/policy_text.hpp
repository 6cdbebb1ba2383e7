// Makes a policy from a text: a preset's name, or parts by their names, and numbers. For command lines,
// configuration files and other languages.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/compose/part_parameters.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/identify/identifier.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/policy/part_traits.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>
#include <kvmeld/select/top.hpp>

#include <cstddef>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Gives a selector counts that suit the identifier. If sets merge without centres, pinned entries leave room
/// for the merged ones; otherwise pinned entries fill the budget. Selectors other than top and
/// sinks_and_recents stay as they are.
inline void suit(any_selector& selector, identify_traits const& identifier) {
  bool const merges = identifier.makes_sets && !identifier.needs_centers;
  selector.change([&](auto& s) {
    using type = std::decay_t<decltype(s)>;
    if constexpr (std::is_same_v<type, select::top>) {
      quantity const heavy = merges ? quantity::of_budget(0.25) : quantity::rest_of_budget();
      s = {quantity::entries(0), quantity::of_budget(merges ? 1.0 / 3 : 0.5), heavy};
    } else if constexpr (std::is_same_v<type, select::sinks_and_recents>) {
      quantity const recents = merges ? quantity::at_most(64, 1.0 / 3) : quantity::rest_of_budget();
      s = {quantity::at_most(16, 0.25), recents};
    }
  });
}

/// How most models rotate queries and keys: channel i with channel i + d / 2, to the base 10,000.
inline rope_params usual_rope() {
  rope_params rope;
  rope.pairing = rope_pairing::half_split;
  return rope;
}

namespace detail {

/// A word of a text: "name", or "name=value".
struct text_word {
  std::string name, value;
  bool has_value = false;
};

inline std::vector<text_word> words_of(std::string const& text) {
  std::vector<text_word> out;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::size_t const sign = word.find('=');
    bool const assigns = sign != std::string::npos;
    out.push_back({word.substr(0, sign), assigns ? word.substr(sign + 1) : std::string(), assigns});
  }
  return out;
}

/// Looks up a part by its name and assigns it. Returns a refusal if there is none; else an empty text.
template <class Part> std::string part_problem(char const* option, std::string const& name, Part& part) {
  if (find(name, part)) return {};
  return refusal("policy", option, in_quotes(name), "one of ", names_of<Part>());
}

/// Reads rope= and rope_base= from a word; returns whether it is one of them.
inline bool read_rope(text_word const& word, rope_params& rope, std::string& problem) {
  if (word.name == "rope") {
    if (word.value == "half_split") {
      rope.pairing = rope_pairing::half_split;
    } else if (word.value == "interleaved") {
      rope.pairing = rope_pairing::interleaved;
    } else if (word.value == "none") {
      rope.pairing = rope_pairing::none;
    } else {
      problem = refusal("policy", word.name, in_quotes(word.value), "half_split, interleaved or none");
    }
    return true;
  }
  if (word.name != "rope_base") return false;
  if (!read_number(word.value, rope.base))
    problem = refusal("policy", word.name, in_quotes(word.value), form_of(rope.base));
  return true;
}

inline std::string read_policy_problem(std::string const& text, rope_params rope, composed& out) {
  std::vector<text_word> const words = words_of(text);
  bool const preset = !words.empty() && !words.front().has_value;
  composed policy;
  policy.score = score::none{};
  std::set<std::string> given;
  std::string problem;
  for (std::size_t i = preset ? 1 : 0; i < words.size() && problem.empty(); ++i) {
    text_word const& w = words[i];
    if (!w.has_value) {
      problem = refusal("policy", message("word ", i + 1), in_quotes(w.name),
                        "a name and a value, such as window=32, because only the first word names a preset");
    } else if (!given.insert(w.name).second) {
      problem = refusal("policy", message("number of times that ", in_quotes(w.name), " is given"), 2, "1");
    } else if (read_rope(w, rope, problem)) {
      continue;
    } else if (w.name == "score" || w.name == "select" || w.name == "identify" || w.name == "merge") {
      if (preset) {
        problem = refusal("policy", w.name, in_quotes(w.value), "absent, because the preset ",
                          words.front().name, " has parts of its own");
      } else if (w.name == "score") {
        problem = part_problem("score", w.value, policy.score);
      } else if (w.name == "select") {
        problem = part_problem("select", w.value, policy.select);
      } else if (w.name == "identify") {
        problem = part_problem("identify", w.value, policy.identify);
      } else {
        problem = part_problem("merge", w.value, policy.merge);
      }
    }
  }
  if (!problem.empty()) return problem;
  if (words.empty() || (preset && !find_policy(words.front().name, rope, policy))) {
    return refusal("policy", "name", in_quotes(words.empty() ? "" : words.front().name), "one of ",
                   names_of_policies(), ", or parts such as score=key_difference select=top");
  }
  if (!preset) {
    suit(policy.select, policy.identify.traits());
    tell_pinned(policy);
  }
  bool const turns = set_rope(policy, rope);
  for (char const* name : {"rope", "rope_base"}) {
    if (!turns && given.count(name) != 0) {
      return refusal("policy", name, "given", "absent, because the score ", policy.score.name(),
                     " does not turn keys back");
    }
  }
  for (std::size_t i = preset ? 1 : 0; i < words.size(); ++i) {
    std::string const& name = words[i].name;
    if (name == "score" || name == "select" || name == "identify" || name == "merge" || name == "rope" ||
        name == "rope_base")
      continue;
    if (problem = set_parameter(policy, name, words[i].value); !problem.empty()) return problem;
  }
  if (problem = configuration_problem(policy); !problem.empty()) return problem;
  out = policy;
  return {};
}

}  // namespace detail

/// Makes a policy from a text, and assigns it to `out`. The text is words with blanks between them:
///
/// - a preset's name (named_policies), or parts: score=, select=, identify=, merge=, with the names that
///   `names_of` lists. The defaults are `none`, `top`, `evict_rest` and `drop`. The selector gets counts that
///   suit the identifier;
/// - then any of the `parameters`, such as window=64 or recents=16|25%;
/// - rope=half_split, interleaved or none, and rope_base=500000, if a score turns keys back. Without these
///   words `rope` holds.
///
/// Refuses unknown words, words that are given twice, and parts that make no policy together; `out` is then
/// as it was. Any thread may call it.
inline status read_policy(std::string const& text, composed& out, rope_params const& rope = usual_rope()) {
  return raise(detail::read_policy_problem(text, rope, out));
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
