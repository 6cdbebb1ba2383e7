#include "options.hpp"

#include "error.hpp"
#include "needle_task.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <locale>
#include <sstream>

namespace tiny_llama {
namespace {

[[noreturn]] void refuse(std::string const& name, std::string const& value, std::string const& allowed) {
  throw option_error(name + " is " + in_quotes(value) + "; " + allowed + ".");
}

std::vector<std::string> split(std::string const& list) {
  std::vector<std::string> out(1);
  for (char const c : list) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::uint64_t whole(std::string const& name, std::string const& value, std::uint64_t least,
                    std::uint64_t most) {
  auto const bad = [&] {
    refuse(name, value,
           "a whole number from " + std::to_string(least) + " to " + std::to_string(most) + " is needed");
  };
  std::uint64_t number = 0;
  if (value.empty()) {
    bad();
  }
  for (char const c : value) {
    auto const digit = static_cast<std::uint64_t>(c - '0');
    if (c < '0' || c > '9' || number > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) {
      bad();
    }
    number = number * 10 + digit;
  }
  if (number < least || number > most) {
    bad();
  }
  return number;
}

int small(std::string const& name, std::string const& value, int least, int most) {
  return static_cast<int>(
      whole(name, value, static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most)));
}

std::vector<double> parse_budgets(std::string const& value) {
  std::vector<double> out;
  for (auto const& part : split(value)) {
    std::istringstream in(part);
    in.imbue(std::locale::classic());  // a decimal comma would be read as a list
    double number = 0;
    if (!(in >> std::noskipws >> number) || in.peek() != std::istringstream::traits_type::eof() ||
        !(number > 0) || !(number <= 1)) {
      refuse("--budget", value, "shares above 0 and up to 1, separated by commas, are needed");
    }
    out.push_back(number);
  }
  std::sort(out.rbegin(), out.rend());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<std::string> parse_methods(std::string const& value) {
  auto const& known = known_methods();
  auto const asked = split(value);
  for (auto const& method : asked) {
    if (method != "all" && std::find(known.begin(), known.end(), method) == known.end()) {
      std::string names;
      for (auto const& name : known) {
        names += name + ", ";
      }
      refuse("--method", value, names + "separated by commas, or all, are allowed");
    }
  }
  std::vector<std::string> out;
  std::copy_if(known.begin(), known.end(), std::back_inserter(out), [&](std::string const& name) {
    bool const all = name != "composed" && name != "chelsea_probed" &&
                     std::find(asked.begin(), asked.end(), "all") != asked.end();
    return all || std::find(asked.begin(), asked.end(), name) != asked.end();
  });
  return out;
}

std::string some_path(std::string const& name, std::string const& value, char const* what = "a path") {
  if (value.empty()) {
    refuse(name, value, std::string(what) + " is needed");
  }
  return value;
}

}  // namespace

std::vector<std::string> const& known_methods() {
  static std::vector<std::string> const names{
      "full",           "streaming_llm", "h2o", "scissorhands",  "snapkv",  "d2o",          "cam",
      "keepkv",         "kvmerger",      "ems", "ems_collapsed", "chelsea", "chelsea_flat", "recommended",
      "chelsea_probed", "composed"};
  return names;
}

parsed_options parse_options(int argc, char const* const* argv) {
  parsed_options result;
  auto& o = result.chosen;
  o.methods = parse_methods("all");
  bool composes = false;
  bool lists = false;
  auto const most_needles = static_cast<int>(needle_names.size());

  CLI::App app{"Runs a small language model with its KV cache compressed by several methods and compares "
               "what is left."};
  // Values come in as text, so that one place words every refusal.
  auto const add = [&app](char const* name, char const* type, char const* help,
                          std::function<void(std::string const&)> take) {
    app.add_option_function<std::string>(name, std::move(take), help)->type_name(type);
  };
  add("--model", "DIR", "folder with config.json and model.safetensors [examples/data/tiny-kjv]",
      [&](auto const& v) { o.model = some_path("--model", v); });
  add("--text", "FILE", "held-out text [heldout.txt in the model's folder]",
      [&](auto const& v) { o.text = some_path("--text", v); });
  add("--method", "NAMES",
      "full, streaming_llm, h2o, scissorhands, snapkv, d2o, cam, keepkv, kvmerger, ems, ems_collapsed, "
      "chelsea, "
      "chelsea_flat (its degrees ignored), recommended, composed (comma-separated), or all of them but "
      "composed [all]",
      [&](auto const& v) {
        o.methods = parse_methods(v);
        lists = true;
      });
  auto const part = [&](char const* name, std::string options::*field, char const* help) {
    add(name, "NAME", help, [&o, &composes, field, name](auto const& v) {
      o.*field = some_path(name, v, "a name");
      composes = true;
    });
  };
  part("--score", &options::score,
       "score of a composed policy: global, local, global_local, above_mean, none [global]");
  part("--select", &options::select, "its selector: top, sinks_and_recents, bands [top]");
  part("--identify", &options::identify,
       "its identifier, with :admission where there are several: zero_class, local_span, "
       "consecutive_threshold, "
       "chunked_bipartite, nearest_center, ... [chunked_bipartite]");
  part("--merge", &options::merge,
       "its merge function: drop, average, degree_weighted, score_weighted, gaussian, similarity_weighted, "
       "mass_preserving, collapsed, additive [degree_weighted]");
  add("--budget", "SHARES", "shares of the cache to keep, comma-separated [0.5,0.35,0.2]",
      [&](auto const& v) { o.budgets = parse_budgets(v); });
  add("--context", "N", "tokens per context [1024]",
      [&](auto const& v) { o.context = small("--context", v, 64, 1 << 20); });
  add("--contexts", "N", "contexts to average over [12]",
      [&](auto const& v) { o.contexts = small("--contexts", v, 1, 10000); });
  add("--needles", "N", "planted numbers per context [4]",
      [&](auto const& v) { o.needles = small("--needles", v, 0, most_needles); });
  add("--seed", "N", "seed of the contexts [1]",
      [&](auto const& v) { o.seed = whole("--seed", v, 0, std::numeric_limits<std::uint64_t>::max()); });
  add("--json", "FILE", "write the figures as JSON", [&](auto const& v) { o.json = some_path("--json", v); });
  add("--chart", "FILE", "write a chart as SVG", [&](auto const& v) { o.chart = some_path("--chart", v); });
  add("--calibration", "FILE",
      "file of kvmeld_calibrate: each method that it knows runs again with a budget per head, and more",
      [&](auto const& v) { o.calibration = some_path("--calibration", v); });
  add("--epsilon", "X", "what chelsea_probed may change an output by, in the values' unit [0.25]",
      [&](auto const& v) {
        std::istringstream in(v);
        in.imbue(std::locale::classic());
        if (!(in >> std::noskipws >> o.epsilon) || in.peek() != std::istringstream::traits_type::eof() ||
            !(o.epsilon > 0) || !(o.epsilon < 1e30)) {
          refuse("--epsilon", v, "a number above 0 is needed");
        }
      });
  add("--split", "NAME", "whose entries a budget counts together: head, layer or group [head]",
      [&](auto const& v) {
        o.split = v;
        if (v != "head" && v != "layer" && v != "group")
          refuse("--split", v, "head, layer and group are allowed");
      });
  add("--figures", "FILE", "write the live figures (degrees, fates, attention mass) as SVG",
      [&](auto const& v) { o.figures = some_path("--figures", v); });
  add("--threads", "N", "threads, 0 for as many as the machine has [0]",
      [&](auto const& v) { o.threads = small("--threads", v, 0, 1024); });

  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    result.help = app.help();
    return result;
  } catch (CLI::ParseError const& problem) {
    std::string sentence = problem.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    throw option_error(sentence + "; --help lists what is allowed.");
  }
  if (composes && !lists) o.methods = {"full", "composed"};
  if (composes && std::find(o.methods.begin(), o.methods.end(), "composed") == o.methods.end()) {
    o.methods.emplace_back("composed");
  }
  if (o.context < least_context(o.needles)) {
    refuse("--context", std::to_string(o.context),
           "with --needles " + std::to_string(o.needles) + " at least " +
               std::to_string(least_context(o.needles)) + " is needed");
  }
  return result;
}

}  // namespace tiny_llama
