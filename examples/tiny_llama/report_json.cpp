#include "output_file.hpp"
#include "report.hpp"

#include <nlohmann/json.hpp>

namespace tiny_llama {
namespace {

// Ordered, so that a reader of the file meets the columns in the order of the table.
using ordered = nlohmann::ordered_json;

ordered figure(double value) { return value >= 0 ? ordered(value) : ordered(nullptr); }

}  // namespace

std::string to_json(report const& results) {
  ordered rows = ordered::array();
  for (auto const& row : results.rows) {
    ordered item;
    item["method"] = row.method;
    item["kind"] = row.kind;
    item["budget"] = figure(row.budget);
    item["bits_per_" + results.unit] = figure(row.bits);
    item["needle_accuracy"] = figure(row.needle_accuracy);
    item["needle_exact"] = figure(row.needle_exact);
    item["needle_accuracy_inside"] = figure(row.needle_accuracy_inside);
    item["needle_exact_inside"] = figure(row.needle_exact_inside);
    item["output_error"] = figure(row.output_error);
    item["kv_bytes_full"] = row.kv_bytes_full;
    item["kv_bytes"] = row.kv_bytes;
    item["compress_ms"] = figure(row.compress_ms);
    item["decode_tokens_per_s"] = figure(row.decode_tokens_per_s);
    item["observe_ms"] = figure(row.observe_ms);
    item["mass_retained"] = figure(row.mass_retained);
    item["merged"] = figure(row.merged);
    item["dropped"] = figure(row.dropped);
    item["degrees"] = row.degrees;
    for (std::size_t i = 0; i < results.tasks.size(); ++i) {
      item["tasks"][results.tasks[i]] = {{"exact", figure(row.task_exact.at(i))},
                                         {"accuracy", figure(row.task_accuracy.at(i))}};
    }
    rows.push_back(std::move(item));
  }
  ordered out;
  out["model"] = results.model;
  out["unit"] = results.unit;
  out["context"] = results.context;
  out["contexts"] = results.contexts;
  out["needles"] = results.needles;
  out["seed"] = results.seed;
  out["rows"] = std::move(rows);
  // Names come from folders, whose bytes need not be UTF-8; a report must not fail on that.
  return out.dump(2, ' ', false, ordered::error_handler_t::replace) + "\n";
}

void write_json(report const& results, std::string const& path) { write_file(path, to_json(results)); }

}  // namespace tiny_llama
