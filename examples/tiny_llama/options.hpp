// The demo's command line.
#pragma once

#include "command_line.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace tiny_llama {

struct learned_scores;
class model;

struct options {
  std::string model = "examples/data/tiny-kjv";  ///< folder with config.json and model.safetensors
  std::string text;                              ///< empty: heldout.txt in the model's folder
  std::string tasks;                 ///< empty: tasks.jsonl in the model's folder, if there is one
  bool plants = false;               ///< --text, --context or --needles is given: numbers are planted in text
  std::vector<std::string> methods;  ///< after parsing never empty; "full" comes first where present
  std::vector<double> budgets{0.2, 0.06};  ///< descending, no two alike
  int context = 1024;
  int contexts = 12;
  int needles = 4;
  std::uint64_t seed = 1;
  std::string score = "global", select = "top", identify = "chunked_bipartite",
              merge = "degree_weighted";  ///< parts of the method "composed"
  std::string json, chart;                ///< empty: not written
  std::string calibration;                ///< file of kvmeld_calibrate; empty: none
  std::string learned;                    ///< file of kvmeld.learn; empty: the model's, if there is one
  std::string budget_scope = "head";      ///< whose entries a budget counts together: head, layer, all_layers
  tiny_llama::model const* loaded = nullptr;  ///< the model, once it is loaded; no option
  learned_scores const* scores = nullptr;     ///< what was learned of it, or null; no option
  int chunk = 0;          ///< tokens read between two compressions; 0: all of them, or what the mode has
  int turns = 0;          ///< not 0: the context is a conversation of so many turns
  int shared = 0;         ///< first turns that two conversations share
  int generate = 0;       ///< not 0: an answer of so many tokens, one at a time
  int read = 0;           ///< not 0: a text of so many tokens, read in chunks
  std::string positions;  ///< of these three: kept, renumbered, or empty: kept where the model has enough
  int threads = 0;        ///< 0: as many as the machine has

  /// Whether the cache is compressed while a text goes on (--turns, --generate, --read).
  bool goes_on() const { return turns + generate + read != 0; }
  /// Tokens of such a text.
  int length() const { return turns != 0 ? context : generate + read; }
  /// The file of tasks to run; empty: numbers are planted instead.
  std::string tasks_path() const;
  /// The file of learned scores; empty: there is none.
  std::string learned_path() const;
  std::string text_path() const { return text.empty() ? model + "/heldout.txt" : text; }
};

/// All methods, in the order in which they run and are reported.
std::vector<std::string> const& known_methods();

struct parsed_options {
  options chosen;
  std::string help;  ///< not empty: print it on stdout and end with 0
};

/// The presets pin up to 32 entries and refuse a budget that leaves little beside them.
inline constexpr int least_kept = 40;

/// Refuses shares that keep fewer entries of a context of `tokens` than the presets need. `context` names it,
/// as "--context 1024".
void check_budgets(options const& o, int tokens, std::string const& context);

/// Files to write are not looked at, see expect_writable. Throws option_error.
parsed_options parse_options(int argc, char const* const* argv);

}  // namespace tiny_llama
