#include "options.hpp"

#include "needle_task.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <utility>

namespace tiny_llama {
namespace {

/// All methods as "a, b, c".
std::string method_names() {
  std::string out;
  for (auto const& name : known_methods()) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::vector<std::string> parse_methods(std::string const& value) {
  auto const& known = known_methods();
  auto const asked = split_at_commas(value);
  for (auto const& method : asked) {
    if (method != "all" && std::find(known.begin(), known.end(), method) == known.end()) {
      refuse_option("--method", value, method_names() + ", several of them separated by commas, or all");
    }
  }
  std::vector<std::string> out;
  std::copy_if(known.begin(), known.end(), std::back_inserter(out), [&](std::string const& name) {
    bool const all = name != "composed" && std::find(asked.begin(), asked.end(), "all") != asked.end();
    return all || std::find(asked.begin(), asked.end(), name) != asked.end();
  });
  return out;
}

/// What runs by default while a text goes on. Methods that read a prompt twice cannot.
constexpr char const* methods_of_long_texts =
    "full,streaming_llm,snapkv,chelsea,leverage_dropkv,leverage_merging";

/// The default shares suit long contexts; a short one starts at the least that it may keep.
void raise_budgets(options& o) {
  double const least = std::ceil(100.0 * least_kept / o.context) / 100;
  for (double& budget : o.budgets) budget = std::max(budget, least);
  o.budgets.erase(std::unique(o.budgets.begin(), o.budgets.end()), o.budgets.end());
}

}  // namespace

// Before anything runs: the presets would refuse in the middle.
void check_budgets(options const& o, int tokens, std::string const& context) {
  for (double const budget : o.budgets) {
    int const kept = static_cast<int>(budget * tokens + 1e-9);
    if (kept < least_kept) {
      std::ostringstream text;
      text << "--budget is " << budget << ", which keeps " << kept << " of " << context
           << " entries; it must be a share that keeps at least " << least_kept << ".";
      throw option_error(text.str());
    }
  }
}

std::string options::tasks_path() const {
  if (!tasks.empty() || plants) return tasks;
  std::string const beside = model + "/tasks.jsonl";
  return std::filesystem::exists(beside) ? beside : "";
}

std::string options::learned_path() const {
  if (!learned.empty()) return learned;
  std::string const beside = model + "/learned.safetensors";
  return std::filesystem::exists(beside) ? beside : "";
}

std::vector<std::string> const& known_methods() {
  static std::vector<std::string> const names{"full",
                                              "streaming_llm",
                                              "h2o",
                                              "scissorhands",
                                              "snapkv",
                                              "tova",
                                              "chunkkv",
                                              "criticalkv",
                                              "knorm",
                                              "lagkv",
                                              "keydiff",
                                              "leverage",
                                              "expected_attention",
                                              "triattention",
                                              "rkv",
                                              "dropkv",
                                              "compactor",
                                              "kvzip",
                                              "kvzip_centroids",
                                              "kvzip_plus",
                                              "learned",
                                              "learned_centroids",
                                              "learned_leverage",
                                              "attention_matching",
                                              "leverage_fitted",
                                              "d2o",
                                              "cam",
                                              "keepkv",
                                              "kvmerger",
                                              "ems",
                                              "ems_collapsed",
                                              "chelsea",
                                              "chelsea_flat",
                                              "leverage_dropkv",
                                              "keydiff_merging",
                                              "leverage_merging",
                                              "triattention_merging",
                                              "rkv_merging",
                                              "dropkv_merging",
                                              "composed"};
  return names;
}

parsed_options parse_options(int argc, char const* const* argv) {
  parsed_options result;
  auto& o = result.chosen;
  o.methods = parse_methods("full,snapkv,compactor,kvzip,attention_matching,chelsea,leverage_dropkv");
  bool composes = false;
  bool lists = false, budgeted = false;
  std::string mode;                                        // --turns, --generate or --read
  std::vector<std::pair<std::string, std::string>> alone;  // given, and without meaning beside one of them
  auto const keep_alone = [&](char const* name, auto const& value) { alone.emplace_back(name, value); };
  auto const max_needles = static_cast<int>(needle_names.size());

  command_line line("Runs a small language model with its KV cache compressed by several methods and "
                    "compares what is left.");
  auto const add = [&line](char const* name, char const* type, char const* help, auto take) {
    line.add(name, type, help, std::move(take));
  };
  add("--model", "DIR", "folder with config.json and model.safetensors [examples/data/tiny-kjv]",
      [&](auto const& v) { o.model = some_path("--model", v); });
  add("--text", "FILE", "held-out text [heldout.txt in the model's folder]", [&](auto const& v) {
    o.text = some_path("--text", v);
    o.plants = true;
  });
  add("--tasks", "FILE",
      "contexts, questions and answers, a JSON object a line with texts or, for a model that does not read "
      "bytes, arrays of token numbers; instead of planted numbers [tasks.jsonl in the model's folder if "
      "there is one, unless --text, --context or --needles is given]",
      [&](auto const& v) {
        o.tasks = some_path("--tasks", v);
        keep_alone("--tasks", v);
      });
  std::string const methods =
      method_names() +
      " (comma-separated; chelsea_flat ignores degrees), or all: all but composed "
      "[full,snapkv,compactor,kvzip,attention_matching,chelsea,leverage_dropkv; with --turns, --generate and "
      "--read: " +
      methods_of_long_texts + "]";
  add("--method", "NAMES", methods.c_str(), [&](auto const& v) {
    o.methods = parse_methods(v);
    lists = true;
  });
  auto const part = [&](char const* name, std::string options::*field, char const* help) {
    add(name, "NAME", help, [&o, &composes, field, name](auto const& v) {
      if (v.empty()) refuse_option(name, v, "a name");
      o.*field = v;
      composes = true;
    });
  };
  part("--score", &options::score,
       "score of a composed policy: global, local, global_local, above_mean, key_difference, key_norm, "
       "lag_relative, leverage, leverage+drop_error, expected_attention, distance_preference, redundancy, "
       "drop_error, max_attention, max_output, root_mean_square, chunk_attention, leverage+chunk_attention, "
       "none; +queries behind root_mean_square, local or leverage for --merge fitted [global]");
  part("--select", &options::select, "its selector: top, above, sinks_and_recents, tiers [top]");
  part("--identify", &options::identify,
       "its identifier, with :admission where there are several: evict_rest, local_span, "
       "consecutive_threshold, "
       "chunked_bipartite, nearest_center, ... [chunked_bipartite]");
  part("--merge", &options::merge,
       "its merge function: drop, average, degree_weighted, score_weighted, gaussian, similarity_weighted, "
       "mass_preserving, collapsed, additive, fitted [degree_weighted]");
  add("--budget", "SHARES",
      "shares of the cache to keep, comma-separated; with --turns, --generate and --read, of the text or of "
      "the "
      "model's positions, whichever are fewer [0.2,0.06, or what keeps 40 tokens; there 0.2]",
      [&](auto const& v) {
        o.budgets = shares_above_zero("--budget", v);
        std::reverse(o.budgets.begin(), o.budgets.end());
        budgeted = true;
      });
  bool sized = false, counted = false;
  add("--context", "N", "tokens per context [1024; 1536 with --turns]", [&](auto const& v) {
    o.context = small_number("--context", v, 64, 1 << 20);
    o.plants = sized = true;
    keep_alone("--context", v);
  });
  add("--contexts", "N", "contexts to average over, of each task [12; 1 with --generate and --read]",
      [&](auto const& v) {
        o.contexts = small_number("--contexts", v, 1, 10000);
        counted = true;
      });
  add("--needles", "N", "planted numbers per context [4]", [&](auto const& v) {
    o.needles = small_number("--needles", v, 0, max_needles);
    o.plants = true;
    keep_alone("--needles", v);
  });
  auto const going_on = [&](char const* name, int options::*field, int least, int most, char const* help) {
    add(name, "N", help, [&o, &mode, name, field, least, most](auto const& v) {
      if (!mode.empty()) refuse_option(name, v, "given without " + mode);
      o.*field = small_number(name, v, least, most);
      mode = name;
      o.plants = true;
    });
  };
  going_on(
      "--turns", &options::turns, 2, max_needles,
      "a conversation: N turns of a context, each of which tells a number; the cache is compressed after "
      "each turn, and then asked for every number told so far");
  add("--shared", "N",
      "with --turns: two conversations have the first N turns in common; these are read once, compressed to "
      "their share of the budget and frozen, and both conversations go on from there [0]",
      [&](auto const& v) { o.shared = small_number("--shared", v, 0, max_needles); });
  going_on(
      "--generate", &options::generate, 512, 1 << 20,
      "a long answer: N tokens, read one at a time; the cache is compressed every 64 (--chunk), and asked "
      "for numbers told on the way");
  going_on("--read", &options::read, 512, 1 << 20,
           "a long prompt: N tokens, read 64 (--chunk) at a time, and compressed after each chunk");
  add("--positions", "NAME",
      "with --turns, --generate and --read: kept, or renumbered after each compression, so that a text may "
      "be "
      "longer than the model has positions for [kept if it has them, otherwise renumbered]",
      [&](auto const& v) {
        if (v != "kept" && v != "renumbered") refuse_option("--positions", v, "kept or renumbered");
        o.positions = v;
      });
  add("--seed", "N", "seed of the contexts [1]", [&](auto const& v) { o.seed = seed_number("--seed", v); });
  add("--json", "FILE", "write the figures as JSON", [&](auto const& v) { o.json = some_path("--json", v); });
  add("--chart", "FILE", "write a chart as SVG", [&](auto const& v) {
    o.chart = some_path("--chart", v);
    keep_alone("--chart", v);
  });
  add("--calibration", "FILE",
      "file of kvmeld_calibrate: each method that it knows runs again with a budget per head, and more",
      [&](auto const& v) {
        o.calibration = some_path("--calibration", v);
        keep_alone("--calibration", v);
      });
  add("--learned", "FILE",
      "weights of python -m kvmeld.learn for methods with learned scores [learned.safetensors "
      "in "
      "the model's folder if there is one; else these methods are left out]",
      [&](auto const& v) { o.learned = some_path("--learned", v); });
  add("--budget-scope", "NAME",
      "who shares a budget: head, layer or all_layers; methods that do not rank by score alone keep to head "
      "[head]",
      [&](auto const& v) {
        o.budget_scope = v;
        if (v != "head" && v != "layer" && v != "all_layers")
          refuse_option("--budget-scope", v, "head, layer or all_layers");
        if (v != "head") keep_alone("--budget-scope", v);
      });
  add("--chunk", "N",
      "read N tokens at a time and compress to the budget after each, as during a long prompt or answer; "
      "methods that read a prompt twice are left out [the whole context at once]",
      [&](auto const& v) { o.chunk = small_number("--chunk", v, 1, 1 << 20); });
  add("--threads", "N", "threads, 0 for as many as the machine has [0]",
      [&](auto const& v) { o.threads = small_number("--threads", v, 0, 1024); });

  result.help = line.parse(argc, argv);
  if (!result.help.empty()) return result;
  if (composes && !lists) o.methods = {"full", "composed"};
  if (composes && std::find(o.methods.begin(), o.methods.end(), "composed") == o.methods.end()) {
    o.methods.emplace_back("composed");
  }
  if (o.goes_on()) {
    for (auto const& [name, value] : alone)
      if (name != "--context" || o.turns == 0) refuse_option(name, value, "given without " + mode);
    if (!lists && !composes) o.methods = parse_methods(methods_of_long_texts);
    if (o.turns != 0 && !sized) o.context = 1536;
    if (o.turns != 0) o.needles = o.turns;
    if (o.turns == 0 && !counted) o.contexts = 1;
    if (o.turns == 0 && o.chunk == 0) o.chunk = 64;
    if (!budgeted) o.budgets = {0.2};
  } else if (!o.positions.empty()) {
    refuse_option("--positions", o.positions, "given with --turns, --generate or --read");
  }
  if (o.shared != 0) {
    std::string const given = std::to_string(o.shared);
    if (o.turns == 0) refuse_option("--shared", given, "given with --turns");
    if (o.shared >= o.turns)
      refuse_option("--shared", given, "less than --turns, which is " + std::to_string(o.turns));
    if (int const all = 2 * o.turns - o.shared; all > max_needles) {
      refuse_option("--shared", given,
                    "at least " + std::to_string(2 * o.turns - max_needles) + " with --turns " +
                        std::to_string(o.turns) + ", because there are " + std::to_string(max_needles) +
                        " names to tell numbers of");
    }
    if (o.positions == "renumbered")
      refuse_option("--shared", given,
                    "given without --positions renumbered, since what is shared is frozen");
  }
  if (o.generate + o.read == 0 && o.context < min_context(o.needles)) {
    refuse_option("--context", std::to_string(o.context),
                  "at least " + std::to_string(min_context(o.needles)) + " with " +
                      (o.turns != 0 ? "--turns " : "--needles ") + std::to_string(o.needles));
  }
  if (!budgeted && !o.goes_on()) raise_budgets(o);
  if (!o.tasks.empty() && o.plants) {
    refuse_option("--tasks", o.tasks,
                  "given without --text, --context and --needles: it has contexts of its own");
  }
  if (o.chunk != 0 && !o.calibration.empty()) {
    refuse_option("--chunk", std::to_string(o.chunk),
                  "given without --calibration, whose shares are of a whole context");
  }
  if (o.tasks.empty() && !o.goes_on()) check_budgets(o, o.context, "--context " + std::to_string(o.context));
  return result;
}

}  // namespace tiny_llama
