// The demo: a real language model reads a long text, its KV cache is merged or evicted down to a budget, and
// it answers from what is left: numbers planted in the text, or questions of a file.
#include "material.hpp"
#include "measure.hpp"
#include "methods.hpp"
#include "prompts.hpp"
#include "stream.hpp"
#include "variants.hpp"

#include <tiny_llama/engine.hpp>
#include <tiny_llama/error.hpp>
#include <tiny_llama/learned_file.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/progress.hpp>
#include <tiny_llama/report.hpp>
#include <tiny_llama/stream_report.hpp>
#include <tiny_llama/table_cells.hpp>
#include <tiny_llama/task_file.hpp>
#include <tiny_llama/threads.hpp>
#include <tiny_llama/tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using tiny_llama::options;
using tiny_llama::report_row;

constexpr int continuation_tokens = 129;  // 128 are predicted
constexpr int probe_tokens = 32;

/// Figures of one method at one budget. Those of recall and bits are means over tasks; the others are over
/// all contexts.
report_row summarise(std::string const& method, std::string const& kind, double budget, demo::tally const& t,
                     std::uint64_t bytes_per_token) {
  report_row row;
  row.method = method;
  row.kind = kind;
  row.budget = budget;
  auto const share = [](int part, int whole) {
    return whole == 0 ? -1.0 : static_cast<double>(part) / whole;
  };
  // With few contexts, not every task has a question that was asked inside.
  auto const mean = [&](auto value) {
    double sum = 0;
    int count = 0;
    for (demo::task_tally const& task : t.tasks) {
      if (double const of_task = value(task); of_task >= 0) {
        sum += of_task;
        ++count;
      }
    }
    return count == 0 ? -1.0 : sum / count;
  };
  auto const right = [&](auto which) {
    return mean(
        [&](demo::task_tally const& task) { return share((task.*which).right, (task.*which).digits); });
  };
  auto const exact = [&](auto which) {
    return mean(
        [&](demo::task_tally const& task) { return share((task.*which).exact, (task.*which).numbers); });
  };
  row.bits = mean([](demo::task_tally const& task) {
    return task.tokens == 0 ? -1.0 : task.bits / static_cast<double>(task.tokens);
  });
  row.needle_accuracy = right(&demo::task_tally::after);
  row.needle_exact = exact(&demo::task_tally::after);
  row.needle_accuracy_inside = right(&demo::task_tally::inside);
  row.needle_exact_inside = exact(&demo::task_tally::inside);
  std::size_t predicted = 0;
  for (demo::task_tally const& task : t.tasks) {
    row.task_exact.push_back(share(task.after.exact, task.after.numbers));
    row.task_accuracy.push_back(share(task.after.right, task.after.digits));
    predicted += task.tokens;
  }
  auto const contexts = static_cast<std::uint64_t>(t.contexts);
  row.output_error = t.error / t.contexts;
  row.kv_bytes_full = t.context_tokens * bytes_per_token / contexts;
  row.kv_bytes = t.bytes / contexts;
  row.compress_ms = 1e3 * t.compress_seconds / t.contexts;
  row.observe_ms = 1e3 * t.observe_seconds / t.contexts;
  if (t.decode_seconds > 0) row.decode_tokens_per_s = static_cast<double>(predicted) / t.decode_seconds;
  auto const of = [](std::uint64_t part, std::uint64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(whole, 1));
  };
  if (t.scored) row.mass_retained = t.live.mass_retained();
  row.merged = of(t.live.merged_in_all, t.live.tokens);
  row.dropped = of(t.live.dropped_in_all, t.live.tokens);
  for (std::uint64_t n : t.live.degrees) row.degrees.push_back(of(n, t.live.held));
  return row;
}

/// Which contexts the demo reads, in turn, and what they need.
struct reading_list {
  int contexts = 0;                ///< in all
  std::vector<std::string> tasks;  ///< empty: numbers are planted
  int inside = 0;                  ///< questions per context that are asked inside the prompt
  std::size_t longest = 0, longest_after = 0,
              tokens = 0;                 ///< of a context, of what follows it; of all contexts
  std::function<demo::material(int)> at;  ///< a context by its index
};

/// Numbers planted in held-out text, or stretches of token ids.
reading_list planted(tiny_llama::model const& model, options const& o) {
  bool const bytes = tiny_llama::is_byte_model(model.shape().vocab);
  std::vector<int> const ids = tiny_llama::read_tokens(o.text_path(), model.shape().vocab);
  int const needles = bytes ? o.needles : 0;
  if (needles != o.needles)
    std::cerr << "token ids: what they mean is not known, so no numbers are planted\n";
  reading_list out;
  out.contexts = o.contexts;
  out.inside = needles;
  out.longest = static_cast<std::size_t>(o.context);
  out.longest_after = std::max(continuation_tokens, 64);
  out.tokens = out.longest * static_cast<std::size_t>(o.contexts);
  // Planting and asking for numbers takes bytes.
  out.at = [=, text = bytes ? std::string(ids.begin(), ids.end()) : std::string()](int index) {
    tiny_llama::needle_request request;
    request.context = o.context;
    request.needles = needles;
    request.continuation = continuation_tokens;
    request.seed = o.seed;
    request.index = static_cast<std::uint64_t>(index);
    return bytes ? demo::text_material(text, request) : demo::id_material(ids, request);
  };
  return out;
}

/// The contexts of a file of tasks.
reading_list tasks_of(tiny_llama::model const& model, options const& o, std::string const& path) {
  std::vector<tiny_llama::task_context> const contexts =
      tiny_llama::first_contexts(tiny_llama::load_tasks(path, model.shape().vocab), o.contexts);
  reading_list out;
  out.contexts = static_cast<int>(contexts.size());
  out.tasks = tiny_llama::task_names(contexts);
  out.inside = 1;
  std::size_t shortest = contexts.front().context.size();
  for (tiny_llama::task_context const& c : contexts) {
    shortest = std::min(shortest, c.context.size());
    out.longest = std::max(out.longest, c.context.size());
    out.tokens += c.context.size();
    for (tiny_llama::task_question const& q : c.questions) {
      out.longest_after = std::max(out.longest_after, q.question.size() + q.answer.size());
    }
  }
  auto const positions = static_cast<std::size_t>(model.shape().max_positions);
  if (out.longest + out.longest_after > positions) {
    throw tiny_llama::model_error(path, "has a context of " + std::to_string(out.longest) +
                                            " tokens and up to " + std::to_string(out.longest_after) +
                                            " behind it; at most " + std::to_string(positions) +
                                            " positions of the model are needed");
  }
  tiny_llama::check_budgets(o, static_cast<int>(shortest),
                            path + "'s shortest context's " + std::to_string(shortest));
  out.at = [materials = demo::task_materials(contexts, out.tasks)](int index) {
    return materials[static_cast<std::size_t>(index)];
  };
  return out;
}

/// Takes what was learned of the model. Without it, methods that need it are left out, or refused where they
/// are all that is asked for.
void take_learned(options& o, tiny_llama::learned_scores const& scores) {
  if (!scores.empty()) {
    o.scores = &scores;
    return;
  }
  std::string const path = o.model + "/learned.safetensors";
  auto const wants = [&](std::string const& m) { return demo::wants_learned(m, o); };
  if (std::all_of(o.methods.begin(), o.methods.end(),
                  [&](std::string const& m) { return m == "full" || wants(m); }) &&
      std::any_of(o.methods.begin(), o.methods.end(), wants)) {
    tiny_llama::refuse_option("--method", o.methods.back(),
                              "given with --learned, because there is no " + path);
  }
  for (std::string const& m : o.methods)
    if (wants(m)) std::cerr << m << " needs weights that were learned (--learned), and is left out\n";
  o.methods.erase(std::remove_if(o.methods.begin(), o.methods.end(), wants), o.methods.end());
}

tiny_llama::report run(options o) {
  tiny_llama::use_threads(o.threads);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  o.loaded = &model;
  tiny_llama::learned_scores const scores = demo::learned_of(model, o.learned_path());
  take_learned(o, scores);
  std::string const path = o.tasks_path();
  reading_list const list = path.empty() ? planted(model, o) : tasks_of(model, o, path);
  if (o.chunk != 0) {
    auto const whole = [&](std::string const& m) { return demo::wants_replay(m, o); };
    for (std::string const& m : o.methods)
      if (whole(m)) std::cerr << m << " needs the whole context at once, and is left out with --chunk\n";
    o.methods.erase(std::remove_if(o.methods.begin(), o.methods.end(), whole), o.methods.end());
  }
  bool const replays = std::any_of(o.methods.begin(), o.methods.end(),
                                   [&](std::string const& m) { return demo::wants_replay(m, o); });
  // The context, the longest question or the continuation, and an answer; for a second reading the first two
  // again.
  auto const capacity =
      static_cast<std::uint32_t>((list.longest + list.longest_after) * (replays ? 2 : 1) + 64);

  kvmeld::calibrate::calibration calibration;
  if (!o.calibration.empty()) calibration = demo::calibration_for(model, o.calibration);
  std::vector<demo::variant> const variants =
      demo::variants_of(o, o.calibration.empty() ? nullptr : &calibration);
  double steps = 0;
  for (demo::variant const& v : variants) steps += demo::steps_of(v, list.inside);
  tiny_llama::progress bar(std::cerr, (steps + 4) * list.contexts);

  // Of each variant and target.
  demo::tally const nothing(std::max<std::size_t>(list.tasks.size(), 1));
  std::vector<std::vector<demo::tally>> tallies;
  for (demo::variant const& v : variants) tallies.emplace_back(v.targets.size(), nothing);
  double done = 0;
  for (int index = 0; index < list.contexts; ++index) {
    std::string const name =
        "context " + std::to_string(index + 1) + " of " + std::to_string(list.contexts) + ": ";
    bar.update(done, name + "reading");
    demo::context const context = demo::read_context(model, list.at(index), capacity, probe_tokens, replays);
    done += 4;
    for (std::size_t n = 0; n < variants.size(); ++n) {
      demo::variant const& v = variants[n];
      bar.update(done, name + v.name);
      demo::with_policy(v, o, [&](auto const& policy) {
        auto const step = [&] { bar.update(++done, name + v.name); };
        tiny_llama::reading const how = demo::reading_of(v.method, o);
        if (o.chunk != 0) {
          demo::measure_in_chunks(model, policy, context, capacity, static_cast<std::size_t>(o.chunk),
                                  v.targets, how, tallies[n], step);
        } else {
          demo::measure(model, policy, context, capacity, v.targets, how, tallies[n], step);
        }
      });
    }
  }
  bar.finish();

  tiny_llama::report results;
  results.model = model.name();
  results.unit = tiny_llama::is_byte_model(model.shape().vocab) ? "byte" : "token";
  results.context = static_cast<int>(list.tokens / static_cast<std::size_t>(list.contexts));
  results.contexts = list.contexts;
  results.needles = list.tasks.empty() ? list.inside : 0;
  results.seed = o.seed;
  results.tasks = list.tasks;
  for (std::size_t n = 0; n < variants.size(); ++n) {
    demo::variant const& v = variants[n];
    for (std::size_t b = 0; b < v.targets.size(); ++b) {
      results.rows.push_back(summarise(v.name, demo::kind_of(v.method, o), v.targets[b].share, tallies[n][b],
                                       model.shape().kv_bytes_per_token()));
    }
  }
  return results;
}

constexpr int answer_room = 64;  // positions for a question and its answer

/// How a run of streams is laid out.
struct stream_layout {
  tiny_llama::needle_request request;  ///< the text of all conversations
  int whole;                           ///< entries of a full cache
  int chunk;                           ///< most tokens that are read at once
  bool fits;                           ///< whether the model has positions for all tokens
  bool renumbers;
};

/// Refuses options of streams that contradict the model or each other.
void check_streams(options const& o, stream_layout const& l, int positions) {
  int const length = o.length();
  if (!l.fits && o.shared != 0) {
    tiny_llama::refuse_option("--context", std::to_string(length),
                              "at most " +
                                  std::to_string((positions - answer_room) * o.turns / (o.turns + 1)) +
                                  " with --shared, because frozen entries keep their positions");
  }
  if (!l.fits && o.positions == "kept") {
    tiny_llama::refuse_option("--positions", o.positions,
                              "renumbered, because the model has positions for " +
                                  std::to_string(positions - answer_room) +
                                  " tokens and a question, and the text has " + std::to_string(length));
  }
  tiny_llama::check_budgets(o, l.whole, std::to_string(l.whole));
  if (o.shared != 0) {
    // Every half of a budget must hold what policies pin, as check_budgets asks of the whole.
    for (double const budget : o.budgets) {
      double const kept = budget * l.whole * std::min(o.shared, o.turns - o.shared) / o.turns;
      if (kept >= tiny_llama::least_kept) continue;
      tiny_llama::refuse_option("--budget", tiny_llama::table_cells::formatted("%g", budget),
                                "larger, because the shared turns and the others must keep at least " +
                                    std::to_string(tiny_llama::least_kept) + " entries each");
    }
  }
  if (!l.renumbers) return;
  int const room = positions - answer_room - static_cast<int>(o.budgets.front() * l.whole);
  std::string const because = ", because the model has " + std::to_string(positions) +
                              " positions for the largest budget, a chunk and a question";
  if (room < 1) {
    tiny_llama::refuse_option("--budget", tiny_llama::table_cells::formatted("%g", o.budgets.front()),
                              "less" + because);
  }
  if (l.chunk > room) {
    tiny_llama::refuse_option("--chunk", o.chunk != 0 ? std::to_string(o.chunk) : "not given",
                              "at most " + std::to_string(room) + because);
  }
}

/// Lays out streams of as many tokens as the options ask for. check_streams says whether they fit.
stream_layout layout_of_streams(options const& o, int positions) {
  stream_layout l{};
  int const length = o.length();
  // Of two conversations one may be longer than asked for by less than a turn.
  int const spare = o.shared != 0 ? length / o.turns : 0;
  l.fits = length + spare + answer_room <= positions;
  l.renumbers = !l.fits || o.positions == "renumbered";
  l.whole = std::min(length, positions);
  int const parts =
      o.turns != 0 ? o.turns : std::clamp(length / 256, 2, static_cast<int>(tiny_llama::needle_names.size()));
  // A turn is at most twice as long as the mean one: each tells its number in its own share of the text.
  int const longest_part = std::min(length, 2 * ((length + parts - 1) / parts));
  l.chunk = o.chunk != 0 ? std::min(o.chunk, longest_part) : longest_part;
  l.request.continuation = 0;
  l.request.seed = o.seed;
  l.request.needles = parts;
  l.request.context = length;
  if (o.shared != 0) {  // the first conversation, and what the second one has of its own
    l.request.needles = 2 * o.turns - o.shared;
    l.request.context = static_cast<int>(std::int64_t{length} * l.request.needles / o.turns);
  }
  return l;
}

/// Leaves out methods that cannot run on streams, and says why. Refuses to leave out all of them.
void leave_out_impossible(options& o, bool fits) {
  auto const left_out = [](std::string const& method, char const* why) {
    std::cerr << method << " is left out: " << why << "\n";
    return true;
  };
  auto const impossible = [&](std::string const& m) {
    if (m == "full") return !fits && left_out(m, "the text is longer than the model has positions for");
    if (demo::wants_replay(m, o)) return left_out(m, "it needs the whole text at once");
    if (m == "ems") return left_out(m, "its entries are shared; ems_collapsed is the same without that");
    if (tiny_llama::lands_on_budget(demo::policy_of(m, o))) return false;
    return left_out(m, "its thresholds decide how many entries stay");
  };
  std::size_t const asked = o.methods.size();
  o.methods.erase(std::remove_if(o.methods.begin(), o.methods.end(), impossible), o.methods.end());
  if (o.methods.empty()) {
    throw tiny_llama::option_error("--method has " + std::to_string(asked) +
                                   " names, and none is left; it must have one that can run here.");
  }
}

/// Texts that go on: --turns, --generate, --read.
tiny_llama::stream_report run_streams(options o) {
  tiny_llama::use_threads(o.threads);
  tiny_llama::model model = tiny_llama::model::load(o.model);
  o.loaded = &model;
  tiny_llama::learned_scores const scores = demo::learned_of(model, o.learned_path());
  take_learned(o, scores);
  if (!tiny_llama::is_byte_model(model.shape().vocab)) {
    throw tiny_llama::model_error(o.model, "has a vocab_size of " + std::to_string(model.shape().vocab) +
                                               "; planting numbers needs 256, one token per byte");
  }
  std::vector<int> const ids = tiny_llama::read_tokens(o.text_path(), model.shape().vocab);
  std::string const text(ids.begin(), ids.end());
  auto const positions = static_cast<int>(model.shape().max_positions);
  stream_layout l = layout_of_streams(o, positions);
  check_streams(o, l, positions);
  leave_out_impossible(o, l.fits);

  tiny_llama::stream_report results;
  results.model = model.name();
  results.mode = o.turns != 0 ? "turns" : o.generate != 0 ? "generate" : "read";
  results.length = o.length();
  results.contexts = o.contexts;
  results.chunk = o.chunk;
  results.renumbered = l.renumbers;
  results.shared = o.shared;
  results.seed = o.seed;
  results.bytes_per_entry = model.shape().kv_bytes_per_token();

  auto const shared = static_cast<std::size_t>(o.shared);
  std::size_t const own = static_cast<std::size_t>(o.shared != 0 ? o.turns : l.request.needles) - shared;
  std::vector<demo::variant> const variants = demo::variants_of(o, nullptr);
  double steps = 0, done = 0;
  for (demo::variant const& v : variants) steps += static_cast<double>(v.targets.size());
  tiny_llama::progress bar(std::cerr, steps * o.contexts * l.request.needles);
  for (int index = 0; index < o.contexts; ++index) {
    l.request.index = static_cast<std::uint64_t>(index);
    demo::stream const whole_text = demo::make_stream(text, l.request);
    std::vector<demo::stream> conversations;
    for (std::size_t which = 0; which < (shared != 0 ? 2u : 1u); ++which)
      conversations.push_back(demo::conversation(whole_text, shared, own, which));
    std::string const name = "text " + std::to_string(index + 1) + " of " + std::to_string(o.contexts) + ": ";
    std::size_t at = 0;
    for (demo::variant const& v : variants) {
      for (demo::target const& target : v.targets) {
        if (index == 0) results.rows.push_back({v.name, demo::kind_of(v.method, o), target.share});
        tiny_llama::stream_row& row = results.rows[at++];
        demo::stream_plan plan;
        plan.one_by_one = o.generate != 0;
        plan.chunk = static_cast<std::size_t>(l.chunk);
        if (target.compresses)
          plan.entries = kvmeld::floor_share(target.share, static_cast<std::uint32_t>(l.whole));
        plan.renumbers = target.compresses && l.renumbers;
        plan.capacity = static_cast<std::uint32_t>(target.compresses ? static_cast<int>(plan.entries) +
                                                                           l.chunk + answer_room
                                                                     : l.request.context + answer_room);
        row.entries = plan.entries;
        bar.update(done, name + v.name);
        auto const policy = demo::policy_of(v.method, o);
        demo::stream_reader beginning(model, policy, demo::reading_of(v.method, o), plan, row,
                                      [&] { bar.update(++done, name + v.name); });
        demo::read_conversations(beginning, conversations, shared);
      }
    }
  }
  bar.finish();
  return results;
}

/// Prints and writes what a run has found.
template <class Report> void show(Report const& results, options const& chosen) {
  print_table(results, std::cout);
  if (chosen.json.empty()) return;
  write_json(results, chosen.json);
  std::cout << "figures: " << chosen.json << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_demo", [&] {
    tiny_llama::parsed_options const parsed = tiny_llama::parse_options(argc, argv);
    if (tiny_llama::shows_help(parsed.help)) return 0;
    options const& chosen = parsed.chosen;
    for (auto const& [name, path] : {std::pair{"--json", chosen.json}, {"--chart", chosen.chart}}) {
      if (!path.empty()) tiny_llama::expect_writable(name, path);
    }
    bool const composes =
        std::find(chosen.methods.begin(), chosen.methods.end(), "composed") != chosen.methods.end();
    if (composes) {
      std::string const name = kvmeld::name_of_policy(demo::composition(chosen));  // refuses before it prints
      std::cout << "composed: " << name << "\n";
    }
    if (chosen.goes_on()) {
      show(run_streams(chosen), chosen);
      return 0;
    }
    tiny_llama::report const results = run(chosen);
    show(results, chosen);
    if (!chosen.chart.empty()) {
      tiny_llama::write_chart(results, chosen.chart);
      std::cout << "chart:   " << chosen.chart << "\n";
    }
    return 0;
  });
}
