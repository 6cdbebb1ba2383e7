// What a run of the demo found about texts that go on (--turns, --generate, --read): a table for the
// terminal, and JSON for programs and for examples/plot.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace tiny_llama {

/// Figures of one part of the text (a turn), summed over contexts.
struct stream_part {
  std::uint64_t tokens = 0;           ///< read
  double seconds = 0;                 ///< of reading them; compression is not included
  double compress_seconds = 0;        ///< and renumbering
  std::uint64_t bytes = 0;            ///< whose bits are counted: those outside of planted sentences
  double bits = 0;                    ///< each byte given those before it
  std::uint64_t longest_entries = 0;  ///< of a head, at most
  std::vector<std::uint64_t> asked = {}, right = {};  ///< digits, by the part that told the number
};

/// One method at one budget.
struct stream_row {
  std::string method;
  std::string kind;                  ///< full, evict or merge
  double budget = 1.0;               ///< as in report_row
  std::uint64_t entries = 0;         ///< per head after a compression; 0: the cache is never compressed
  std::uint64_t shared_entries = 0;  ///< of those, what conversations share; 0: nothing
  std::vector<stream_part> parts = {};

  /// Of parts [first, last); negative where nothing was counted.
  double bits_per_byte(std::size_t first, std::size_t last) const;
  double ms_per_token(std::size_t first, std::size_t last) const;
  /// Seconds of compression over seconds of reading.
  double compression_share() const;
  /// Digits right in part `asked`, of the number told in part `told`.
  double recall(std::size_t asked, std::size_t told) const;
  /// Digits right of all numbers, each asked for at the end of the part that tells it.
  double recall_at_once() const;
  /// Digits right of all numbers, asked for at the end of the last part.
  double recall_at_the_end() const;
  std::uint64_t peak_entries() const;
};

struct stream_report {
  std::string model;
  std::string mode;  ///< turns, generate or read
  int length = 0;    ///< tokens of each text
  int contexts = 0;
  int chunk = 0;            ///< tokens between two compressions; 0: a turn
  bool renumbered = false;  ///< after each compression
  int shared = 0;           ///< first parts that two conversations share
  std::uint64_t seed = 0;
  std::uint64_t bytes_per_entry = 0;  ///< K and V of an entry of every head and layer
  std::vector<stream_row> rows;
};

/// At most 110 columns wide: full cache first, then a group per budget.
void print_table(stream_report const& results, std::ostream& out);

std::string to_json(stream_report const& results);

/// Writes to_json beside `path` and renames it. Throws std::runtime_error.
void write_json(stream_report const& results, std::string const& path);

}  // namespace tiny_llama
