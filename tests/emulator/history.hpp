// Work of streams: what is in order with what, whatever order it ran in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace emulator {

/// For each stream, how many of its pieces of work came before.
class clock_of_streams {
public:
  std::uint32_t operator[](std::size_t stream) const { return stream < at_.size() ? at_[stream] : 0; }
  void reach(std::size_t stream, std::uint32_t number);
  void join(clock_of_streams const& other);
  bool covers(clock_of_streams const& other) const;

private:
  std::vector<std::uint32_t> at_;
};

/// A piece of work: the number-th of its stream.
struct stamp {
  std::uint32_t stream = 0, number = 0;
  std::shared_ptr<clock_of_streams const> before;
};

/// What ran, and which of it the work that runs now is not in order with.
class history {
public:
  struct range {
    std::byte const* begin;
    std::size_t bytes;
    bool writes;
    std::uint32_t number, serial;
    bool meets(std::byte const* p, std::size_t n) const { return p < begin + bytes && begin < p + n; }
  };

  void begin(stamp const& now);
  void launched(std::uint32_t first_block);
  void touched(std::byte const* p, std::size_t bytes, bool writes);

  /// Copies and the like that may take place at the same time as the current work.
  std::vector<range> const& open() const { return open_; }
  /// Kernels whose blocks all have numbers below this one came before.
  std::uint32_t ordered_blocks() const { return ordered_blocks_; }
  /// Whether the kernel of a block came before the current work, or before the serial number was reached.
  bool before(std::uint32_t block, std::uint32_t serial) const;
  std::uint32_t serial() const { return serial_; }

private:
  struct kernel {
    std::uint32_t first_block, stream, number, serial;
  };
  struct done {
    std::uint32_t last = 0;
    std::vector<kernel> kernels;
    std::vector<range> ranges;
  };
  stamp now_;
  std::uint32_t serial_ = 0, ordered_blocks_ = ~std::uint32_t{0};
  std::vector<range> open_;
  std::vector<kernel> kernels_;  ///< of all streams
  std::vector<done> streams_;
};

}  // namespace emulator
