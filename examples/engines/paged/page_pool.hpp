// The pages of a pool by number: who takes one, who shares it, who gives it back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace paged_engine {

/// A page is free or has one user or more; what goes wrong in counting them is told at once, not when K and V
/// are.
class page_pool {
public:
  explicit page_pool(std::uint32_t pages) : users_(pages, 0), shared_(pages, 0) {
    for (std::uint32_t i = pages; i-- > 0;) free_.push_back(i);
  }
  page_pool(page_pool const&) = delete;
  page_pool& operator=(page_pool const&) = delete;

  /// A free page, for one user. There has to be one.
  std::uint32_t take() {
    if (free_.empty()) throw std::logic_error("page_pool: take with no free page");
    std::uint32_t const page = free_.back();
    free_.pop_back();
    count(page, 0, 1);
    if (used() > max_used_) max_used_ = used();
    return page;
  }
  /// One more user of a page in use.
  void share(std::uint32_t page) { count(page, 1, users_.at(page) + 1); }
  /// One user less; the last one frees it.
  void release(std::uint32_t page) {
    count(page, 1, users_.at(page) - 1);
    if (users_[page] == 0) free_.push_back(page);
  }

  std::uint32_t users(std::uint32_t page) const { return users_.at(page); }
  std::uint32_t total() const { return static_cast<std::uint32_t>(users_.size()); }
  std::uint32_t available() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t used() const { return total() - available(); }
  std::uint32_t max_used() const { return max_used_; }
  /// [page]: not 0 where several use it. What kvmeld must not write to.
  std::uint8_t const* shared() const { return shared_.data(); }

private:
  void count(std::uint32_t page, std::uint32_t min_now, std::uint32_t next) {
    if (users_.at(page) < min_now) {
      throw std::logic_error("page_pool: page " + std::to_string(page) + " is free, but somebody uses it");
    }
    users_[page] = next;
    shared_[page] = next > 1 ? 1 : 0;
  }

  std::vector<std::uint32_t> users_, free_;
  std::vector<std::uint8_t> shared_;
  std::uint32_t max_used_ = 0;
};

}  // namespace paged_engine
