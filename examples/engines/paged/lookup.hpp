// Drafts without a second model: what followed the last words the last time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace paged_engine {

/// Up to `most` tokens that followed the latest earlier place of the last `words` tokens; none if there is no
/// such place.
inline std::vector<int> look_up(std::vector<int> const& tokens, std::size_t words, std::size_t most) {
  if (tokens.size() <= words) return {};
  auto const end = tokens.end(), last = end - static_cast<std::ptrdiff_t>(words);
  auto const found = std::find_end(tokens.begin(), end - 1, last, end);
  if (found == end - 1) return {};
  auto const from = found + static_cast<std::ptrdiff_t>(words);
  return {from, from + std::min(static_cast<std::ptrdiff_t>(most), end - from)};
}

}  // namespace paged_engine
