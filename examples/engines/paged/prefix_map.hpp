// Which page holds which beginning of a prompt: sequences that begin alike share these pages.
#pragma once

#include "page_pool.hpp"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace paged_engine {

/// A page is found by all the tokens up to its end, so that equal text in another place is another page. The
/// map is a user of its pages. Only frozen pages may be put in: once entries merge a page no longer holds the
/// tokens it was found by.
class prefix_map {
public:
  prefix_map(page_pool& pool, std::uint32_t page_size) : pool_(&pool), page_size_(page_size) {}
  prefix_map(prefix_map const&) = delete;
  prefix_map& operator=(prefix_map const&) = delete;

  /// The pages that hold the longest known beginning of tokens[0 .. most), each with one user more.
  std::vector<std::uint32_t> take(std::vector<int> const& tokens, std::size_t most) {
    std::vector<std::uint32_t> out;
    for (std::size_t end = page_size_; end <= most; end += page_size_) {
      auto const found = pages_.find(beginning(tokens, end));
      if (found == pages_.end()) break;
      used_.splice(used_.begin(), used_, found->second.age);
      pool_->share(found->second.page);
      out.push_back(found->second.page);
    }
    return out;
  }
  /// Remembers the page of tokens[end - page_size .. end).
  void put(std::vector<int> const& tokens, std::size_t end, std::uint32_t page) {
    auto const [at, is_new] = pages_.emplace(beginning(tokens, end), place{page, {}});
    if (!is_new) return;
    used_.push_front(at);
    at->second.age = used_.begin();
    pool_->share(page);
  }
  /// Forgets the page that nobody asked for the longest, if there is one that the map alone uses. Later pages
  /// go before earlier ones of the same beginning, which are asked for at least as often.
  bool give_back() {
    for (auto at = used_.rbegin(); at != used_.rend(); ++at) {
      auto const entry = *at;
      if (closing_ || pool_->users(entry->second.page) == 1) {
        pool_->release(entry->second.page);
        used_.erase(entry->second.age);
        pages_.erase(entry);
        return true;
      }
    }
    return false;
  }
  /// Forgets everything, whoever else uses it.
  void clear() {
    closing_ = true;
    while (give_back()) {}
    closing_ = false;
  }

  std::size_t size() const { return pages_.size(); }
  template <class F> void for_each(F f) const {
    for (auto const& p : pages_) f(p.second.page);
  }

private:
  struct place;
  using entries = std::map<std::vector<int>, place>;
  struct place {
    std::uint32_t page;
    std::list<entries::iterator>::iterator age;
  };
  static std::vector<int> beginning(std::vector<int> const& tokens, std::size_t end) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  page_pool* pool_;
  std::uint32_t page_size_;
  entries pages_;
  std::list<entries::iterator> used_;  ///< the latest first
  bool closing_ = false;
};

}  // namespace paged_engine
