// What kvpress_side_by_side.py compares kvpress with: the demo's model reads contexts of the needle task,
// every method compresses its cache to every number of entries asked for, and a JSON file says which entries
// stay and what the model still answers. K and V are float32 here, as in PyTorch, so that both sides rank the
// same numbers.
//
//   kvmeld_kept_sets JOB.json OUT.json
//
// JOB: {"model": folder, "context": bytes, "needles": count, "contexts": count, "seeds": [...],
//       "tasks": a file of tasks, whose first contexts of that length are read instead, so many of each task,
//       "replay": bytes to put before a second reading (methods that want one),
//       "runs": [{"method": name, "entries": [of each track, or [of each track of a layer, ...], ...],
//                 "kept": write the positions}]}
#include <demo/material.hpp>
#include <demo/methods.hpp>
#include <demo/prompts.hpp>
#include <demo/questions.hpp>

#include <tiny_llama/engine.hpp>
#include <tiny_llama/files.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>
#include <tiny_llama/output_file.hpp>
#include <tiny_llama/program.hpp>
#include <tiny_llama/task_file.hpp>
#include <tiny_llama/threads.hpp>
#include <tiny_llama/tokens.hpp>

#include <kvmeld/compose/composed.hpp>
#include <kvmeld/kvmeld.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace preset = kvmeld::preset;
using kvmeld::quantity;
using kvmeld::compose::composed;
using kvmeld::compose::composed_of;
using nlohmann::json;
using prompt = tiny_llama::prompt_state_of<float>;

constexpr int continuation_tokens = 129;  // 128 are predicted, as in the demo
constexpr std::uint64_t most_job_bytes = 1 << 20;

/// SnapKV with the parameters of kvpress: 64 queries, a mean over 5 neighbours that pads with zeros. A budget
/// below the window keeps a part of the window.
preset::snapkv::type snapkv_like_kvpress() {
  auto policy = preset::snapkv::with_window(64, {5, kvmeld::pooling_mode::zero_padded});
  policy.select.recents = quantity::at_most(64, 1.0);
  return policy;
}

/// Expected Attention as kvpress has it: no recents, and `epsilon` for AdaKV.
preset::expected_attention::type expected_like_kvpress(tiny_llama::model const& model, float epsilon) {
  tiny_llama::options o;
  o.loaded = &model;
  auto policy = preset::expected_attention::with_rope(demo::rope_of(o));
  policy.select.recents = quantity::entries(0);
  policy.select.sinks = quantity::entries(4);
  policy.score.epsilon = epsilon;
  return policy;
}

/// Calls run(policy, reading) for a method's name: one of those here, which follow kvpress where the presets
/// do not by themselves, or one of the demo's.
template <class Run> void with_method(tiny_llama::model const& model, std::string const& name, Run run) {
  tiny_llama::reading all;  // all heads of all layers share their budgets
  all.budgets = kvmeld::budget_scope::all_layers;
  all.floor = 0.0;
  tiny_llama::reading by_layer;  // all heads of a layer keep the same entries
  by_layer.plans = kvmeld::plan_scope::layer;
  tiny_llama::reading shared;  // the heads of a layer share their budgets
  shared.budgets = kvmeld::budget_scope::layer;
  quantity const none = quantity::entries(0);
  if (name == "kvpress_snapkv") return run(composed_of(snapkv_like_kvpress()), {});
  if (name == "kvpress_pyramidkv") return run(composed_of(snapkv_like_kvpress()), {});
  if (name == "kvpress_expected") return run(composed_of(expected_like_kvpress(model, 0.0f)), {});
  if (name == "kvpress_adakv_expected") return run(composed_of(expected_like_kvpress(model, 0.01f)), shared);
  if (name == "kvpress_kvzip") {
    return run(composed_of(preset::kvzip::for_budget(none, quantity::entries(4))), all);
  }
  auto const w = tiny_llama::projection_of(model);
  if (name == "kvpress_kvzip_plus") {
    all.weighs = true;
    return run(composed_of(preset::kvzip_plus::for_budget(w, none, quantity::entries(4))), all);
  }
  if (name == "kvpress_criticalkv") return run(preset::criticalkv::over(snapkv_like_kvpress(), w), {});
  if (name == "kvpress_adakv_snapkv") return run(composed_of(snapkv_like_kvpress()), shared);
  if (name == "kvpress_chunkkv") return run(preset::chunkkv::over(snapkv_like_kvpress()), by_layer);
  if (name == "kvpress_tova") return run(composed_of(preset::tova::defaults()), by_layer);
  if (name == "kvpress_keydiff") return run(composed_of(preset::keydiff::for_budget(none, none)), {});
  tiny_llama::options o;
  o.loaded = &model;
  if (name == "leverage_dropkv_shared") return run(demo::policy_of("leverage_dropkv", o), all);
  if (name == "attention_matching_shared") return run(demo::policy_of("attention_matching", o), all);
  auto const& known = tiny_llama::known_methods();
  // Numbers may follow the name: "leverage ridge=0.01".
  std::string const first = name.substr(0, name.find(' '));
  bool const of_other_type = first == "ems";  // which takes as long to compile as all the others
  if (of_other_type || first == "composed" || std::find(known.begin(), known.end(), first) == known.end()) {
    throw std::runtime_error("there is no method '" + name + "'");
  }
  tiny_llama::reading how;
  how.ignore_degree = first == "chelsea_flat";
  how.weighs = first == "kvzip_plus";
  run(demo::policy_of(name, o), how);
}

/// Seconds of the one thread, so that programs beside this one do not count.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// A context that was read with the full cache, and the logits after its last token.
struct context {
  demo::material source;
  prompt read;
  std::vector<float> logits;
};

/// `before` is put before a second reading; empty: there is none.
context read_context(tiny_llama::model& model, demo::material source, std::uint32_t capacity,
                     std::vector<int> const& before) {
  context out;
  out.source = std::move(source);
  tiny_llama::engine<composed, float> engine(model, composed_of(preset::streaming_llm::with_sinks()),
                                             capacity);
  engine.read(out.source.context, out.logits, demo::recorder(model, out.read.queries, out.read.lse));
  out.read.keys = engine.keys();
  out.read.values = engine.values();
  out.read.tokens = engine.cache().tokens(0);
  if (!before.empty()) {
    // kvpress shows the queries of its words, too.
    std::vector<int> again = before;
    again.insert(again.end(), out.source.context.begin(), out.source.context.end());
    std::vector<float> logits;
    engine.read(
        again, logits,
        demo::recorder(model, out.read.replay_queries, out.read.replay_lse, &out.read.replay_weights));
  }
  return out;
}

/// Positions of the entries of every track, [layer][kv_head][...].
template <class Engine> json kept_by(Engine const& engine) {
  kvmeld::ledger_ref const& ledger = engine.cache().ledger();
  json layers = json::array();
  for (std::uint32_t layer = 0; layer < ledger.extent.layers; ++layer) {
    json heads = json::array();
    for (std::uint32_t head = 0; head < ledger.extent.kv_heads; ++head) {
      kvmeld::track const t = kvmeld::make_track(ledger.extent, layer, 0, head);
      auto const* const first = ledger.position + ledger.at(t, 0);
      heads.push_back(std::vector<kvmeld::position_t>(first, first + ledger.length[t.index]));
    }
    layers.push_back(std::move(heads));
  }
  return layers;
}

/// One method at every number of entries.
json run_method(tiny_llama::model& model, context const& c, std::uint32_t capacity, json const& asked) {
  json out = json::array();
  auto const name = asked.at("method").get<std::string>();
  auto const kv_heads = static_cast<std::size_t>(model.shape().kv_heads);
  with_method(model, name, [&](auto const& policy, tiny_llama::reading const& how) {
    using engine_type = tiny_llama::engine<std::decay_t<decltype(policy)>, float>;
    double const begin = processor_seconds();
    engine_type const observed(model, policy, capacity, c.read, how);
    double const observing = processor_seconds() - begin;
    for (json const& entries : asked.at("entries")) {
      engine_type engine(observed);
      double const start = processor_seconds();
      // One share is rounded down, so half an entry more gives the number. A share per head is rounded.
      auto const share = [&](json const& n, double more) { return (n.get<double>() + more) / c.read.tokens; };
      if (entries.is_array()) {
        std::vector<double> shares;
        for (json const& n : entries) shares.insert(shares.end(), kv_heads, share(n, 0.0));
        engine.compress(shares);
      } else if (name != "full") {
        engine.compress(share(entries, 0.5));
      }
      double const compressing = processor_seconds() - start;
      json row{{"method", name}, {"entries", entries}, {"compress_ms", 1e3 * compressing}};
      row["observe_ms"] = engine.cache().needs_observation() ? 1e3 * observing : 0.0;
      row["held"] = engine.cache().entries(0);
      if (asked.value("kept", false)) row["kept"] = kept_by(engine);
      demo::continuation_result const ahead = demo::read_on(engine, c.source.continuation);
      row["bits"] = ahead.bits;
      row["predicted"] = ahead.tokens;
      demo::recall_result recall;
      for (demo::posed_question const& q : c.source.questions) {
        recall += demo::ask(engine, q.question, q.answer);
      }
      row["digits"] = recall.digits;
      row["right"] = recall.right;
      row["numbers"] = recall.numbers;
      row["exact"] = recall.exact;
      out.push_back(std::move(row));
    }
  });
  return out;
}

/// The rows of the tokens read, [layer][token][kv_head][head_dim], without the room behind them.
std::vector<float> rows_read(std::vector<float> const& rows, kvmeld::shape const& s, std::uint32_t tokens) {
  std::vector<float> out;
  std::size_t const row = std::size_t{s.kv_heads} * s.key_dim;
  for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
    auto const first = rows.begin() + static_cast<std::ptrdiff_t>(layer * s.capacity * row);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(tokens * row));
  }
  return out;
}

/// What is read: the task, or the seed and the number of a context with planted numbers, and the context.
std::vector<std::pair<json, demo::material>> contexts_of(json const& job, std::string const& text) {
  std::vector<std::pair<json, demo::material>> out;
  int const of_each = job.at("contexts"), length = job.at("context");
  if (auto const path = job.value("tasks", std::string()); !path.empty()) {
    std::vector<tiny_llama::task_context> found = tiny_llama::load_tasks(path, 256);
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](auto const& c) { return static_cast<int>(c.context.size()) != length; }),
                found.end());
    found = tiny_llama::first_contexts(found, of_each);
    std::vector<demo::material> materials = demo::task_materials(found, tiny_llama::task_names(found));
    for (std::size_t i = 0; i < found.size(); ++i) {
      out.emplace_back(json{{"task", found[i].questions.front().task}}, std::move(materials[i]));
    }
    return out;
  }
  tiny_llama::needle_request request;
  request.context = length;
  request.needles = job.at("needles");
  request.continuation = continuation_tokens;
  for (json const& seed : job.at("seeds")) {
    for (int index = 0; index < of_each; ++index) {
      request.seed = seed;
      request.index = static_cast<std::uint64_t>(index);
      out.emplace_back(json{{"seed", seed}, {"index", index}}, demo::text_material(text, request));
    }
  }
  return out;
}

json run(json const& job) {
  tiny_llama::use_threads(1);
  auto const folder = job.at("model").get<std::string>();
  tiny_llama::model model = tiny_llama::model::load(folder);
  std::string text;
  if (job.value("tasks", std::string()).empty()) {
    std::vector<int> const ids = tiny_llama::read_tokens(folder + "/heldout.txt", model.shape().vocab);
    text.assign(ids.begin(), ids.end());
  }
  std::vector<int> const before = job.value("replay", std::vector<int>{});
  std::size_t const length = job.at("context"), again = before.empty() ? 0 : before.size() + length;
  auto const capacity = static_cast<std::uint32_t>(length + continuation_tokens + 64 + again);
  json contexts = json::array();
  for (auto& [which, source] : contexts_of(job, text)) {
    context const c = read_context(model, std::move(source), capacity, before);
    json out = which;
    out["context"] = c.source.context;
    out["continuation"] = c.source.continuation;
    out["logits"] = c.logits;
    out["needles"] = out["rows"] = json::array();
    if (contexts.empty()) {  // once is enough to hold the two models against each other
      kvmeld::shape const extent = tiny_llama::extent_of(model.shape(), capacity);
      out["keys"] = rows_read(c.read.keys, extent, c.read.tokens);
      out["values"] = rows_read(c.read.values, extent, c.read.tokens);
    }
    for (demo::posed_question const& q : c.source.questions) {
      out["needles"].push_back(
          {{"question", q.question}, {"answer", std::string(q.answer.begin(), q.answer.end())}});
    }
    for (json const& asked : job.at("runs")) {
      for (json& row : run_method(model, c, capacity, asked)) out["rows"].push_back(std::move(row));
    }
    std::cerr << "kvmeld_kept_sets: context " << contexts.size() + 1 << "\n";
    contexts.push_back(std::move(out));
  }
  return {{"contexts", std::move(contexts)}};
}

}  // namespace

int main(int argc, char** argv) {
  return tiny_llama::run_program("kvmeld_kept_sets", [&] {
    if (argc != 3) throw tiny_llama::option_error("two files must be given: JOB.json OUT.json");
    tiny_llama::expect_writable("OUT.json", argv[2]);
    json const job = json::parse(tiny_llama::read_file(argv[1], most_job_bytes));
    tiny_llama::write_file(argv[2], run(job).dump());
    return 0;
  });
}
