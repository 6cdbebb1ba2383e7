// SPDX-License-Identifier: Apache-2.0
// The numbers of ready-made parts by name, to set them from text.
#pragma once

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/core/budget.hpp>
#include <kvmeld/core/config.hpp>
#include <kvmeld/core/contract.hpp>
#include <kvmeld/core/error.hpp>
#include <kvmeld/identify/admit.hpp>
#include <kvmeld/identify/centroids.hpp>
#include <kvmeld/queries/rope.hpp>
#include <kvmeld/score/blended.hpp>
#include <kvmeld/score/chunk_attention.hpp>
#include <kvmeld/score/distance_preference.hpp>
#include <kvmeld/score/drop_error.hpp>
#include <kvmeld/score/expected_attention.hpp>
#include <kvmeld/score/keeping_queries.hpp>
#include <kvmeld/score/learned.hpp>
#include <kvmeld/score/leverage.hpp>
#include <kvmeld/select/tiers.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace kvmeld {
inline namespace KVMELD_ABI {
namespace compose {

namespace detail {

/// Reads a whole text as a number; false if it is none. Independent of the locale.
template <class Number> bool read_number(std::string const& text, Number& out) {
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string::npos) return false;
  if constexpr (std::is_unsigned_v<Number>) {
    if (text.find_first_not_of("0123456789") != std::string::npos) return false;
  }
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  Number read{};
  if (!(in >> read) || in.peek() != std::istringstream::traits_type::eof()) return false;
  out = read;
  return true;
}

/// Reads "12", "25%" (of the budget), "12|25%" (the smaller of both), "rest" or "rest-5%"; false if it is
/// none of these.
inline bool read_number(std::string const& text, quantity& out) {
  if (text == "rest") {
    out = quantity::rest_of_budget();
    return true;
  }
  double percent = 0;
  if (text.compare(0, 5, "rest-") == 0 && text.back() == '%') {
    if (!read_number(text.substr(5, text.size() - 6), percent) || !(percent > 0 && percent <= 100))
      return false;
    out = quantity::rest_of_budget(percent / 100);
    return true;
  }
  std::size_t const bar = text.find('|');
  std::string const share = bar == std::string::npos ? text : text.substr(bar + 1);
  std::uint32_t count = std::numeric_limits<std::uint32_t>::max();
  if (bar != std::string::npos && !read_number(text.substr(0, bar), count)) return false;
  if (!share.empty() && share.back() == '%') {
    if (!read_number(share.substr(0, share.size() - 1), percent) || !(percent >= 0 && percent <= 100))
      return false;
    out = quantity::at_most(count, percent / 100);
    return true;
  }
  if (bar != std::string::npos || !read_number(text, count)) return false;
  out = quantity::entries(count);
  return true;
}

/// What a text must be to be read as a value of each type.
inline char const* form_of(std::uint32_t const&) { return "a whole number below 2^32"; }
inline char const* form_of(float const&) { return "a number"; }
inline char const* form_of(double const&) { return "a number"; }
inline char const* form_of(quantity const&) {
  return "a number of entries, a share of the budget such as 25%, the smaller of both such as 16|25%, rest, "
         "or rest but a share such as rest-5%";
}

/// Sets one parameter, by its name, in the parts that have it.
class parameter {
public:
  parameter(std::string const& name, std::string const& value) : name_(name), value_(value) {}

  bool found() const { return found_; }
  /// Why the value cannot be read; empty if it can, or if no part has the parameter.
  std::string const& problem() const { return problem_; }

  // Members of parts, by the names that parameters have.
  template <class P> using window_of = decltype(std::declval<P&>().window);
  template <class P> using pooling_of = decltype(std::declval<P&>().pooling);
  template <class P> using pool_of = decltype(std::declval<P&>().pool);
  template <class P> using lag_of = decltype(std::declval<P&>().lag);
  template <class P> using ridge_of = decltype(std::declval<P&>().ridge);
  template <class P> using future_of = decltype(std::declval<P&>().future);
  template <class P> using chunk_of = decltype(std::declval<P&>().chunk);
  template <class P> using steps_of = decltype(std::declval<P&>().steps);
  template <class P> using kept_of = decltype(std::declval<P&>().kept);
  template <class P> using first_of = decltype(std::declval<P&>().first);
  template <class P> using recents_of = decltype(std::declval<P&>().recents);
  template <class P> using heavy_of = decltype(std::declval<P&>().heavy);
  template <class P> using threshold_of = decltype(std::declval<P&>().threshold);
  template <class P> using admission_of = decltype(std::declval<P&>().admission);

  template <class Score> void in_score(Score& s) {
    if constexpr (contract::allows<window_of, Score>) set("window", s.window);
    if constexpr (contract::allows<pooling_of, Score>) set("pool", s.pooling.kernel);
    if constexpr (contract::allows<pool_of, Score>) set("pool", s.pool.kernel);
    if constexpr (contract::allows<lag_of, Score>) set("lag", s.lag);
    if constexpr (contract::allows<ridge_of, Score>) set("ridge", s.ridge);
    if constexpr (contract::allows<future_of, Score>) set("future", s.future);
    if constexpr (contract::allows<chunk_of, Score>) set("chunk", s.chunk);
    if constexpr (contract::allows<kept_of, Score>) set("queries", s.kept.count);
    if constexpr (contract::allows<first_of, Score>) in_score(s.first);  // of blended scores
  }
  template <class Selector> void in_selector(Selector& s) {
    set("sinks", s.sinks);
    if constexpr (contract::allows<recents_of, Selector>) set("recents", s.recents);
    if constexpr (contract::allows<heavy_of, Selector>) set("heavy", s.heavy);
    if constexpr (contract::allows<threshold_of, Selector>) set("threshold", s.threshold);
    if constexpr (std::is_same_v<Selector, select::tiers>) {
      set("recents", s.window);
      set("heavy", s.protect);
    }
  }
  template <class Identifier> void in_identifier(Identifier& i) {
    if constexpr (contract::allows<chunk_of, Identifier>) set("chunk", i.chunk);
    if constexpr (contract::allows<steps_of, Identifier>) set("steps", i.steps);
    if constexpr (contract::allows<admission_of, Identifier>) in_admission(i.admission);
  }
  template <class Merge> void in_merge(Merge& m) {
    if constexpr (contract::allows<ridge_of, Merge>) set("ridge", m.ridge);
  }

private:
  template <class Admit> void in_admission(Admit& a) {
    if constexpr (std::is_same_v<Admit, kvmeld::admit::threshold>) set("threshold", a.theta);
    if constexpr (std::is_same_v<Admit, kvmeld::admit::top_share>) set("share", a.schedule.initial);
    if constexpr (std::is_same_v<Admit, kvmeld::admit::ema_threshold>) set("beta", a.beta);
  }
  template <class Value> void set(char const* name, Value& to) {
    if (name_ != name) return;
    found_ = true;
    if (!read_number(value_, to)) problem_ = refusal("policy", name_, in_quotes(value_), form_of(to));
  }

  std::string const& name_;
  std::string const& value_;
  bool found_ = false;
  std::string problem_;
};

}  // namespace detail

/// The parameters that set_parameter knows, one per line, each followed by a tab and what it sets. A policy
/// has those that its parts have.
inline char const* parameters() {
  return "window\tlast queries that a score counts\n"
         "pool\tneighbouring slots that a score is pooled over\n"
         "lag\tentries of a chunk of the score lag_relative\n"
         "future\tnext positions of the score expected_attention\n"
         "queries\treference queries that a score keeps\n"
         "ridge\tof the score leverage, and of the merge function fitted\n"
         "sinks\tfirst entries that stay: a number, a share of the budget (25%), both (16|25%) or rest\n"
         "recents\tlast entries that stay, in the same form\n"
         "heavy\tentries that stay by their score, in the same form\n"
         "threshold\tleast score of the selector above, or least similarity of an admission by threshold\n"
         "chunk\tentries of a chunk that an identifier or a score cuts tracks into\n"
         "steps\ttimes that the identifier centroids computes means\n"
         "share\tshare of the candidates that the first round of top_share admits\n"
         "beta\tweight of the highest similarity of ema_threshold\n";
}

/// Tells a score that ranks pinned entries by itself (critical) which entries the selector pins.
inline void tell_pinned(composed& policy) {
  policy.score.change([&](auto& score) {
    if constexpr (std::is_same_v<std::decay_t<decltype(score)>, score::critical<score::local>>) {
      policy.select.change([&](auto const& select) {
        using type = std::decay_t<decltype(select)>;
        score.sinks = select.sinks;
        if constexpr (std::is_same_v<type, select::tiers>) {
          score.recents = select.window;
        } else {
          score.recents = select.recents;
        }
      });
    }
  });
}

/// Sets the parameter `name` from the text `value`, in each part of the policy that has it. Returns why it
/// cannot be set; empty if it is. configuration_problem checks the value itself.
inline std::string set_parameter(composed& policy, std::string const& name, std::string const& value) {
  detail::parameter p(name, value);
  policy.score.change([&](auto& part) { p.in_score(part); });
  policy.select.change([&](auto& part) { p.in_selector(part); });
  policy.identify.change([&](auto& part) { p.in_identifier(part); });
  policy.merge.change([&](auto& part) { p.in_merge(part); });
  tell_pinned(policy);
  if (p.found()) return p.problem();
  std::string known, listed = parameters();
  std::istringstream lines(listed);
  for (std::string line; std::getline(lines, line);)
    known += (known.empty() ? "" : ", ") + line.substr(0, line.find('\t'));
  return refusal("policy", "parameter", in_quotes(name), "one that a part of ",
                 policy.score.name() + " x " + policy.select.name() + " x " + policy.identify.name() + " x " +
                     policy.merge.name(),
                 " has, of ", known);
}

namespace detail {

/// Calls f(rope, needed) with the rotation of each part that turns keys back. `needed`: whether it must know
/// it.
template <class F> void with_rope_of(composed& policy, F f) {
  policy.identify.change([&](auto& part) {
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, identify::centroids>) f(part.rope, true);
  });
  policy.score.change([&](auto& score) {
    using type = std::decay_t<decltype(score)>;
    if constexpr (std::is_same_v<type, score::expected_attention> ||
                  std::is_base_of_v<score::learned, type> ||
                  std::is_same_v<type, score::distance_preference>) {
      f(score.rope, true);
    } else if constexpr (std::is_same_v<type, score::blended<score::leverage, score::chunk_attention>>) {
      f(score.first.rope, true);
    } else if constexpr (std::is_same_v<type, score::blended<score::leverage, score::drop_error>>) {
      f(score.first.rope, false);
    } else if constexpr (std::is_same_v<type, score::leverage> ||
                         std::is_same_v<type, score::keeping_queries<score::leverage>>) {
      f(score.rope, false);
    }
  });
}

}  // namespace detail

/// Whether the policy has to know how a model rotates queries and keys: its score is expected_attention,
/// distance_preference, learned (also in a blend), or leverage in a blend with chunk_attention, or its
/// identifier is centroids.
inline bool needs_rope(composed policy) {
  bool needs = false;
  detail::with_rope_of(policy, [&](rope_params const&, bool needed) { needs = needs || needed; });
  return needs;
}

/// How the policy's parts turn keys back; inactive if they do not.
inline rope_params rope_of(composed policy) {
  rope_params out;
  detail::with_rope_of(policy, [&](rope_params const& rope, bool) {
    if (rope.active()) out = rope;
  });
  return out;
}

/// Tells parts that turn keys back how a model rotates queries and keys: those of needs_rope, and leverage
/// alone or blended, which otherwise takes keys as they lie. Other parts stay as they are. Returns whether
/// the policy has such a part.
inline bool set_rope(composed& policy, rope_params const& rope) {
  bool found = false;
  detail::with_rope_of(policy, [&](rope_params& own, bool) {
    own = rope;
    found = true;
  });
  return found;
}

/// Whether the policy's score is learned, which a cache refuses until set_learned has told the weights.
inline bool needs_learned(composed policy) {
  bool needs = false;
  policy.score.change(
      [&](auto& held) { needs = std::is_base_of_v<score::learned, std::decay_t<decltype(held)>>; });
  return needs;
}

/// Gives the score learned, alone or in a blend, the weights of a model; other scores stay as they are.
/// Returns whether the policy has that score.
inline bool set_learned(composed& policy, learned_weights const& weights) {
  bool found = false;
  policy.score.change([&](auto& score) {
    if constexpr (std::is_base_of_v<score::learned, std::decay_t<decltype(score)>>) {
      score.weights = weights;
      found = true;
    }
  });
  return found;
}

}  // namespace compose
}  // namespace KVMELD_ABI
}  // namespace kvmeld
