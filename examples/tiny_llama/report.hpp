// What a run of the demo found, and its three forms: JSON for programs, a table for the terminal, a chart for
// the eye.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace tiny_llama {

/// One method at one budget, averaged over the contexts. A negative figure means: not measured.
struct report_row {
  std::string method;
  std::string kind;     ///< full, evict or merge
  double budget = 1.0;  ///< share of the entries kept
  double bits = -1;  ///< per unit of the held-out text that follows the context; with tasks, of the answers
  double needle_accuracy =
      -1;  ///< share of digits (with tasks, units) right, question asked after compression
  double needle_exact =
      -1;  ///< share of numbers (with tasks, answers) right as a whole, asked after compression
  double needle_accuracy_inside = -1;  ///< the same with the question inside the prompt
  double needle_exact_inside = -1;
  double output_error = -1;  ///< relative, of the attention output against the full cache
  std::uint64_t kv_bytes_full = 0, kv_bytes = 0;
  double compress_ms = -1;
  double decode_tokens_per_s = -1;
  double observe_ms = -1;  ///< recomputing the prompt's attention for the score, before compression
  double mass_retained =
      -1;  ///< of the attention that the score had gathered; negative: the policy has no score
  double merged = -1, dropped = -1;  ///< shares of the context's tokens, over all tracks
  std::vector<double> degrees = {};  ///< shares of the entries held, by powers of two of their degree
  std::vector<double> task_exact = {}, task_accuracy = {};  ///< of each task, asked after compression
};

struct report {
  std::string model;
  int context = 0;  ///< units per context
  int contexts = 0;
  int needles = 0;  ///< per context
  std::uint64_t seed = 0;
  std::vector<report_row> rows;
  /// Names, if questions of a file were asked: then figures of recall and bits are means over tasks, and
  /// context is the mean length.
  std::vector<std::string> tasks = {};
  std::string unit = "byte";  ///< what the model reads one by one: byte or token
};

/// The report as a JSON text; figures that were not measured become null.
std::string to_json(report const& results);

/// Writes to_json beside `path` and renames it. Throws std::runtime_error.
void write_json(report const& results, std::string const& path);

/// One table, at most 110 columns wide, and with tasks one more column for each: full cache first, then a
/// group per budget, the best of each group marked '*'.
void print_table(report const& results, std::ostream& out);

/// An SVG of digits recalled and of bits per byte or token against the budget.
std::string to_chart(report const& results);

/// Writes to_chart beside `path` and renames it. Throws std::runtime_error.
void write_chart(report const& results, std::string const& path);

}  // namespace tiny_llama
