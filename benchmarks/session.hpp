// One run of the program: which rows are wanted, how they are timed, and what came out.
#pragma once

#include "options.hpp"
#include "repeat.hpp"
#include "yardstick.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvmeld_bench {

constexpr std::uint32_t head_dim = 128;
/// KV heads of the layer: fewer where eight would not fit into the memory of a small machine.
constexpr std::uint32_t heads_of(std::uint32_t n) { return n > 262144 ? 2 : 8; }
constexpr std::uint32_t group = 4;  ///< query heads per KV head
constexpr double kept_share = 0.2;  ///< of the entries, after a compression
constexpr std::uint32_t observed_rows = 32;

/// The input of a row: entries per head, and the type of K and V.
struct input {
  std::uint32_t n;
  std::string dtype;
};

struct row {
  std::string name;
  input of;
  double seconds;
  double bytes;  ///< that have to be read and written, see the legend; 0 where there are none
  std::optional<double> ratio_to_memcpy;
  std::optional<double> ratio_to_blas;
  std::optional<double> ratio_to_read;
  std::optional<double> ratio_to_attention;  ///< over the attention of as many decode steps, unmerged
  std::optional<double> ratio_to_parts;  ///< over the similarities of the same run and a memcpy of the bytes
  std::optional<double> ratio_to_plain;  ///< over the same compression with nothing else asked of it
};

/// Yardsticks of a row besides memcpy, in seconds where they apply.
struct references {
  std::optional<double> blas = {};
  std::optional<double> read = {};        ///< a plain sum over what the stage has to read
  std::optional<double> attention = {};   ///< decode steps that the row serves
  std::optional<double> similarity = {};  ///< the part of the row itself that proposes merges
  std::optional<double> plain = {};       ///< the compression that a feature is added to
};

/// A figure of the memory table.
struct memory_row {
  std::string name, unit;
  double value;
};

class session {
public:
  session(options o, std::uint32_t threads)
      : options_(std::move(o)), threads_(threads), yardstick_(threads) {}

  std::uint32_t threads() const { return threads_; }
  bool wants(std::string const& name, input const& of) const;
  /// Whether any row "stage" + `suffix` is wanted.
  bool wants_any(std::initializer_list<char const*> stages, std::string const& suffix, input const& of) const;

  /// Times `body` after `setup` and adds a row; `bytes` and `compared` are asked afterwards. A row that is
  /// not wanted still runs once, since the next stages need what it leaves.
  template <class Setup, class Body, class Bytes, class Compared>
  void measure(std::string const& name, input const& of, Setup setup, Body body, Bytes bytes,
               Compared compared) {
    if (!wants(name, of)) {
      setup();
      body();
      return;
    }
    announce(name, of);
    double const seconds = median_seconds(options_.quick ? 0.05 : 0.2, setup, body);
    double const moved = bytes();
    references const reference = compared();
    row r{name, of, seconds, moved, {}, {}, {}, {}, {}, {}};
    if (moved > 0.0) r.ratio_to_memcpy = seconds / yardstick_.move_seconds(moved);
    if (reference.blas) r.ratio_to_blas = seconds / *reference.blas;
    if (reference.read) r.ratio_to_read = seconds / *reference.read;
    if (reference.attention) r.ratio_to_attention = seconds / *reference.attention;
    if (reference.plain) r.ratio_to_plain = seconds / *reference.plain;
    if (reference.similarity) {
      r.ratio_to_parts = seconds / (*reference.similarity + yardstick_.move_seconds(moved));
    }
    rows_.push_back(r);
  }
  template <class Setup, class Body, class Bytes>
  void measure(std::string const& name, input const& of, Setup setup, Body body, Bytes bytes) {
    measure(name, of, setup, body, bytes, [] { return references{}; });
  }

  /// Adds a memory figure; of equal names the larger stays.
  void remember(memory_row const& figure);

  yardstick& reference() { return yardstick_; }
  std::vector<row> const& rows() const { return rows_; }
  std::vector<memory_row> const& memory() const { return memory_; }

private:
  void announce(std::string const& name, input const& of) const;

  options options_;
  std::uint32_t threads_;
  yardstick yardstick_;
  std::vector<row> rows_;
  std::vector<memory_row> memory_;
};

}  // namespace kvmeld_bench
