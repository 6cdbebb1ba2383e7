// SPDX-License-Identifier: Apache-2.0
// Makes a policy from a text: a preset's name, or parts by their names, and numbers. For command lines,
// configuration files and other languages.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/compose/named_policies.hpp>
#include <kvmeld/compose/part_parameters.hpp>
#include <kvmeld/core/bits.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/core/facts.hpp>
#include <kvmeld/identify/centroids.hpp>
#include <kvmeld/policy/check_policy.hpp>
#include <kvmeld/policy/rules.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/none.hpp>
#include <kvmeld/select/sinks_and_recents.hpp>
#include <kvmeld/select/top.hpp>

#include <cstddef>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

/// Gives a selector counts that suit the identifier. If sets merge without centres, pinned entries leave room
/// for the merged ones; otherwise pinned entries fill the budget. Selectors other than top and
/// sinks_and_recents stay as they are.
inline void suit(any_selector& selector, identify_facts const& identifier) {
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

/// The words of a text that say how a model rotates queries and keys.
class rope_words {
public:
  static bool has(std::string const& name) {
    return name == "rope" || name == "rope_base" || name == "rope_factor" || name == "rotary_dim" ||
           name == "frequencies";
  }
  bool empty() const { return given_.empty(); }
  /// The first word that was read.
  std::string const& first() const { return given_; }

  /// Reads one of these words; returns why it cannot be read, or an empty text.
  std::string read(text_word const& word) {
    if (empty()) given_ = word.name;
    if (word.name == "rope") return read_pairing(word);
    if (word.name == "rotary_dim") return read_into(word, rope_.rotary_dim);
    if (word.name == "frequencies") return read_frequencies(word);
    angles_ = true;
    return read_into(word, word.name == "rope_base" ? rope_.base : rope_.factor);
  }

  /// Joins the words to what the program says (or null), in `rope`, and the numbers of frequencies= to `kept`
  /// (or null). Returns why they do not go together, or an empty text.
  std::string join(rope_params const* told, rope_params& rope, std::vector<float>* kept) const {
    if (told != nullptr) rope = *told;
    if (empty()) return {};
    if (!paired_ && told == nullptr)
      return refusal("policy", "rope", "not given", "half_split or interleaved, because ", given_,
                     " is given");
    if (paired_) rope.pairing = rope_.pairing;
    if (rope.pairing == rope_pairing::none) {
      if (!angles_ && numbers_.empty() && rope_.rotary_dim == 0) return {};
      return refusal("policy", "rope", "none",
                     "half_split or interleaved where other words say how far keys turn");
    }
    if (angles_ && !numbers_.empty()) {
      return refusal("policy", "frequencies", "given",
                     "absent, because rope_base or rope_factor says how far keys turn");
    }
    if (!angles_ && numbers_.empty() && told == nullptr) {
      return refusal("policy", "rope_base", "not given",
                     "given, or frequencies: how far the model turns keys a position");
    }
    if (rope_.rotary_dim != 0) rope.rotary_dim = rope_.rotary_dim;
    if (angles_) {
      rope.frequencies = nullptr;
      if (rope_.base != unsaid) rope.base = rope_.base;
      if (rope_.factor != unsaid) rope.factor = rope_.factor;
    }
    return numbers_.empty() ? std::string() : join_frequencies(rope, kept);
  }

private:
  static constexpr double unsaid = 0;  ///< no base and no factor: rope_problem refuses 0 where a text says it

  template <class Number> static std::string read_into(text_word const& word, Number& to) {
    if (!read_number(word.value, to)) return refusal("policy", word.name, in_quotes(word.value), form_of(to));
    if (to == Number{}) return refusal("policy", word.name, word.value, "above 0");
    return {};
  }
  std::string read_pairing(text_word const& word) {
    paired_ = true;
    if (word.value == "half_split") {
      rope_.pairing = rope_pairing::half_split;
    } else if (word.value == "interleaved") {
      rope_.pairing = rope_pairing::interleaved;
    } else if (word.value != "none") {
      return refusal("policy", word.name, in_quotes(word.value), "half_split, interleaved or none");
    }
    return {};
  }
  std::string read_frequencies(text_word const& word) {
    std::istringstream in(word.value);
    for (std::string number; std::getline(in, number, ',');) {
      numbers_.push_back(0.0f);
      if (!read_number(number, numbers_.back()) || !is_finite(numbers_.back())) numbers_.clear();
      if (numbers_.empty()) break;
    }
    if (!numbers_.empty() && word.value.back() != ',') return {};
    return refusal("policy", word.name, in_quotes(word.value),
                   "finite numbers with commas between them, radians a position of each pair of channels");
  }
  std::string join_frequencies(rope_params& rope, std::vector<float>* kept) const {
    std::size_t const channels = 2 * numbers_.size();
    if (kept == nullptr) {
      return refusal("policy", "frequencies", "given",
                     "absent, because this program keeps no memory for them (read_policy's `frequencies`)");
    }
    if (rope_.rotary_dim != 0 && rope_.rotary_dim != channels) {
      return refusal("policy", "rotary_dim", rope_.rotary_dim, channels,
                     ", two channels for each number of frequencies");
    }
    *kept = numbers_;
    rope.rotary_dim = static_cast<std::uint32_t>(channels);
    rope.frequencies = kept->data();
    return {};
  }

  rope_params rope_{rope_pairing::none, rope_positions::stored, 0, unsaid, unsaid};
  std::vector<float> numbers_;  ///< of frequencies=
  std::string given_;
  bool paired_ = false, angles_ = false;  ///< whether rope= was given, and rope_base= or rope_factor=
};

inline std::string read_policy_problem(std::string const& text, rope_params const* told, composed& out,
                                       std::vector<float>* frequencies) {
  std::vector<text_word> const words = words_of(text);
  bool const preset = !words.empty() && !words.front().has_value;
  composed policy;
  policy.score = score::none{};
  std::set<std::string> given;
  rope_words turning;
  std::string problem;
  for (std::size_t i = preset ? 1 : 0; i < words.size() && problem.empty(); ++i) {
    text_word const& w = words[i];
    if (!w.has_value) {
      problem = refusal("policy", message("word ", i + 1), in_quotes(w.name),
                        "a name and a value, such as window=32, because only the first word names a preset");
    } else if (!given.insert(w.name).second) {
      problem = refusal("policy", message("number of times that ", in_quotes(w.name), " is given"), 2, "1");
    } else if (rope_words::has(w.name)) {
      problem = turning.read(w);
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
  rope_params rope;
  std::vector<float> numbers;
  if (problem = turning.join(told, rope, frequencies == nullptr ? nullptr : &numbers); !problem.empty())
    return problem;
  if (words.empty() || (preset && !find_policy(words.front().name, rope, policy))) {
    return refusal("policy", "name", in_quotes(words.empty() ? "" : words.front().name), "one of ",
                   names_of_policies(), ", or parts such as score=key_difference select=top");
  }
  if (!preset) {
    suit(policy.select, policy.identify.facts_now());
    tell_pinned(policy);
  }
  if (told == nullptr && turning.empty() && needs_rope(policy)) {
    return refusal("policy", "rope", "not given",
                   "half_split, interleaved or none, as the model rotates keys, because ",
                   policy.identify.name() == identify::centroids::name ? "the identifier centroids"
                                                                       : "the score " + policy.score.name(),
                   " turns them back (rope=half_split rope_base=500000, or the program tells it)");
  }
  // A part that need not turn keys back does so only where the text says it.
  if ((needs_rope(policy) || !turning.empty()) && !set_rope(policy, rope) && !turning.empty()) {
    return refusal("policy", turning.first(), "given", "absent, because neither the score ",
                   policy.score.name(), " nor the identifier ", policy.identify.name(), " turns keys back");
  }
  for (std::size_t i = preset ? 1 : 0; i < words.size(); ++i) {
    std::string const& name = words[i].name;
    if (name == "score" || name == "select" || name == "identify" || name == "merge" || rope_words::has(name))
      continue;
    if (problem = set_parameter(policy, name, words[i].value); !problem.empty()) return problem;
  }
  if (problem = configuration_problem(policy); !problem.empty()) return problem;
  out = policy;
  if (!numbers.empty()) frequencies->swap(numbers);  // which keeps their address
  return {};
}

}  // namespace detail

/// Whether the text of a policy says how a model rotates queries and keys.
inline bool says_rope(std::string const& text) {
  for (detail::text_word const& word : detail::words_of(text))
    if (word.has_value && detail::rope_words::has(word.name)) return true;
  return false;
}

/// Makes a policy from a text, and assigns it to `out`. The text is words with blanks between them:
///
/// - a preset's name (named_policies), or parts: score=, select=, identify=, merge=, with the names that
///   `names_of` lists. The defaults are `none`, `top`, `evict_rest` and `drop`. The selector gets counts that
///   suit the identifier;
/// - then any of the `parameters`, such as window=64 or recents=16|25%;
/// - how the model rotates queries and keys, for scores that turn them back: rope=half_split, interleaved or
///   none; rope_base=500000 and rope_factor=8 (rope_params::base, factor), or frequencies=1,0.75,... in
///   radians a position, one for each pair of channels; rotary_dim=64, the first channels, if others do not
///   rotate.
///
/// `rope`: the same from the program, or null if it does not know; words of the text come before it. A policy
/// that has to know it is refused if neither says it. The score leverage takes keys as they lie, unless the
/// text says how they rotate. `frequencies`: gets the numbers of frequencies=, and must outlive every cache
/// of the policy; without it that word is refused. For a cache on a device, copy them there (set_rope).
/// The score learned gets its weights by set_learned.
///
/// Refuses unknown words, words that are given twice, and parts that make no policy together; `out` and
/// `frequencies` are then as they were. Any thread may call it.
inline status read_policy(std::string const& text, composed& out, rope_params const* rope = nullptr,
                          std::vector<float>* frequencies = nullptr) {
  return raise(detail::read_policy_problem(text, rope, out, frequencies));
}
/// Makes a policy from a text for a model whose rotation the program knows.
inline status read_policy(std::string const& text, composed& out, rope_params const& rope,
                          std::vector<float>* frequencies = nullptr) {
  return raise(detail::read_policy_problem(text, &rope, out, frequencies));
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
