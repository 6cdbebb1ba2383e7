// A cache's track in the words of the references, and how far the two may lie apart.
#pragma once

#include <kvmeld/kvmeld.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/track.hpp"

namespace support {

template <class Layout>
reference::row read_row(Layout const& layout, kvmeld::track where, std::uint32_t slot) {
  auto const s = layout.locate(where, slot);
  reference::row out;
  for (std::uint32_t c = 0; c < layout.channels(); ++c) {
    out.push_back(static_cast<double>(kvmeld::element_traits<typename Layout::element_type>::to_float(
        s.base[std::int64_t{c} * s.channel_stride])));
  }
  return out;
}

inline bool finite_row(reference::row const& r) {
  return std::all_of(r.begin(), r.end(), [](double x) { return kvmeld::is_finite(static_cast<float>(x)); });
}

// Sum of an entry's score channels, in float as the scores do it.
inline double score_of(kvmeld::ledger_ref const& l, kvmeld::track where, std::uint32_t slot) {
  float sum = 0;
  for (std::uint32_t c = 0; c < l.channels.count; ++c) sum += l.channel_data[c][l.at(where, slot)];
  return static_cast<double>(sum);
}

template <class Ref> reference::track_state read_track(Ref const& ref, kvmeld::track where) {
  reference::track_state out;
  for (std::uint32_t s = 0; s < ref.length(where); ++s) {
    out.keys.push_back(read_row(ref.keys, where, s));
    out.values.push_back(read_row(ref.values, where, s));
    out.degree.push_back(static_cast<double>(ref.ledger.degree[ref.ledger.at(where, s)]));
    out.position.push_back(ref.position(where, s));
    out.score.push_back(score_of(ref.ledger, where, s));
    out.bad.push_back(!finite_row(out.keys.back()) || !finite_row(out.values.back()) ? 1 : 0);
  }
  return out;
}

// What storing as T does to a number that arithmetic in float has made.
template <class T> reference::store_function store_as() {
  return [](double x) {
    using traits = kvmeld::element_traits<T>;
    return static_cast<double>(traits::to_float(traits::from_float(static_cast<float>(x))));
  };
}

// Distance between neighbouring numbers of storage type T around x.
template <class T> double spacing(double x) {
  int const bits = std::is_same_v<T, float> ? 24 : std::is_same_v<T, kvmeld::float16> ? 11 : 8;
  int const least = std::is_same_v<T, kvmeld::float16> ? -14 : -126;
  int const exponent = x == 0 ? least : std::max(least, std::ilogb(x));
  return std::ldexp(1.0, exponent - bits + 1);
}

// Elements of `got` that are not what the reference stored. In float storage: off by more than 1e-5 of the
// `largest` number that was merged. In 16 bits: another number, unless so small that float's own rounding
// shows; more than one step away counts as `far`.
struct element_count {
  std::size_t differing = 0, far = 0;
};

template <class T>
void compare_rows(reference::row const& expected, reference::row const& got, double largest,
                  element_count& count) {
  for (std::size_t c = 0; c < expected.size(); ++c) {
    double const off = std::fabs(got[c] - expected[c]);
    if (!kvmeld::is_finite(static_cast<float>(got[c]))) {
      ++count.far;
    } else if (std::is_same_v<T, float>) {
      if (off > 1e-5 * largest) ++count.far;
    } else if (off > 2e-6 * largest) {
      ++count.differing;
      if (off > 1.01 * spacing<T>(std::max(std::fabs(expected[c]), std::fabs(got[c])))) ++count.far;
    }
  }
}

// The largest magnitude among the rows that may merge.
inline double largest_of(reference::matrix const& all, std::vector<char> const& bad) {
  double largest = 1e-30;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (double x : all[i]) largest = bad[i] ? largest : std::max(largest, std::fabs(x));
  }
  return largest;
}

// What a cache's track has that the reference's outcome has not; empty if they agree. `before` is the track
// as it was. Entries that nothing merged into must be the same bit by bit; 16-bit elements may differ by one
// step where the reference says that float arithmetic may round the other way, and few besides (weights are
// float).
template <class T>
std::string difference(reference::outcome const& expected, reference::track_state const& before,
                       reference::track_state const& got) {
  reference::track_state const& after = expected.after;
  std::ostringstream out;
  if (got.size() != after.size()) {
    out << "length is " << got.size() << " for " << after.size();
    return out.str();
  }
  std::vector<std::size_t> members(before.size(), 0);
  std::vector<std::size_t> place;  // new slot -> old slot
  for (std::size_t i = 0; i < expected.target.size(); ++i) {
    if (expected.target[i] < 0) continue;
    ++members[static_cast<std::size_t>(expected.target[i])];
    if (expected.target[i] == static_cast<int>(i)) place.push_back(i);
  }
  double const largest_key = largest_of(before.keys, before.bad);
  double const largest_value = largest_of(before.values, before.bad);
  element_count count;
  std::size_t elements = 0;
  for (std::size_t s = 0; s < after.size(); ++s) {
    if (got.position[s] != after.position[s]) {
      out << "position " << got.position[s] << " for " << after.position[s] << " in slot " << s;
      return out.str();
    }
    if (!(std::fabs(got.degree[s] - after.degree[s]) <= 1e-5 * after.degree[s])) {
      out << "degree " << got.degree[s] << " for " << after.degree[s] << " in slot " << s;
      return out.str();
    }
    if (!(std::fabs(got.score[s] - after.score[s]) <= 1e-4 * (1 + std::fabs(after.score[s])))) {
      out << "score " << got.score[s] << " for " << after.score[s] << " in slot " << s;
      return out.str();
    }
    if (members[place[s]] < 2) {
      bool const nan = before.bad[place[s]] != 0;  // NaN is not equal to itself
      if (!nan && (got.keys[s] != before.keys[place[s]] || got.values[s] != before.values[place[s]])) {
        out << "slot " << s << " merged nothing, but its rows changed";
        return out.str();
      }
      continue;
    }
    elements += after.keys[s].size() + after.values[s].size();
    compare_rows<T>(after.keys[s], got.keys[s], largest_key, count);
    compare_rows<T>(after.values[s], got.values[s], largest_value, count);
    if (count.far != 0) {
      out << "slot " << s << " holds other rows";
      return out.str();
    }
  }
#if defined(__FAST_MATH__)
  std::size_t const allowed =
      elements;  // a weight of 0.5 may be a little less: any tie may fall the other way
#else
  std::size_t const allowed = expected.near_rounding + 3 + elements / 200;
#endif
  if (count.differing > allowed) {
    out << count.differing << " of " << elements << " elements are stored otherwise; " << allowed
        << " may be";
  }
  return out.str();
}

// Decisions closer than this may fall either way in float.
inline constexpr double decision_margin = 1e-5;

// How many comparisons were made, and how many left out because float rounding might decide them.
struct tally {
  std::size_t compared = 0, skipped = 0;
  [[nodiscard]] double share() const {
    return compared + skipped == 0 ? 0.0
                                   : static_cast<double>(skipped) / static_cast<double>(compared + skipped);
  }
};

}  // namespace support
