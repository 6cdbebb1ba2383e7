// Small tracks whose results can be worked out by hand, and a larger one that is the same everywhere.
#pragma once

#include "track.hpp"

namespace reference {

inline row at_angle(double degrees) {
  double const radians = degrees * std::acos(-1.0) / 180;
  return {std::cos(radians), std::sin(radians)};
}

// Unit keys at the given angles (the cosine of two is that of the difference), values 0, 1, 2, ...
inline track_state track_of(std::vector<double> const& angles) {
  matrix keys, values;
  for (double const angle : angles) {
    values.push_back({static_cast<double>(values.size())});
    keys.push_back(at_angle(angle));
  }
  return fresh_track(keys, values);
}

// Keys in [-1, 1) from a linear congruential generator, values 0, 1, 2, ...
inline track_state scattered(std::size_t n, std::size_t channels) {
  unsigned long state = 12345;
  matrix keys(n, row(channels)), values;
  for (row& key : keys)
    for (double& x : key) {
      state = (state * 1103515245ul + 12345ul) % 2147483648ul;
      x = static_cast<double>(state) / 1073741824.0 - 1.0;
    }
  for (std::size_t i = 0; i < n; ++i) values.push_back({static_cast<double>(i)});
  return fresh_track(keys, values);
}

}  // namespace reference
